"""Who decides what, and in which order things are shown: functions of the seed, so that a reload changes nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from vcap_jax.human_eval.records import Item, Proposition

LETTERS = "ABCDEFGH"
"""What captions are called where their models must not be known."""


def assign(
    items: Sequence[str],
    annotators: Sequence[str],
    *,
    overlap: float,
    overlap_size: int,
    seed: int,
    load: Mapping[str, int] | None = None,
) -> dict[str, list[str]]:
    """The items of each annotator, in the order in which they are shown to that one.

    overlap: share of the items, rounded up, that go to ``overlap_size`` annotators each; the others go to one. The
    shares of annotators differ by one at most where ``load``, the items that they have already, does not say
    otherwise. Which items overlap depends on their ids and the seed, and so does the order.
    """
    drawn = sorted(items, key=lambda item: _key(seed, "overlap", item))
    # As the share is written: 0.07 of 100 is 7, and in floating point a little more.
    twice = set(drawn[: math.ceil(len(drawn) * Fraction(repr(float(overlap))))])
    given: dict[str, list[str]] = {annotator: [] for annotator in annotators}
    counts = {annotator: (load or {}).get(annotator, 0) for annotator in annotators}
    for item in drawn:
        size = min(overlap_size, len(annotators)) if item in twice else 1
        by_load = sorted(annotators, key=lambda name: (counts[name], _key(seed, "who", item, name)))
        for annotator in by_load[:size]:
            given[annotator].append(item)
            counts[annotator] += 1
    return {
        annotator: sorted(chosen, key=lambda item: _key(seed, "order", annotator, item))
        for annotator, chosen in given.items()
    }


def shown_order(item: Item, annotator: str, seed: int) -> tuple[str, ...]:
    """The models of an item in the order in which an annotator sees them, as A, B, C, ..."""
    return tuple(sorted(item.models, key=lambda model: _key(seed, "captions", annotator, item.id, model)))


def shown_propositions(
    propositions: Sequence[Proposition], order: Sequence[str], annotator: str, seed: int
) -> tuple[Proposition, ...]:
    """Propositions as an annotator gets them: by caption as it is shown, shuffled inside, so that nothing tells which
    caption one was found with."""
    place = {model: index for index, model in enumerate(order)}
    return tuple(
        sorted(
            propositions,
            key=lambda one: (place[one.model], _key(seed, "propositions", annotator, one.prop_id)),
        )
    )


def alias(seed: int, annotator: str, identity: str) -> str:
    """What the browser calls an item or a proposition, whose own id may name the model."""
    return _key(seed, "alias", annotator, identity)[:20]


def _key(seed: int, *parts: str) -> str:
    # Lengths before texts: "a", "bc" and "ab", "c" are different.
    told = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(f"{seed}|{told}".encode(), digest_size=16).hexdigest()
