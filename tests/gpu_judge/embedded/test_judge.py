"""The embedded judge on whole requests: it sees pixels and text, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_judge.embedded.judge import EmbeddedJudge
from gpu_judge.embedded.request import BadRequest
from tests.gpu_judge.requests_of_the_world import about, about_window, body, data_url, frames_of
from vcap_jax.data.media import JudgeFrame, TimeWindow
from vcap_jax.world.captions import full_caption, weak_caption, wrong_claim, wrong_value
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_grammar import describe_image
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.scenes import Modality
from vcap_jax.world.video_grammar import describe_video
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import COLOURS, IMAGE_PLACES, VIDEO_PLACES, VIDEO_SECONDS

IMAGE_KEYS = ["Analysis", "Correctness", "Completeness", "Text Quality"]
VIDEO_KEYS = ["Analysis", "Reasonability", "Correctness", "Completeness"]
WEIGHTS = {"Correctness": 0.05, "Completeness": 0.04, "Text Quality": 0.01, "Reasonability": 0.01}


@pytest.fixture(scope="module")
def judge() -> EmbeddedJudge:
    return EmbeddedJudge()


def scores(answer: dict[str, str | int]) -> list[int]:
    return [value for key, value in answer.items() if key != "Analysis" and isinstance(value, int)]


def reward(answer: dict[str, str | int]) -> float:
    return sum(WEIGHTS[key] * float(value) for key, value in answer.items() if key in WEIGHTS)


@pytest.mark.parametrize("scenes", [range(5), pytest.param(range(5, 25), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("modality", ["image", "video"])
def test_a_full_true_caption_gets_full_marks(judge: EmbeddedJudge, modality: Modality, scenes: range) -> None:
    rng = np.random.default_rng(scenes.start)
    for index in scenes:
        scene = sample_scene(modality, 31, index)
        answer = judge.answer(about(scene, full_caption(scene, rng), full_caption(scene, rng)))
        assert list(answer) == (IMAGE_KEYS if modality == "image" else VIDEO_KEYS)
        assert scores(answer) == [10, 10, 10], answer
        assert answer["Analysis"] == "No problem was confirmed."


@pytest.mark.parametrize("modality", ["image", "video"])
@pytest.mark.parametrize(
    "silence",
    ["", "   ", "I see nothing.", "All elements have been described.", "[0.0 - 2.0]\n[2.0 - 4.0]\nSummary:"],
)
def test_silence_earns_nothing(judge: EmbeddedJudge, modality: Modality, silence: str) -> None:
    scene = sample_scene(modality, 31, 0)
    for reference in (full_caption(scene, np.random.default_rng(0)), "", None):
        assert scores(judge.answer(about(scene, silence, reference))) == [0, 0, 0]


@pytest.mark.parametrize("scenes", [range(6), pytest.param(range(6, 30), marks=pytest.mark.slow)], ids=str)
def test_a_true_caption_never_scores_below_any_corruption_of_it(judge: EmbeddedJudge, scenes: range) -> None:
    rng = np.random.default_rng(1 + scenes.start)
    for index in scenes:
        scene = sample_image_scene(32, index)
        facts = scene_facts(scene)
        reference = weak_caption(scene, rng)
        true = judge.answer(about(scene, full_caption(scene, rng), reference))
        slots = list(facts)
        for _ in range(6):
            slot = slots[int(rng.integers(len(slots)))]
            others = {key: value for key, value in facts.items() if key != slot}
            fewer = describe_image(others, rng)
            wrong = describe_image(others | dict([wrong_claim(slot, facts[slot], rng)]), rng)
            false = describe_image(dict([wrong_claim(slot, facts[slot], rng)]), rng)
            hedged = f"{full_caption(scene, rng)} {false}"
            for caption in (wrong, fewer, hedged, wrong[:-5], f"{wrong} All details are described."):
                answer = judge.answer(about(scene, caption, reference))
                assert all(a <= b for a, b in zip(scores(answer), scores(true), strict=True)), (
                    caption,
                    reference,
                )


@pytest.mark.slow
def test_schemes_earn_less_than_an_honest_caption_of_average_worth(judge: EmbeddedJudge) -> None:
    """What a policy might find instead of describing, averaged over scenes and weak references."""
    rng = np.random.default_rng(2)
    earned: dict[str, list[float]] = {}
    for index in range(40):
        scene = sample_image_scene(33, index)
        reference = weak_caption(scene, rng)
        full = full_caption(scene, rng)
        captions = {
            "full": full,
            "weak": weak_caption(scene, rng),
            "every place": " ".join(f"A large red circle is at the {place}." for place in IMAGE_PLACES),
            "every colour": " ".join(
                f"A {colour} object is at the {place}." for place in IMAGE_PLACES for colour in COLOURS
            ),
            "background only": describe_image({("scene", "background"): scene.background}, rng),
            "one far guess": "A red object is at the top center.",
            "true, thrice": f"{full} {full} {full}",
            "true, with praise": f"{full} Every detail has been described accurately.",
            "true, both sizes": full + " " + full.replace("large", "small"),
        }
        for name, caption in captions.items():
            earned.setdefault(name, []).append(reward(judge.answer(about(scene, caption, reference))))
    mean = {name: float(np.mean(values)) for name, values in earned.items()}
    assert mean["full"] > 0.97
    for name in ("every place", "every colour", "background only", "one far guess"):
        assert mean[name] < mean["weak"], mean
    for name in ("true, thrice", "true, with praise", "true, both sizes"):
        assert mean[name] < mean["full"] - 0.02, mean


def test_errors_of_the_reference_hurt_only_where_there_is_no_picture(judge: EmbeddedJudge) -> None:
    rng = np.random.default_rng(3)
    for index in range(10):
        scene = sample_image_scene(34, index)
        facts = scene_facts(scene)
        half = dict(
            wrong_claim(slot, value, rng) if k % 2 else (slot, value)
            for k, (slot, value) in enumerate(facts.items())
        )
        candidate, reference = full_caption(scene, rng), describe_image(half, rng)
        assert scores(judge.answer(about(scene, candidate, reference))) == [10, 10, 10]
        blind = judge.answer(body("image", None, candidate, reference))
        assert blind["Correctness"] in (4, 5, 6)
        assert scores(judge.answer(body("image", None, reference, reference))) == [10, 10, 10]


def test_a_reference_that_says_where_nothing_is_has_inventions_found(judge: EmbeddedJudge) -> None:
    for index in range(10):
        scene = sample_image_scene(39, index)
        filled = {thing.place for thing in scene.objects}
        empty = next((place for place in IMAGE_PLACES if place not in filled), None)
        if empty is None:
            continue
        told = full_caption(scene, np.random.default_rng(index))
        invented = f"{told} At the {empty} is a red circle."
        assert scores(judge.answer(about(scene, invented, told))) == [10, 10, 10]
        answered = f"{told}\nWhat is at the {empty}? Nothing."
        found = judge.answer(about(scene, invented, answered))
        assert isinstance(found["Correctness"], int)
        assert found["Correctness"] < 10
        assert f"says circle for the shape at the {empty}" in str(found["Analysis"])
        assert scores(judge.answer(about(scene, told, answered))) == [10, 10, 10]
        # The caption gains nothing by saying so itself.
        assert scores(judge.answer(about(scene, answered, answered)))[:2] == [10, 10]


def test_in_a_clip_a_reference_says_so_of_a_shot(judge: EmbeddedJudge) -> None:
    found = 0
    for index in range(12):
        scene = sample_video_scene(39, index)
        shot = scene.shots[0]
        places = {thing.place for thing in shot.objects}
        empty = next((place for place in VIDEO_PLACES if place not in places), None)
        if empty is None:
            continue
        found += 1
        start, end = shot.seconds
        told = full_caption(scene, np.random.default_rng(index))
        first, *others = told.splitlines()
        invented = "\n".join([f"{first} At the {empty} a red ring moves up.", *others])
        answered = f"{told}\nWhat is at the {empty} from {start:.1f} to {end:.1f} seconds? Nothing."
        unmarked = judge.answer(about(scene, invented, told))
        marked = judge.answer(about(scene, invented, answered))
        assert (unmarked["Correctness"], marked["Correctness"]) == (10, 9), (unmarked, marked)
        assert scores(judge.answer(about(scene, told, answered))) == [10, 10, 10]
        window = TimeWindow(start=start, end=end)
        assert judge.answer(about_window(scene, window, invented, told))["Correctness"] == 10
        local = judge.answer(about_window(scene, window, invented, answered))
        assert isinstance(local["Correctness"], int)
        assert local["Correctness"] < 10
    assert found > 3


def test_without_a_reference_the_judgement_is_coarse(judge: EmbeddedJudge) -> None:
    rng = np.random.default_rng(4)
    levels = set()
    for index in range(40):
        scene = sample_image_scene(35, index)
        full, weak = (
            judge.answer(about(scene, c, None)) for c in (full_caption(scene, rng), weak_caption(scene, rng))
        )
        assert (full["Correctness"], full["Completeness"]) == (8, 8)
        assert float(weak["Completeness"]) <= 8
        levels |= {weak["Correctness"], weak["Completeness"]}
        # A fine fact goes unnoticed.
        facts = scene_facts(scene)
        sizes = {s: wrong_value(s, v, rng) if s[-1] == "size" else v for s, v in facts.items()}
        assert scores(judge.answer(about(scene, describe_image(sizes, rng), None))) == scores(full)
    assert levels <= {2, 5, 8}


def test_video_timestamps_and_segmentation(judge: EmbeddedJudge) -> None:
    rng = np.random.default_rng(5)
    scenes = [
        scene
        for scene in (sample_video_scene(36, i) for i in range(50))
        if [shot.first for shot in scene.shots] == [0, 4]
    ]
    swapped: list[list[int]] = []
    for scene in scenes:
        facts = scene_facts(scene)
        reference = full_caption(scene, rng)
        shots = (((0.0, 2.0), (2.0, 6.0)), ((0.0, 1.0), (1.0, 6.0)), ((10.0, 12.0), (12.0, 14.0)))
        captions = [describe_video(facts, rng, segments=segments) for segments in shots]
        right, shifted, outside = (scores(judge.answer(about(scene, one, reference))) for one in captions)
        assert right == [10, 10, 10]
        assert shifted[0] < 5
        assert shifted[1:] == [10, 10]
        assert outside[0] == 0
        assert outside[1] <= 3
        rambling = judge.answer(about(scene, f"{reference} {'And so on. ' * 60}", reference))
        assert rambling["Reasonability"] in range(6)
        other = describe_video(facts, rng, segments=((2.0, 6.0), (0.0, 2.0)))
        swapped.append(scores(judge.answer(about(scene, other, reference))))
    assert len(swapped) > 5
    # Shots have some facts in common.
    assert np.mean(swapped, axis=0)[1:].max() < 4


@pytest.mark.parametrize("scenes", [range(4), pytest.param(range(4, 20), marks=pytest.mark.slow)], ids=str)
def test_a_segment_is_judged_by_its_frames_alone(judge: EmbeddedJudge, scenes: range) -> None:
    rng = np.random.default_rng(6 + scenes.start)
    for index in scenes:
        scene = sample_video_scene(37, index)
        reference = full_caption(scene, rng)
        lines = [line for line in reference.splitlines() if line.startswith("[")]
        for shot, line in zip(scene.shots, lines, strict=True):
            window = TimeWindow(start=shot.seconds[0], end=shot.seconds[1])
            assert scores(judge.answer(about_window(scene, window, line, reference))) == [10, 10, 10]
            bare = line.split("] ", 1)[1]
            assert scores(judge.answer(about_window(scene, window, bare, reference))) == [10, 10, 10]
            other = next(one for one in lines if one != line)
            assert scores(judge.answer(about_window(scene, window, other, reference))) == [0, 0, 0]
        whole = TimeWindow(start=0.0, end=VIDEO_SECONDS)
        every = "\n".join(lines)
        answer = judge.answer(about_window(scene, whole, every, reference))
        assert answer["Text Quality"] == 10
        assert (answer["Correctness"], answer["Completeness"]) == (10, 10)


def test_a_true_caption_is_right_about_every_window(judge: EmbeddedJudge) -> None:
    """Whatever happens before it, in it or after it."""
    rng = np.random.default_rng(8)
    for index in range(25):
        scene = sample_video_scene(44, index)
        full = full_caption(scene, rng)
        for start in rng.uniform(0, VIDEO_SECONDS - 2, 3):
            window = TimeWindow(start=float(start), end=float(start) + 2)
            answer = judge.answer(about_window(scene, window, full, full))
            assert (answer["Correctness"], answer["Completeness"]) == (10, 10), (window, answer, full)


def test_without_frames_the_reference_is_believed(judge: EmbeddedJudge) -> None:
    rng = np.random.default_rng(7)
    scene = sample_video_scene(38, 0)
    full = full_caption(scene, rng)
    assert scores(judge.answer(body("video_global", None, full, full))) == [10, 10, 10]
    window = TimeWindow(start=0.0, end=scene.shots[0].seconds[1])
    first = full.splitlines()[0]
    assert scores(judge.answer(body("video_segment", None, first, full, window))) == [10, 10, 10]


def test_answers_are_deterministic_and_independent_of_the_cache(judge: EmbeddedJudge) -> None:
    rng = np.random.default_rng(8)
    small = EmbeddedJudge(cache_size=1)
    for index in range(6):
        scene = sample_image_scene(39, index)
        request = about(scene, weak_caption(scene, rng), weak_caption(scene, rng))
        assert judge.answer(request) == small.answer(request) == EmbeddedJudge().answer(request)


def test_a_jpeg_is_judged_like_a_png(judge: EmbeddedJudge) -> None:
    rng = np.random.default_rng(9)
    scene = sample_image_scene(40, 1)
    caption, reference = weak_caption(scene, rng), weak_caption(scene, rng)
    jpeg = JudgeFrame(url=data_url(render_image(scene), "JPEG"))
    assert judge.answer(body("image", [jpeg], caption, reference)) == judge.answer(
        about(scene, caption, reference)
    )


def test_a_photograph_is_no_reason_to_fail(judge: EmbeddedJudge) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (300, 451, 3)).astype(np.uint8)
    request = body(
        "image", [JudgeFrame(url=data_url(photo))], "A red circle is at the top left.", "A cat on a mat."
    )
    assert all(0 <= score <= 10 for score in scores(judge.answer(request)))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.org/cat.png", "picture 1 is not a data URL"),
        ("data:image/png;base64,@@@@", "picture 1 cannot be decoded"),
        ("data:image/png;base64,aGVsbG8=", "picture 1 cannot be decoded"),
        (frames_of(sample_image_scene(0, 0))[0].url[:400], "picture 1 cannot be decoded"),
    ],
)
def test_an_unreadable_picture_is_named(judge: EmbeddedJudge, url: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        judge.answer(body("image", [JudgeFrame(url=url)], "A red circle is at the top left.", "ref"))


def test_the_analysis_names_the_problems_and_stays_short(judge: EmbeddedJudge) -> None:
    scene = sample_image_scene(41, 0)
    facts = scene_facts(scene)
    rng = np.random.default_rng(0)
    reference = full_caption(scene, rng)
    place = scene.objects[0].place
    wrong = wrong_value((place, "colour"), scene.objects[0].colour, rng)
    said = {slot: value for slot, value in facts.items() if slot[0] != "scene"} | {(place, "colour"): wrong}
    analysis = str(judge.answer(about(scene, describe_image(said, rng), reference))["Analysis"])
    assert f"says {wrong} for the colour at the {place}" in analysis
    assert "leaves out the background" in analysis
    repeated = full_caption(scene, rng)
    doing = str(judge.answer(about(scene, f"{repeated} {repeated} Blah blah.", reference))["Analysis"])
    assert doing.startswith("It repeats itself: ")
    assert "; has text that describes nothing: 'Blah blah.'" in doing
    everything = " ".join(f"A {c} object is at the {p}. {c}." for p in IMAGE_PLACES for c in COLOURS)
    assert len(str(judge.answer(about(scene, everything, reference))["Analysis"])) < 1000
