"""Captions of images: facts to English and back.

One sentence for all that is said of an object, one short sentence for every other fact. Any subset of the facts can be
said:

    At the top left is a large striped red arrow pointing up. At the top center is a green circle.
    The one at the top left is higher than the one at the top center. There are six objects.
    Two of them are circles. The light comes from the left. The background is navy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from vcap_jax.world import vocabulary as words
from vcap_jax.world.asking import take_answers
from vcap_jax.world.sentences import (
    NUMBER,
    REFERENCES,
    Reader,
    Sentence,
    Wording,
    alternatives,
    capitalised,
    distinct,
    draw_wording,
    forms_of,
    number_of,
    read_sentences,
    reference_pattern,
    say_thing,
    thing_claims,
)
from vcap_jax.world.slots import IMAGE_SLOTS, compared
from vcap_jax.world.vocabulary import Claim, Slot

IMAGE_PROMPT = "Describe the image."
"""What the tiny policy is asked about an image."""

OBJECT_FORMS = (
    "at the {place} is {thing}.",
    "the {place} shows {thing}.",
    "at the {place} there is {thing}.",
)
"""What is written. The place comes first: whoever writes word by word then knows where to look for the rest."""
UNDERSTOOD_OBJECT_FORMS = ("{thing} is at the {place}.", "there is {thing} at the {place}.")
_RELATION_FORMS = ("{a} is {value} than {b}.", "{a} lies {value} than {b}.")
_OVERLAP_FORMS = ("{a} covers part of {b}.", "{a} partly hides {b}.")
_UNDERSTOOD_OVERLAP_FORMS = ("{b} is partly covered by {a}.", "{b} is partly hidden by {a}.")
_OBJECTS_FORMS = ("there are {number} objects.", "{number} objects are shown.")
_COUNT_FORMS = ("{number} of them are {shapes}.", "there are {number} {shapes}.")
_LIGHT_FORMS = ("the light comes from {side}.", "light falls from {side}.")
_BACKGROUND_FORMS = ("the background is {colour}.", "it has a {colour} background.")
_UNDERSTOOD_BACKGROUND_FORMS = ("the scene has a {colour} background.",)

_SHAPE_OF = {plural: shape for shape, plural in words.PLURALS.items()}
_SIDES_OF_LIGHT = {light: f"the {light}" if light in ("left", "right") else light for light in words.LIGHTS}
_LIGHT_OF = {wording: light for light, wording in _SIDES_OF_LIGHT.items()}
_PAIRS = {
    **{kind: pairs for kind, pairs, *_ in words.NEIGHBOURS},
    "overlap": tuple((a, b) for a in words.IMAGE_PLACES for b in words.IMAGE_PLACES if a != b),
}
BACKGROUND_WORDS = alternatives((*words.BACKGROUNDS, "grey"))
"""A regular expression for the name of a background."""
_BACKGROUND_FIRST = 0.25


def say_background(value: str, wording: Wording) -> str:
    """The sentence about the background, without a capital."""
    colour = wording.of("gray", ("gray", "grey")) if value == "gray" else value
    return wording.of("background", _BACKGROUND_FORMS).format(colour=colour)


def describe_image(facts: Mapping[Slot, str], rng: np.random.Generator) -> str:
    """A caption that claims exactly ``facts``, true or not; empty if there are none.

    facts: any subset of an image's slots (see ``vocabulary``). Objects come in reading order, then what stands between
    them, then numbers, light and background. rng: chooses the wording, which is kept for the whole caption, and whether
    the background comes first. Raises ValueError for a slot that an image does not have.
    """
    wording = draw_wording(rng)
    background_first = rng.random() < _BACKGROUND_FIRST
    return " ".join(map(capitalised, say_image(facts, wording, background_first)))


def say_image(facts: Mapping[Slot, str], wording: Wording, background_first: bool = False) -> list[str]:
    """The sentences of ``describe_image`` in a given wording, without capitals."""
    left = dict(facts)
    sentences = []
    for place in words.IMAGE_PLACES:
        attributes = {key: left.pop((place, key)) for key in words.IMAGE_ATTRIBUTES if (place, key) in left}
        if attributes:
            thing = say_thing(attributes, wording)
            sentences.append(wording.of("object", OBJECT_FORMS).format(place=place, thing=thing))
    one = wording.of("one", REFERENCES)
    for kind, pairs in _PAIRS.items():
        told = wording.of(
            *(("overlap", _OVERLAP_FORMS) if kind == "overlap" else ("relation", _RELATION_FORMS))
        )
        for first, second in pairs:
            if (first, second, kind) in left:
                a, b = one.format(place=first), one.format(place=second)
                sentences.append(told.format(a=a, b=b, value=left.pop((first, second, kind))))
    if words.OBJECTS in left:
        sentences.append(wording.of("number", _OBJECTS_FORMS).format(number=left.pop(words.OBJECTS)))
    for shape in words.SHAPES:
        if ("scene", shape, "count") in left:
            number = left.pop(("scene", shape, "count"))
            told = wording.of("count", _COUNT_FORMS)
            sentences.append(told.format(number=number, shapes=words.PLURALS[shape]))
    if words.LIGHT in left:
        side = _SIDES_OF_LIGHT[left.pop(words.LIGHT)]
        sentences.append(wording.of("light", _LIGHT_FORMS).format(side=side))
    if words.BACKGROUND in left:
        said = say_background(left.pop(words.BACKGROUND), wording)
        sentences.insert(0 if background_first else len(sentences), said)
    if left:
        raise ValueError(f"{next(iter(left))!r} is no slot of an image: see vocabulary.py for those that are")
    return sentences


@dataclass(frozen=True)
class ImageCaption:
    """A caption as the grammar reads it."""

    sentences: tuple[Sentence, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Everything the caption claims, each claim once; a slot may occur with several values."""
        return distinct(claim for sentence in self.sentences for claim in sentence.claims)

    @property
    def empty(self) -> tuple[Slot, ...]:
        """Whose slots (see ``object_of``) it says cannot be filled, as nothing is there."""
        return tuple((sentence.empty,) for sentence in self.sentences if sentence.empty)


