"""What captions of the world are made of: slots, claims, noun phrases and sentences.

A slot is a question that the picture answers, ``("top left", "colour")`` in an image, ``(0, "top left",
"motion")`` in the first shot of a video; a claim is a slot with an answer. Captions are read sentence by
sentence, and a sentence either has exactly one of the grammar's forms or says nothing: half a sentence, or a
sentence with one word too many, makes no claim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vcap_jax.world.scenes import COLOURS, SHAPES, SIZES

Slot = tuple[str | int, ...]
Claim = tuple[Slot, str]
Facts = dict[Slot, str]
"""Slot -> value: at most one answer to each question."""


@dataclass(frozen=True)
class Sentence:
    """A piece of a caption and what it claims (nothing, if the grammar does not know its form).

    In a video caption the slots of ``claims`` lack the shot, which follows from the segment around the
    sentence.
    """

    text: str
    claims: tuple[Claim, ...]


def alternatives(words: Iterable[str]) -> str:
    """A regular expression for any one of ``words``."""
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


NOUN_PHRASE = (
    rf"an? (?:(?P<size>{alternatives(SIZES)}) )?(?:(?P<colour>{alternatives(COLOURS)}) )?"
    rf"(?P<shape>{alternatives((*SHAPES, 'object'))})"
)


def noun_phrase(attributes: dict[str, str]) -> str:
    """``{"size": "large", "colour": "red"}`` -> ``"a large red object"``."""
    words = [attributes[key] for key in ("size", "colour") if key in attributes]
    words.append(attributes.get("shape", "object"))
    return f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)}"


def noun_claims(place: str, match: re.Match[str], attributes: Iterable[str]) -> list[Claim]:
    """Claims of a matched ``NOUN_PHRASE`` about the object at ``place``; "object" claims no shape."""
    found = match.groupdict()
    return [
        ((place, attribute), found[attribute])
        for attribute in attributes
        if found.get(attribute) and found[attribute] != "object"
    ]


def capitalised(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def split_sentences(text: str) -> list[str]:
    """Pieces of a text, each up to and including its full stop; the last piece may lack one. No piece is
    blank.

    A full stop before a digit belongs to a number.
    """
    return [piece.strip() for piece in re.split(r"(?<=[.!?])(?![\d.!?])", text) if piece.strip()]


def read_sentences(text: str, read: Callable[[str], tuple[Claim, ...]]) -> tuple[Sentence, ...]:
    """The sentences of a text with their claims, as ``read`` finds them in one.

    A sentence may run over several lines. Where it claims nothing as a whole and one of its lines does, the lines are
    sentences of their own: what stands on the line before a sentence does not hide it.
    """
    found: list[Sentence] = []
    for piece in split_sentences(text):
        whole = Sentence(piece, read(piece))
        lines = [Sentence(line.strip(), read(line)) for line in piece.splitlines() if line.strip()]
        alone = not whole.claims and len(lines) > 1 and any(line.claims for line in lines)
        found += lines if alone else [whole]
    return tuple(found)


def normalised(sentence: str) -> str:
    """Lower case, single spaces."""
    return " ".join(sentence.lower().split())


def distinct(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims without repetitions, in order of first appearance."""
    return tuple(dict.fromkeys(claims))
