"""Captions of videos: said and read back, their segments, and what claims nothing."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.captions import sayable_facts
from vcap_jax.world.sentences import PLAIN, draw_wording
from vcap_jax.world.slots import video_slots
from vcap_jax.world.video_grammar import (
    NO_SHOT,
    describe_video,
    parse_segment,
    parse_video,
    say_shot,
    shot_of,
)
from vcap_jax.world.vocabulary import BACKGROUND, CUTS, SHOTS, VALUES, Claim, Facts, Slot

SHOT_TIMES = ((0.0, 2.0), (2.0, 4.0), (4.0, 6.0))
INSIDE: tuple[Slot, ...] = tuple(slot[1:] for slot in video_slots(1) if slot[0] == 0)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6, 1.0])
def test_a_caption_claims_exactly_what_was_to_be_said(share: float) -> None:
    rng = np.random.default_rng(round(100 * share))
    for number in range(60):
        times = SHOT_TIMES[: 2 + number % 2]
        facts = sayable_facts(video_slots(len(times)), share, rng)
        parsed = parse_video(describe_video(facts, rng, segments=times))
        claims = parsed.claims(times)
        assert dict(claims) == facts
        assert len(claims) == len(facts)
        assert all(sentence.claims for sentence in parsed.sentences)


def test_every_slot_can_be_said_with_every_value_in_every_wording() -> None:
    rng = np.random.default_rng(6)
    for slot in INSIDE:
        for value in VALUES[str(slot[-1])]:
            for _ in range(6):
                (sentence,) = say_shot({slot: value}, draw_wording(rng))
                assert [s.claims for s in parse_segment(sentence)] == [((slot, value),)], sentence


def test_the_plain_words_in_their_order() -> None:
    facts: Facts = {
        ("top left", "shape"): "circle",
        ("top left", "motion"): "left",
        ("top left", "event"): "changes",
        ("top left", "time"): "1.0",
        ("top left", "into"): "green",
        ("bottom right", "colour"): "blue",
        ("bottom right", "motion"): "still",
        ("bottom right", "event"): "appears",
        ("scene", "first"): "top left",
        ("scene", "camera"): "still",
        BACKGROUND: "navy",
    }
    assert say_shot(facts, PLAIN) == [
        "at the top left a circle moves left.",
        "the one at the top left turns green at 1.0 seconds.",
        "at the bottom right a blue object stays still.",
        "the one at the bottom right appears.",
        "the one at the top left acts first.",
        "the camera stays still.",
        "the background is navy.",
    ]


def test_the_whole_layout() -> None:
    facts: Facts = {(0, "scene", "background"): "navy", (2, "scene", "camera"): "zooms in", SHOTS: "three"}
    facts |= {CUTS[0]: "2.0", CUTS[1]: "4.0"}
    rng = np.random.default_rng(0)
    texts = {describe_video(facts, rng, segments=SHOT_TIMES) for _ in range(200)}
    assert (
        "[0.0 - 2.0] The background is navy.\n[4.0 - 6.0] The camera zooms in.\n"
        "Summary: there are three shots. The scene changes at 2.0 seconds. The scene changes again at 4.0 seconds."
    ) in texts
    assert len(texts) == 16  # two wordings each of background, camera, shots and cuts
    assert describe_video({}, rng, segments=SHOT_TIMES) == ""


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        (
            "A red circle moves up at the top left.",
            [
                (("top left", "shape"), "circle"),
                (("top left", "colour"), "red"),
                (("top left", "motion"), "up"),
            ],
        ),
        ("The object at the top left is at the top right.", []),
        (
            "The top left one vanishes at 1.0 seconds.",
            [(("top left", "event"), "disappears"), (("top left", "time"), "1.0")],
        ),
        ("The one at the top left changes its colour.", [(("top left", "event"), "changes")]),
        ("Something happens to the top left one at 1.0 seconds.", [(("top left", "time"), "1.0")]),
        ("The one at the top left ends up pink.", [(("top left", "into"), "pink")]),
        ("The first event is at the bottom left.", [(("scene", "first"), "bottom left")]),
        ("The camera is still.", [(("scene", "camera"), "still")]),
        ("The view pans right.", [(("scene", "camera"), "pans right")]),
        ("The scene has a grey background.", [(BACKGROUND, "gray")]),
        ("It appears at 1.0 seconds.", []),
        ("The one at the top left appears at one second.", []),
        ("The one at the top left appears at 1.0 seconds and disappears.", []),
        ("At the top left a red circle moves still.", []),
        ("At the top left a red circle moves left at 1.0 seconds.", []),
        ("At the top left is a striped red circle.", []),
        ("At the top center is a red circle.", []),
        ("There are two shots.", []),
        ("The light comes from the left.", []),
    ],
)
def test_what_a_segment_says(text: str, claims: list[Claim]) -> None:
    assert [claim for sentence in parse_segment(text) for claim in sentence.claims] == claims


def test_a_segment_is_read_with_or_without_its_header() -> None:
    sentence = "A red circle moves up at the top left."
    assert parse_segment(sentence) == parse_segment(f"[0.0 - 1.0] {sentence}")


def test_segments_summary_and_what_stands_before_them() -> None:
    caption = parse_video(
        "Here you go. The background is navy.\n"
        "[0.0 - 2.0] At the top left a red circle moves left. Nothing else.\n"
        "  [2.0 - 6.0] The background is white. A star is at the top center.\n"
        "Summary: the video has 2 shots. There is a cut at 2.0 seconds. The background is navy."
    )
    assert [(segment.start, segment.end) for segment in caption.segments] == [(0.0, 2.0), (2.0, 6.0)]
    assert caption.claims([(0.0, 2.0), (2.0, 6.0)]) == (
        ((0, "top left", "shape"), "circle"),
        ((0, "top left", "colour"), "red"),
        ((0, "top left", "motion"), "left"),
        ((1, "scene", "background"), "white"),
        (SHOTS, "two"),
        (CUTS[0], "2.0"),
    )
    assert len(caption.stray) == 2
    assert not any(sentence.claims for sentence in caption.stray)


def test_a_segment_is_about_the_shot_that_holds_more_than_half_of_it() -> None:
    assert shot_of(0.0, 2.0, SHOT_TIMES) == 0
    assert shot_of(1.5, 4.0, SHOT_TIMES) == 1
    assert shot_of(0.0, 4.0, SHOT_TIMES) == NO_SHOT  # half and half
    assert shot_of(4.0, 19.0, SHOT_TIMES) == NO_SHOT  # beyond the end
    assert shot_of(3.0, 3.0, SHOT_TIMES) == NO_SHOT
    assert shot_of(3.0, 2.0, SHOT_TIMES) == NO_SHOT


def test_claims_under_a_wrong_time_are_about_no_shot() -> None:
    caption = parse_video("[0.0 - 6.0] The background is navy.")
    assert caption.claims(SHOT_TIMES) == (((NO_SHOT, "scene", "background"), "navy"),)


def test_a_long_text_is_read_in_time_linear_in_it() -> None:
    for text in ("[0.0 - 1.0] a red " * 50_000, "[0.0 - 1.0] " + "the one at " * 50_000, "[ " * 100_000):
        assert parse_video(text).claims(SHOT_TIMES) == ()


def test_slots_that_cannot_be_said_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="is no slot of a shot"):
        describe_video({(0, "top left", "mark"): "4"}, rng, segments=SHOT_TIMES)
    with pytest.raises(ValueError, match="with 2 segments"):
        describe_video({(2, "top left", "shape"): "star"}, rng, segments=SHOT_TIMES[:2])
