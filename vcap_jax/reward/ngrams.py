"""CIDEr-D: consensus of a caption with references by n-grams weighted with their document frequencies. Pure.

Vedantam et al. 2015, with the clipping and the length penalty of the public implementation (coco-caption's CIDEr-D).
Where that one runs the Penn Treebank tokenizer, which is a Java program, :func:`tokens` is plainer: words and numbers
in lower case, an apostrophe inside a word kept, punctuation dropped; in Chinese and Japanese, characters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vcap_jax.system.words import UNSPACED

LONGEST = 4
"""n-grams of 1 to this many tokens."""
SIGMA = 6.0
"""Tokens by which lengths may differ before the penalty bites."""
SCALE = 10.0
"""The most that a caption earns: one that equals its only reference, where that has ``LONGEST`` tokens and, of each
length, an n-gram that some document lacks."""

Gram = tuple[str, ...]
_TOKEN = re.compile(rf"\d+(?:\.\d+)?|[{UNSPACED}]|[^\W_{UNSPACED}]+(?:['\u2019][^\W_{UNSPACED}]+)*")


def tokens(text: str) -> list[str]:
    """The words and numbers of a text."""
    return _TOKEN.findall(text.lower().replace("\u2019", "'"))


def ngram_counts(text: str) -> Counter[Gram]:
    """How often each n-gram of 1 to ``LONGEST`` tokens occurs."""
    words = tokens(text)
    return Counter(
        tuple(words[first : first + n]) for n in range(1, LONGEST + 1) for first in range(len(words) - n + 1)
    )


@dataclass(frozen=True, kw_only=True)
class _Vector:
    """tf-idf by n-gram, its norm for each n, and the number of bigrams, which stands for the length."""

    weights: Mapping[Gram, float]
    norms: Sequence[float]
    length: int


class CiderD:
    """The score with the document frequencies of a pool.

    pool: the references of each sample; a sample counts once for an n-gram, however many of its references have it.
    Raises ValueError for a pool of fewer than two samples, whose n-grams all weigh nothing.
    """

    def __init__(self, pool: Iterable[Sequence[str]]) -> None:
        self._frequencies: Counter[Gram] = Counter()
        documents = 0
        for references in pool:
            self._frequencies.update({gram for text in references for gram in ngram_counts(text)})
            documents += 1
        if documents < 2:
            raise ValueError(
                f"CIDEr needs the references of two samples at least to tell common words from rare ones; the pool "
                f"has {documents}"
            )
        self._log_documents = math.log(documents)

    def score(self, caption: str, references: Sequence[str]) -> float:
        """From 0 to ``SCALE``, the mean over the references. Raises ValueError without any."""
        if not references:
            raise ValueError("CIDEr compares with references, and there are none")
        mine = self._vector(caption)
        return SCALE * sum(self._similarity(mine, self._vector(one)) for one in references) / len(references)

    def _vector(self, text: str) -> _Vector:
        counts = ngram_counts(text)
        weights = {
            gram: count * (self._log_documents - math.log(max(1, self._frequencies[gram])))
            for gram, count in counts.items()
        }
        squares = [0.0] * LONGEST
        for gram, weight in weights.items():
            squares[len(gram) - 1] += weight * weight
        length = sum(count for gram, count in counts.items() if len(gram) == 2)
        return _Vector(weights=weights, norms=[math.sqrt(square) for square in squares], length=length)

    @staticmethod
    def _similarity(caption: _Vector, reference: _Vector) -> float:
        products = [0.0] * LONGEST
        for gram, weight in caption.weights.items():
            other = reference.weights.get(gram, 0.0)
            # More often than in the reference is no gain.
            products[len(gram) - 1] += min(weight, other) * other
        penalty = math.exp(-((caption.length - reference.length) ** 2) / (2 * SIGMA**2))
        norms = [a * b for a, b in zip(caption.norms, reference.norms, strict=True)]
        return penalty * sum(p / n for p, n in zip(products, norms, strict=True) if n > 0) / LONGEST
