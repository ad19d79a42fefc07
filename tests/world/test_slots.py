"""Slots in English, and slots that ask the same question."""

from __future__ import annotations

import pytest

from vcap_jax.world.slots import question_of, slot_words
from vcap_jax.world.vocabulary import (
    BACKGROUND,
    COLUMN_NEIGHBOURS,
    CUTS,
    DIRECTED,
    IMAGE_PLACES,
    LIGHT,
    OBJECTS,
    ROW_NEIGHBOURS,
    SHAPES,
    SHOTS,
    VALUES,
    VIDEO_PLACES,
    Slot,
)

OF_OBJECTS = ("shape", "colour", "size", "pattern", "direction", "mark", "inside")
OF_MOVING_OBJECTS = ("shape", "colour", "size", "motion", "event", "time", "into")


def image_slots() -> list[Slot]:
    slots: list[Slot] = [BACKGROUND, LIGHT, OBJECTS, *(("scene", shape, "count") for shape in SHAPES)]
    slots += [(place, kind) for place in IMAGE_PLACES for kind in OF_OBJECTS]
    slots += [(*pair, "level") for pair in ROW_NEIGHBOURS] + [(*pair, "side") for pair in COLUMN_NEIGHBOURS]
    return slots + [(one, other, "overlap") for one in IMAGE_PLACES for other in IMAGE_PLACES if one != other]


def video_slots() -> list[Slot]:
    slots: list[Slot] = [SHOTS, *CUTS]
    for shot in range(3):
        slots += [(shot, place, kind) for place in VIDEO_PLACES for kind in OF_MOVING_OBJECTS]
        slots += [(shot, "scene", kind) for kind in ("background", "camera", "first")]
    return slots


@pytest.mark.parametrize("slots", [image_slots(), video_slots()], ids=["image", "video"])
def test_each_slot_has_words_of_its_own(slots: list[Slot]) -> None:
    words = [slot_words(slot) for slot in slots]
    assert len(set(words)) == len(slots)
    assert all(word.startswith("the ") and "{" not in word for word in words)


def test_every_kind_of_value_has_a_slot_here() -> None:
    assert {str(slot[-1]) for slot in image_slots() + video_slots()} == VALUES.keys()
    assert set(DIRECTED) < set(SHAPES)


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (("top left", "colour"), "the colour at the top left"),
        ((1, "top left", "colour"), "the colour at the top left in shot 2"),
        ((-1, "top left", "colour"), "the colour at the top left"),
        (("scene", "cross", "count"), "the number of crosses"),
        ((0, "bottom right", "time"), "the time of the event at the bottom right in shot 1"),
        ((2, "scene", "camera"), "the camera in shot 3"),
        (
            ("top left", "top center", "level"),
            "the height of the one at the top left beside the one at the top center",
        ),
    ],
)
def test_words(slot: Slot, words: str) -> None:
    assert slot_words(slot) == words


def test_only_who_covers_whom_can_be_asked_in_two_ways() -> None:
    by_question: dict[Slot, list[Slot]] = {}
    for slot in image_slots() + video_slots():
        by_question.setdefault(question_of(slot), []).append(slot)
    for question, slots in by_question.items():
        assert question in slots
        if len(slots) > 1:
            (one, other, kind), *second = slots
            assert kind == "overlap"
            assert second == [(other, one, kind)]
    assert sum(len(slots) == 2 for slots in by_question.values()) == 9 * 8 / 2
