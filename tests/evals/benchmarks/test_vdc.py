"""VDC end to end on three made-up videos in the public format, with its figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evals.benchmarks.by_stage import ByStage, Given, block, endpoint, made
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.evals.benchmarks.files import DataMissing
from vcap_jax.evals.benchmarks.vdc import ASPECTS, Vdc, drawn_prompt
from vcap_jax.evals.statistics import changes_of_means

QUESTIONS = {
    "one": [("Who?", "a cat"), ("Where?", "a roof")],
    "two": [("Who?", "a dog"), ("Where?", "a park")],
    "three": [("Who?", "a cow")],
}
CAPTIONS = {"one": "a cat on a roof", "two": "a dog in a house", "three": "a horse"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "vdc"
    (folder / "videos" / "deep").mkdir(parents=True)
    for name in ("deep/one.mkv", "two.mp4", "three.MP4"):
        (folder / "videos" / name).touch()
    rows = [
        {
            video: [
                {"question": question, "answer": answer, "category": "object"} for question, answer in asked
            ]
        }
        for video, asked in QUESTIONS.items()
    ]
    for aspect in ASPECTS:
        lines = list(rows)
        if aspect == "main_object":  # as published: a video twice, and one without questions
            lines = [{"one": [{"question": "Old?", "answer": "x", "category": ""}]}, *rows, {"empty": []}]
        (folder / f"{aspect}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def answer(prompt: str) -> object:
    """Finds the animal or the place in the caption."""
    words = block(prompt, "caption").split()
    return {"Answer": " ".join(words[:2] if "Who" in block(prompt, "question") else words[-2:])}


def compare(prompt: str) -> object:
    same = block(prompt, "right_answer") == block(prompt, "answer")
    return {"Verdict": "Yes." if same else "no", "Score": 5 if same else 1}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"answer": answer, "compare": compare})


def captions(**other: str) -> Given:
    return Given(
        {f"{aspect}:{video}": text for aspect in ASPECTS for video, text in {**CAPTIONS, **other}.items()}
    )


def test_the_figures_are_those_worked_out_by_hand(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    found = made(Vdc, data, endpoint(server)).evaluate(captions())
    values = {name: value.value for name, value in found.metrics.items()}
    # Of one 2 of 2, of two 1 of 2, of three 0 of 1; scores 5, 3 and 1.
    assert values["accuracy/camera"] == pytest.approx(100 * (1 + 0.5 + 0) / 3)
    assert values["accuracy/main_object"] == pytest.approx(50)
    assert values["accuracy"] == pytest.approx(50)
    assert values["score/short"] == pytest.approx((5 + 3 + 1) / 3)
    assert found.metrics["accuracy/camera"].n == 3  # videos
    assert found.failed == 0
    assert {name: stage.questions for name, stage in found.stages.items()} == {"answer": 25, "compare": 25}


def test_a_change_in_a_run_is_over_videos_and_not_over_their_captions(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    benchmark = made(Vdc, data, endpoint(server))
    changes = changes_of_means(
        benchmark.evaluate(captions()), benchmark.evaluate(captions(two="a dog in a park"))
    )
    # Two has both right instead of one: 5 instead of 3.
    assert changes["score"].value == pytest.approx(2 / 3)
    assert (changes["score"].n, changes["score"].low) == (3, 0)
    assert "accuracy" not in changes  # in per cent


def test_official_drops_videos_that_are_right_nowhere(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    found = made(Vdc, data, endpoint(server), mode="official").evaluate(captions())
    assert found.metrics["accuracy"].value == pytest.approx(75)
    assert found.metrics["score/camera"].value == pytest.approx(4)


def test_a_question_that_fails_is_scored_nowhere(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    judge.answers = {
        **judge.answers,
        "answer": lambda text: "?" if "Who" in block(text, "question") else answer(text),
    }
    strict = made(Vdc, data, endpoint(server, max_tries=1)).evaluate(captions())
    # What is left: one is right (1 of 1), two is wrong, of three there is nothing.
    assert strict.metrics["accuracy"].value == pytest.approx(50)
    assert strict.failed == 5
    assert strict.stages["answer"].failure_rate == pytest.approx(15 / 25)
    assert strict.items[0].lacking.keys() == {"question 1"}
    official = made(Vdc, data, endpoint(server, max_tries=1), mode="official").evaluate(captions())
    assert official.metrics["accuracy"].value != official.metrics["accuracy"].value  # nothing is whole


def test_each_aspect_is_asked_for_with_a_drawn_prompt(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    benchmark = made(Vdc, data, endpoint(server))
    assert [sample.id for sample in benchmark.samples[:5]] == [f"{aspect}:one" for aspect in ASPECTS]
    assert benchmark.samples[0].video == data / "videos" / "deep" / "one.mkv"
    assert benchmark.samples[5].video == data / "videos" / "two.mp4"
    again = made(Vdc, data, endpoint(server))
    assert [sample.prompt for sample in again.samples] == [sample.prompt for sample in benchmark.samples]
    other = made(Vdc, data, endpoint(server), seed=1)
    assert [sample.prompt for sample in other.samples] != [sample.prompt for sample in benchmark.samples]
    pool = ["one", "", "two ", "three"]
    assert {drawn_prompt(pool, str(key)) for key in range(50)} == {"one", "two", "three"}


def test_a_limit_counts_videos_and_not_captions(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    benchmark = made(Vdc, data, endpoint(server), limit=2)
    assert [sample.id for sample in benchmark.samples] == [
        f"{aspect}:{video}" for video in ("one", "two") for aspect in ASPECTS
    ]
    found = benchmark.evaluate(captions())
    assert found.metrics["accuracy/short"].n == 2


def test_missing_files_say_where_they_come_from(server: ScriptedJudge, data: Path) -> None:
    (data / "videos" / "two.mp4").unlink()
    with pytest.raises(DataMissing, match=r"two\.mp4.*wchai/Video-Detailed-Caption"):
        made(Vdc, data, endpoint(server))
    (data / "camera.jsonl").unlink()
    with pytest.raises(DataMissing, match=r"camera\.jsonl.*rese1f/aurora"):
        made(Vdc, data, endpoint(server))
    (data / "camera.jsonl").write_text('{"one": [{"question": "Who?"}]}\n')
    with pytest.raises(DataMissing, match='"answer"'):
        made(Vdc, data, endpoint(server))
