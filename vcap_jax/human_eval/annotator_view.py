"""What one annotator is shown of an item: captions without their models, in an order of this annotator's own.

Items and propositions go by aliases, since their own ids may name a model; captions are A, B, C, ... All of it follows
from the study's seed and the annotator's name, so what was shown can be read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from vcap_jax.human_eval.assignment import LETTERS, alias, shown_order, shown_propositions
from vcap_jax.human_eval.errors import RuleBroken
from vcap_jax.human_eval.protocol import Ranking
from vcap_jax.human_eval.records import Item, Proposition
from vcap_jax.human_eval.study import Study


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
        """What an item or a proposition is called there."""
        return alias(self.study.settings.seed, self.annotator, identity)

    def letters(self, item: Item) -> Mapping[str, str]:
        """Letter to model."""
        order = shown_order(item, self.annotator, self.study.settings.seed)
        return dict(zip(LETTERS, order, strict=False))

    def propositions(self, item: Item) -> tuple[Proposition, ...]:
        """In the order in which they are shown."""
        order = tuple(self.letters(item).values())
        asked = self.study.propositions[item.id]
        return shown_propositions(asked, order, self.annotator, self.study.settings.seed)

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
