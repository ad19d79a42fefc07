"""What the browser is told, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vcap_jax.human_eval.annotator_view import AnnotatorView
from vcap_jax.human_eval.answers import Held, ItemState
from vcap_jax.human_eval.protocol import Ranking, Verdict
from vcap_jax.human_eval.records import Item
from vcap_jax.system.json_values import JsonDict


def item_json(
    view: AnnotatorView, item: Item, state: ItemState, orders: Mapping[Ranking, Sequence[str]]
) -> JsonDict:
    """All that the browser is told of an item and of what was answered. orders: of models, once it is finished."""
    letters = view.letters(item)
    by_model = {model: letter for letter, model in letters.items()}
    return {
        "key": view.alias(item.id),
        "media": {"kind": "image" if item.image is not None else "video", "url": f"/media/{view.alias(item.id)}"},
        "captions": [{"letter": letter, "text": item.caption(model)} for letter, model in letters.items()],
        "propositions": [
            {
                "key": view.alias(one.prop_id),
                "letter": by_model[one.model],
                "kind": str(one.kind),
                "text": one.text,
                "span": None if one.span is None else [one.span.start, one.span.end],
            }
            for one in view.propositions(item)
        ],
        "verdicts": {view.alias(prop): held_json(held) for prop, held in state.verdicts.items()},
        "changes": [{"prop": view.alias(prop), **verdict_json(before)} for prop, before in state.changes],
        "finished": state.finished,
        "rankings": {str(name): [by_model[model] for model in order] for name, order in orders.items()},
    }  # fmt: skip


def verdict_json(verdict: Verdict) -> JsonDict:
    """A verdict as the browser has it."""
    return {"step1": verdict.step1, "step2": verdict.step2, "note": verdict.note}


def held_json(held: Held) -> JsonDict:
    """A verdict with its version."""
    return {**verdict_json(held.verdict), "version": held.version}