def parse_image(text: str) -> ImageCaption:
    """Reads any text as a caption; a sentence that is not one of the grammar's forms, nor a question about images with
    its answer, claims nothing."""
    told, answers = take_answers(text, timed=False)
    answered = (sentence for one in answers for sentence in one.sentences(_FORMS, _SLOTS))
    return ImageCaption((*read_sentences(told, _FORMS), *answered))


def _relation_claims(match: re.Match[str]) -> list[Claim] | None:
    """Neighbours alone are compared."""
    value = match["value"].replace("farther", "further").replace("to the ", "")
    claim = compared(match["a"], match["b"], value)
    return None if claim is None else [claim]


_PARTS = {
    "place": rf"(?P<place>{alternatives(words.IMAGE_PLACES)})",
    "thing": r"(?P<thing>an? [a-z0-9 ]+)",
    "a": reference_pattern("a", words.IMAGE_PLACES),
    "b": reference_pattern("b", words.IMAGE_PLACES),
    "value": rf"(?P<value>{alternatives(words.LEVELS)}|(?:further|farther) (?:to the )?(?:left|right))",
    "number": rf"(?P<number>{NUMBER})",
    "shapes": rf"(?P<shapes>{alternatives(_SHAPE_OF)})",
    "side": rf"(?P<side>{alternatives(_LIGHT_OF)})",
    "colour": rf"(?P<background>{BACKGROUND_WORDS})",
}
READS_BACKGROUND: Reader = (
    (*_BACKGROUND_FORMS, *_UNDERSTOOD_BACKGROUND_FORMS),
    lambda match: [(words.BACKGROUND, match["background"].replace("grey", "gray"))],
)
_READERS: tuple[Reader, ...] = (
    ((*OBJECT_FORMS, *UNDERSTOOD_OBJECT_FORMS), partial(thing_claims, kinds=words.IMAGE_ATTRIBUTES)),
    (_RELATION_FORMS, _relation_claims),
    (
        (*_OVERLAP_FORMS, *_UNDERSTOOD_OVERLAP_FORMS),
        lambda match: None if match["a"] == match["b"] else [((match["a"], match["b"], "overlap"), "covers")],
    ),
    (_OBJECTS_FORMS, lambda match: [(words.OBJECTS, number_of(match["number"]))]),
    (
        _COUNT_FORMS,
        lambda match: [(("scene", _SHAPE_OF[match["shapes"]], "count"), number_of(match["number"]))],
    ),
    (_LIGHT_FORMS, lambda match: [(words.LIGHT, _LIGHT_OF[match["side"]])]),
    READS_BACKGROUND,
)
_FORMS, _SLOTS = forms_of(_PARTS, _READERS), frozenset(IMAGE_SLOTS)
