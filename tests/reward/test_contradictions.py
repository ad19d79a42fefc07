"""Analyses against scores: certain contradictions are seen, everything doubtful is left alone."""

import numpy as np
import pytest

from gpu_judge.embedded.judge import EmbeddedJudge
from tests.gpu_judge.requests_of_the_world import about
from vcap_jax.reward.contradictions import contradiction
from vcap_jax.reward.scores import Scores
from vcap_jax.world.captions import full_caption, weak_caption
from vcap_jax.world.dataset import sample_scene


def judged(analysis: str, correctness: int = 10, completeness: int = 10) -> str | None:
    return contradiction(
        Scores(
            analysis=analysis,
            correctness=correctness,
            completeness=completeness,
            third=10,
            third_key="Text Quality",
        )
    )


@pytest.mark.parametrize(
    "analysis",
    [
        "The caption wrongly states that the dog is black.",
        "Most of it holds. The number of people is incorrect.",
        "The car is described well, but the colour of the bus is wrong.",
        "It invents a second boat.",
        "Hallucinated objects: a lamp.",
        "It says red for the colour at the top left, which the evidence refutes.",
    ],
)
def test_a_stated_error_contradicts_full_correctness(analysis: str) -> None:
    assert judged(analysis, correctness=10, completeness=5) is not None
    assert judged(analysis, correctness=7, completeness=10) is None


@pytest.mark.parametrize(
    "analysis",
    [
        "The caption omits the tree.",
        "It does not mention the dog.",
        "The lamp is left out.",
        "It leaves out the boat.",
    ],
)
def test_a_stated_omission_contradicts_full_completeness(analysis: str) -> None:
    assert judged(analysis, correctness=5, completeness=10) is not None
    assert judged(analysis, correctness=10, completeness=6) is None


@pytest.mark.parametrize(
    "analysis",
    [
        "No errors were found.",
        "The caption contains no mistakes and omits nothing.",
        "It is not wrong about the dog.",
        "There isn't any incorrect detail.",
        "The reference is mistaken about the colour; the caption is right.",
        "The reference omits the tree.",
        "A minor error in the shade of blue.",
        "The colour could be wrong.",
        'The sign in the picture reads "Wrong way".',
        "The caption says 'false teeth', which can be seen.",
        "Nothing is left out.",
        "",
        "Die Farbe des Hundes ist falsch.",
    ],
)
def test_what_is_denied_doubtful_small_quoted_or_foreign_is_left_alone(analysis: str) -> None:
    assert judged(analysis) is None


@pytest.mark.parametrize("analysis", ["No problem was confirmed.", "The caption is completely accurate."])
def test_praise_contradicts_a_low_score(analysis: str) -> None:
    assert judged(analysis, correctness=2, completeness=2) is not None
    assert judged(analysis, correctness=3, completeness=3) is not None
    assert judged(analysis, correctness=4, completeness=4) is None
    assert judged(f"{analysis} The dog is misidentified.", correctness=2, completeness=2) is None
    assert judged(f"{analysis} It is about another picture.", correctness=2, completeness=2) is None


@pytest.mark.parametrize("scenes", [range(6), pytest.param(range(6, 30), marks=pytest.mark.slow)], ids=str)
def test_the_embedded_judge_never_contradicts_itself(scenes: range) -> None:
    judge, rng = EmbeddedJudge(), np.random.default_rng(scenes.start)
    for index in scenes:
        for modality, third in (("image", "Text Quality"), ("video", "Reasonability")):
            scene = sample_scene(modality, 5, index)  # type: ignore[arg-type]
            for caption in (full_caption(scene, rng), weak_caption(scene, rng), "All is wrong. No error."):
                answer = judge.answer(about(scene, caption, weak_caption(scene, rng)))
                scores = Scores(
                    analysis=str(answer["Analysis"]),
                    correctness=int(answer["Correctness"]),
                    completeness=int(answer["Completeness"]),
                    third=int(answer[third]),
                    third_key=third,  # type: ignore[arg-type]
                )
                assert contradiction(scores) is None, scores
