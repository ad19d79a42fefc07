"""Who decides what, and how it is shown to one annotator: captions without their models, in an order of this one's own.

Items and propositions go by aliases, since their own ids may name a model; captions are A, B, C, ... All of it follows
from the study's seed and the annotator's name, so a reload changes nothing, and what was shown can be read back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from vcap_jax.human_eval.errors import RuleBroken
from vcap_jax.human_eval.protocol import Ranking
from vcap_jax.human_eval.records import Item, Proposition
from vcap_jax.human_eval.study import Study
from vcap_jax.system.digests import digest_of

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


@dataclass(frozen=True)
class AnnotatorView:
    """The study as one annotator sees it."""

    study: Study
    annotator: str

    @cached_property
    def items(self) -> Mapping[str, str]:
        """Alias to item."""
        return {self.alias(item): item for item in self.study.items}

    def alias(self, identity: str) -> str:
        """What the browser calls an item or a proposition."""
        return self._drawn("alias", identity)[:20]

    def letters(self, item: Item) -> Mapping[str, str]:
        """Letter to model, in the order in which the captions are shown."""
        order = sorted(item.models, key=lambda model: self._drawn("captions", item.id, model))
        return dict(zip(LETTERS, order, strict=False))

    def propositions(self, item: Item) -> tuple[Proposition, ...]:
        """By caption as it is shown, shuffled inside, so that nothing tells which caption one was found with."""
        place = {model: index for index, model in enumerate(self.letters(item).values())}
        asked = self.study.propositions[item.id]
        return tuple(sorted(asked, key=lambda p: (place[p.model], self._drawn("propositions", p.prop_id))))

    def proposition(self, item: Item, key: str) -> Proposition:
        """The proposition of an alias. Raises RuleBroken if the item has none."""
        for one in self.study.propositions[item.id]:
            if self.alias(one.prop_id) == key:
                return one
        raise RuleBroken("there is no such proposition in this item: load the page again")

    def rankings(self, item: Item, orders: Mapping[str, Sequence[str]]) -> dict[Ranking, list[str]]:
        """Rankings of letters as rankings of models. Raises RuleBroken for a letter or ranking that there is not."""
        letters = self.letters(item)
        try:
            return {Ranking(name): [letters[one] for one in order] for name, order in orders.items()}
        except (KeyError, ValueError) as error:
            raise RuleBroken(f"a ranking names captions by their letters, not {error}") from error

    def _drawn(self, what: str, *parts: str) -> str:
        return _key(self.study.settings.seed, what, self.annotator, *parts)


def _key(seed: int, *parts: str) -> str:
    # Lengths before texts: "a", "bc" and "ab", "c" are different.
    told = "".join(f"{len(part)}:{part}" for part in parts)
    return digest_of(f"{seed}|{told}")
