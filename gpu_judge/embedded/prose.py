"""Text quality: how much of a caption's text describes, and describes something new. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vcap_jax.world.sentences import Sentence

META_COST = 3
REPETITION_COST = 1
CONTRADICTION_COST = 1

_ABOUT_THE_TEXT = re.compile(
    r"\b(?:i|i'm|we|you|your|my|me|please|sure|certainly|hope|thanks?|note|caption|description|score|scores|rating|"
    r"correct|correctness|complete|completeness|accurate|accurately|feel free|let me|instructions?|judge)\b",
    re.IGNORECASE,
)
# "Every ... described", in two searches: in one, each "every" of a long text would look through all that follows.
_QUANTITY = re.compile(r"\b(?:all|every|everything|nothing|no)\b", re.IGNORECASE)
_TOLD = re.compile(
    r"\b(?:described|details?|elements?|objects?|mentioned|covered|omitted|missing|overlooked)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Prose:
    """How a text reads.

    useful: share of its words in sentences that state something new.
    meta, repeated, junk: sentences about the text itself, sentences that say again what was said, sentences
        that state nothing the grammar knows.
    """

    useful: float
    meta: tuple[str, ...]
    repeated: tuple[str, ...]
    junk: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems in words, each kind once."""
        kinds = (
            ("speaks about the text", self.meta),
            ("repeats itself", self.repeated),
            ("has text that describes nothing", self.junk),
        )
        return tuple(
            f"{kind}: {_quoted(found[0])}{f' and {len(found) - 1} more' if len(found) > 1 else ''}"
            for kind, found in kinds
            if found
        )


def is_meta(text: str) -> bool:
    """Whether a text that claims nothing is about itself: its author, its reader, its completeness, its score."""
    if _ABOUT_THE_TEXT.search(text):
        return True
    quantity = _QUANTITY.search(text)
    return quantity is not None and _TOLD.search(text, quantity.end()) is not None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def read_prose(parts: Sequence[Sequence[Sentence]]) -> Prose:
    """Sorts the sentences of a text.

    parts: the sentences of each part of it (an image caption has one part, a video caption one for each
        segment and the summary). Saying the same in two parts is no repetition, as they speak about different
        times.
    """
    meta: list[str] = []
    repeated: list[str] = []
    junk: list[str] = []
    useful = total = 0
    for part in parts:
        seen: set[object] = set()
        for sentence in part:
            words = len(sentence.text.split())
            total += words
            if not sentence.claims:
                (meta if is_meta(sentence.text) else junk).append(sentence.text)
            elif seen.issuperset(sentence.claims):
                repeated.append(sentence.text)
            else:
                seen.update(sentence.claims)
                useful += words
    return Prose(
        useful=useful / total if total else 0.0, meta=tuple(meta), repeated=tuple(repeated), junk=tuple(junk)
    )


def text_quality(prose: Prose, contradictions: int) -> int:
    """0 to 10: the share of useful words, less a fixed cost for each lapse."""
    cost = (
        META_COST * len(prose.meta)
        + REPETITION_COST * len(prose.repeated)
        + CONTRADICTION_COST * contradictions
    )
    return max(math.floor(10 * prose.useful) - cost, 0)
