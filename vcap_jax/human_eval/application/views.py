"""What one annotator is shown of an item: captions without their models, in an order of this annotator's own.

Items and propositions go by aliases, since their own ids may name a model; captions are A, B, C, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from vcap_jax.human_eval.answers import Held, ItemState
from vcap_jax.human_eval.assignment import LETTERS, alias, shown_order, shown_propositions
from vcap_jax.human_eval.errors import RuleBroken
from vcap_jax.human_eval.protocol import Ranking, Verdict
from vcap_jax.human_eval.records import Item, Proposition
from vcap_jax.human_eval.study import Study
from vcap_jax.system.json_values import JsonDict


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

    def page(self, item: Item, state: ItemState, orders: Mapping[Ranking, Sequence[str]]) -> JsonDict:
        """All that the browser is told of an item and of what was answered. orders: of models, once it is finished."""
        letters = self.letters(item)
        by_model = {model: letter for letter, model in letters.items()}
        return {
            "key": self.alias(item.id),
            "media": {"kind": "image" if item.image is not None else "video", "url": f"/media/{self.alias(item.id)}"},
            "captions": [{"letter": letter, "text": item.caption(model)} for letter, model in letters.items()],
            "propositions": [
                {
                    "key": self.alias(one.prop_id),
                    "letter": by_model[one.model],
                    "kind": str(one.kind),
                    "text": one.text,
                    "span": None if one.span is None else [one.span.start, one.span.end],
                }
                for one in self.propositions(item)
            ],
            "verdicts": {self.alias(prop): held_json(held) for prop, held in state.verdicts.items()},
            "changes": [{"prop": self.alias(prop), **verdict_json(before)} for prop, before in state.changes],
            "finished": state.finished,
            "rankings": {str(name): [by_model[model] for model in order] for name, order in orders.items()},
        }  # fmt: skip


def verdict_json(verdict: Verdict) -> JsonDict:
    """A verdict as the browser has it."""
    return {"step1": verdict.step1, "step2": verdict.step2, "note": verdict.note}


def held_json(held: Held) -> JsonDict:
    """A verdict with its version."""
    return {**verdict_json(held.verdict), "version": held.version}
