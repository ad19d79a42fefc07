"""What is said about slots themselves: which there are, which of them ask the same question, and what they are called
in English."""

from __future__ import annotations

from vcap_jax.world import vocabulary as words
from vcap_jax.world.vocabulary import Claim, Slot

IMAGE_SLOTS: tuple[Slot, ...] = (
    *((place, kind) for place in words.IMAGE_PLACES for kind in words.IMAGE_ATTRIBUTES),
    *((*pair, kind) for kind, pairs, *_ in words.NEIGHBOURS for pair in pairs),
    *((one, other, "overlap") for one in words.IMAGE_PLACES for other in words.IMAGE_PLACES if one != other),
    words.OBJECTS,
    *(("scene", shape, "count") for shape in words.SHAPES),
    words.LIGHT,
    words.BACKGROUND,
)
"""All slots of images."""
_OPPOSITE = {value: other for pair in (words.LEVELS, words.SIDES) for value, other in (pair, pair[::-1])}
_PLACES = frozenset(words.IMAGE_PLACES) | frozenset(words.VIDEO_PLACES)

_NAMED = {
    words.BACKGROUND: "the background",
    words.LIGHT: "the side of the light",
    words.OBJECTS: "the number of objects",
    words.SHOTS: "the number of shots",
    words.CUTS[0]: "the time of the first cut",
    words.CUTS[1]: "the time of the second cut",
}
_OF_AN_OBJECT = {
    "inside": "the colour inside the one at the {place}",
    "event": "the event at the {place}",
    "time": "the time of the event at the {place}",
    "into": "the new colour at the {place}",
}
_OF_A_SHOT = {"background": "the background", "camera": "the camera", "first": "the first event"}
_OF_A_PAIR = {
    "level": "the height of the one at the {place} beside the one at the {other}",
    "side": "the sideways place of the one at the {place} beside the one at the {other}",
    "overlap": "the one at the {place} in front of the one at the {other}",
}


def video_slots(shots: int) -> tuple[Slot, ...]:
    """All slots of videos of so many shots."""
    kinds = (*words.VIDEO_ATTRIBUTES, "motion", *words.HAPPENINGS)
    inside = [(place, kind) for place in words.VIDEO_PLACES for kind in kinds]
    inside += [("scene", kind) for kind in ("first", "camera", "background")]
    return (*((shot, *slot) for shot in range(shots) for slot in inside), words.SHOTS, *words.CUTS)


def compared(one: str | int, other: str | int, value: str) -> Claim | None:
    """The claim that what is at one place is ``value``, of ``LEVELS`` or ``SIDES``, than what is at another.

    The slot has the two in the vocabulary's order, whichever is named first. None unless they are neighbours.
    """
    for kind, pairs, *_, values in words.NEIGHBOURS:
        if value in values and (one, other) in pairs:
            return (one, other, kind), value
        if value in values and (other, one) in pairs:
            return (other, one, kind), _OPPOSITE[value]
    return None


def question_of(slot: Slot) -> Slot:
    """The slot by which a question is known: equal for slots of which at most one can be filled.

    Of two objects either the first covers part of the second, or the other way round. Any other question has one slot.
    """
    if slot[-1] != "overlap":
        return slot
    one, other, kind = slot
    return (one, other, kind) if _order(one) <= _order(other) else (other, one, kind)


def _order(place: str | int) -> int:
    return words.IMAGE_PLACES.index(str(place))


def object_of(slot: Slot) -> Slot | None:
    """Whose slot it is if it is one object's: its place, behind the shot in a video. None for pairs and scenes."""
    owner = slot[:-1]
    places = [part for part in owner if part in _PLACES]
    return owner if len(places) == 1 else None


def slot_words(slot: Slot) -> str:
    """A slot in English, without its value: "the colour at the top left in shot 2".

    A shot that is none (``NO_SHOT``) is left out.
    """
    if slot in _NAMED:
        return _NAMED[slot]
    if isinstance(slot[0], int):
        _, owner, kind = slot
        phrase = _OF_A_SHOT[str(kind)] if owner == "scene" else _of_object(slot[1:])
        return f"{phrase} in shot {slot[0] + 1}" if slot[0] >= 0 else phrase
    if slot[-1] == "count":
        return f"the number of {slot[1]}{'es' if slot[1] == 'cross' else 's'}"
    if len(slot) == 3:
        return _OF_A_PAIR[str(slot[-1])].format(place=slot[0], other=slot[1])
    return _of_object(slot)


def _of_object(slot: Slot) -> str:
    place, kind = slot
    return _OF_AN_OBJECT.get(str(kind), f"the {kind} at the {{place}}").format(place=place)
