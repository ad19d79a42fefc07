"""Captions of images: facts to English and back.

One sentence per object in one of three forms, one sentence for the background in one of two. Any subset of an
object's facts can be said: "At the top left is a large red circle.", "At the top left is a red object.".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vcap_jax.world.scenes import BACKGROUNDS, IMAGE_PLACES
from vcap_jax.world.sentences import (
    NOUN_PHRASE,
    Claim,
    Sentence,
    Slot,
    alternatives,
    capitalised,
    distinct,
    normalised,
    noun_claims,
    noun_phrase,
    read_sentences,
)

IMAGE_PROMPT = "Describe the image."
"""What the tiny backbone is asked about an image."""

ATTRIBUTES = ("shape", "colour", "size")
BACKGROUND: Slot = ("scene", "background")

_OBJECT_FORMS = (
    "at the {place} there is {thing}.",
    "at the {place} is {thing}.",
    "the {place} shows {thing}.",
)
"""What the world says. The place comes first: whoever writes word by word then knows where to look for the rest."""
_UNDERSTOOD_FORMS = ("{thing} is at the {place}.", "there is {thing} at the {place}.")
"""What it only understands."""
_BACKGROUND_FORMS = ("the background is {colour}.", "the scene has a {colour} background.")

_PLACE = rf"(?P<place>{alternatives(IMAGE_PLACES)})"
_OBJECT_PATTERNS = tuple(
    re.compile(form.replace(".", r"\.").format(thing=NOUN_PHRASE, place=_PLACE))
    for form in (*_OBJECT_FORMS, *_UNDERSTOOD_FORMS)
)
_BACKGROUND_PATTERNS = tuple(
    re.compile(
        form.replace(".", r"\.").format(colour=rf"(?P<background>{alternatives((*BACKGROUNDS, 'grey'))})")
    )
    for form in _BACKGROUND_FORMS
)


@dataclass(frozen=True)
class ImageCaption:
    """A caption as the grammar reads it."""

    sentences: tuple[Sentence, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Everything the caption claims, each claim once; a slot may occur with several values."""
        return distinct(claim for sentence in self.sentences for claim in sentence.claims)


def describe_image(facts: Mapping[Slot, str], rng: np.random.Generator) -> str:
    """Says ``facts`` (true or not) in English.

    Args:
        facts: (place, "shape" | "colour" | "size") and ("scene", "background") -> value; any subset.
        rng: chooses among the forms and where the background comes. One form is kept for a whole caption;
            objects come in reading order.

    Returns:
        A caption whose parse claims exactly ``facts``; empty if there are none.
    """
    form = _OBJECT_FORMS[int(rng.integers(len(_OBJECT_FORMS)))]
    background_form = _BACKGROUND_FORMS[int(rng.integers(len(_BACKGROUND_FORMS)))]
    background_first = rng.random() < 0.25
    sentences = []
    for place in IMAGE_PLACES:
        attributes = {key: facts[place, key] for key in ATTRIBUTES if (place, key) in facts}
        if attributes:
            sentences.append(form.format(thing=noun_phrase(attributes), place=place))
    if BACKGROUND in facts:
        sentences.insert(
            0 if background_first else len(sentences), background_form.format(colour=facts[BACKGROUND])
        )
    return " ".join(map(capitalised, sentences))


def _read(sentence: str) -> tuple[Claim, ...]:
    plain = normalised(sentence)
    for pattern in _OBJECT_PATTERNS:
        if match := pattern.fullmatch(plain):
            return tuple(noun_claims(match["place"], match, ATTRIBUTES))
    for pattern in _BACKGROUND_PATTERNS:
        if match := pattern.fullmatch(plain):
            return ((BACKGROUND, match["background"].replace("grey", "gray")),)
    return ()


def parse_image(text: str) -> ImageCaption:
    """Reads any text as a caption; a sentence that is not one of the grammar's forms claims nothing."""
    return ImageCaption(read_sentences(text, _read))
