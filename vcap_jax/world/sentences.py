"""What captions of the world are made of: sentences with claims, and the wording that a caption keeps to.

Captions are read sentence by sentence. A sentence either has exactly one of the grammar's forms or claims nothing: half
a sentence, or one with a word too many, says nothing. Whoever writes keeps one wording through a caption; whoever reads
knows all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vcap_jax.world.vocabulary import NUMBERS, Claim

Claims = Callable[[re.Match[str]], Sequence[Claim] | None]
"""What a match claims; None if it is no sentence of the world after all."""
Reader = tuple[Iterable[str], Claims]
"""Templates of sentences, such as ``"the background is {colour}."``, and what those of one claim."""
Form = tuple[re.Pattern[str], Claims]
"""One form of sentence: the pattern that it matches as a whole, and what a match claims."""


@dataclass(frozen=True)
class Sentence:
    """A piece of a caption and what it claims (nothing, if the grammar does not know its form).

    In a segment of a video caption the slots of ``claims`` lack the shot, which follows from the segment's times.
    """

    text: str
    claims: tuple[Claim, ...]


TOPICS = (
    *("object", "size", "pattern", "direction", "mark", "inside", "gray", "one", "relation", "overlap"),
    *("number", "count", "light", "background", "event", "first", "camera", "shots", "cut"),
)
"""What there are several wordings for."""
_DRAWS = 6
"""Every topic has one, two or three wordings, so that each is as likely as the others."""


@dataclass(frozen=True)
class Wording:
    """Which wording of each topic a caption keeps to: numbers in the order of ``TOPICS``; 0 is the plainest."""

    draws: tuple[int, ...] = (0,) * len(TOPICS)

    def of(self, topic: str, forms: Sequence[str]) -> str:
        """The caption's choice among the forms of a topic. Raises ValueError unless there are one, two or three."""
        if not forms or _DRAWS % len(forms):
            raise ValueError(f"{topic} has {len(forms)} wordings: give it one, two or three")
        return forms[self.draws[TOPICS.index(topic)] % len(forms)]


PLAIN = Wording()


def draw_wording(rng: np.random.Generator) -> Wording:
    """A wording, uniformly; takes the same draws from ``rng`` whatever is to be said."""
    return Wording(tuple(rng.integers(_DRAWS, size=len(TOPICS)).tolist()))


def alternatives(words: Iterable[str]) -> str:
    """A regular expression for any one of ``words``."""
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


def number_of(word: str) -> str:
    """``"six"`` or ``"6"`` -> ``"six"``."""
    return NUMBERS[int(word)] if word.isdigit() else word


NUMBER = f"{alternatives(NUMBERS[2:])}|[2-9]"
"""Numbers that captions may give, from two on, in words or as a digit."""
REFERENCES = ("the one at the {place}", "the {place} one", "the object at the {place}")
"""How a sentence points to an object that another sentence has described."""


def reference_pattern(name: str, places: Iterable[str]) -> str:
    """A regular expression for any of ``REFERENCES``, whose place is the group ``name``."""
    return (
        rf"the (?P<{name}_at>(?:one|object) at the )?(?P<{name}>{alternatives(places)})"
        rf"(?({name}_at)| (?:one|object))"
    )


def capitalised(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def split_sentences(text: str) -> list[str]:
    """Pieces of a text, each up to and including its full stop; the last may lack one, none is blank.

    A full stop before a digit belongs to a number.
    """
    return [piece.strip() for piece in re.split(r"(?<=[.!?])(?![\d.!?])", text) if piece.strip()]


def read_sentences(text: str, forms: Sequence[Form]) -> tuple[Sentence, ...]:
    """The sentences of a text with what they claim by the first of ``forms`` that each has.

    A sentence may run over several lines. Where it claims nothing as a whole and one of its lines does, the lines are
    sentences of their own: what stands on the line before a sentence does not hide it.
    """
    found: list[Sentence] = []
    for piece in split_sentences(text):
        whole = Sentence(piece, _claims(piece, forms))
        lines = [Sentence(line.strip(), _claims(line, forms)) for line in piece.splitlines() if line.strip()]
        alone = not whole.claims and len(lines) > 1 and any(line.claims for line in lines)
        found += lines if alone else [whole]
    return tuple(found)


def normalised(sentence: str) -> str:
    """Lower case, single spaces."""
    return " ".join(sentence.lower().split())


def distinct(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims without repetitions, in order of first appearance."""
    return tuple(dict.fromkeys(claims))


def forms_of(parts: Mapping[str, str], readers: Iterable[Reader]) -> tuple[Form, ...]:
    """The forms of sentences of all ``readers``. parts: regular expressions for what templates leave open."""
    return tuple(
        (re.compile(template.replace(".", r"\.").format(**parts)), claims)
        for templates, claims in readers
        for template in templates
    )


def _claims(sentence: str, forms: Sequence[Form]) -> tuple[Claim, ...]:
    """Nothing where the sentence has none of the forms."""
    plain = normalised(sentence)
    for pattern, claims in forms:
        if (match := pattern.fullmatch(plain)) is not None and (found := claims(match)) is not None:
            return tuple(found)
    return ()
