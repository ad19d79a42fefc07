"""What all handlers share: the study, its answers, templates; work on the store beside the event loop; what is sent and
what is told, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import jinja2
from aiohttp import web

from vcap_jax.human_eval.answers import Held, ItemState
from vcap_jax.human_eval.application.access import PERSON
from vcap_jax.human_eval.assignment import AnnotatorView
from vcap_jax.human_eval.errors import Conflict, RuleBroken, StudyError
from vcap_jax.human_eval.protocol import Ranking, Verdict, verdict_of
from vcap_jax.human_eval.records import Item
from vcap_jax.human_eval.store import AnswerStore
from vcap_jax.human_eval.study import Study
from vcap_jax.report.pages import page_templates
from vcap_jax.system.json_values import JsonDict, JsonError, as_object, as_text

MOST_BYTES = 64 * 1024
"""Of a request's body; the largest, a note, has a few thousand."""
T = TypeVar("T")


@dataclass
class Parts:
    """Of one application.

    identity: of the study. links: everybody's own address. assigned: who is known to have which item; nothing is ever
    taken from anybody.
    """

    study: Study
    store: AnswerStore
    identity: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    templates: jinja2.Environment = field(
        default_factory=lambda: page_templates("vcap_jax.human_eval.application")
    )
    views: dict[str, AnnotatorView] = field(default_factory=dict)
    assigned: set[tuple[str, str]] = field(default_factory=set)

    def view(self, annotator: str) -> AnnotatorView:
        return self.views.setdefault(annotator, AnnotatorView(self.study, annotator))

    def page(self, template: str, **values: object) -> web.Response:
        """A page; whatever is put in is escaped."""
        text = self.templates.get_template(template).render(
            study=self.study.settings.name, identity=self.identity, **values
        )
        return web.Response(text=text, content_type="text/html", headers={"Cache-Control": "no-store"})


PARTS = web.AppKey("parts", Parts)


def parts(request: web.Request) -> Parts:
    """Of the application that a request is to."""
    return request.app[PARTS]


def answer(value: Mapping[str, object]) -> web.Response:
    return web.json_response(value, headers={"Cache-Control": "no-store"})


async def body(request: web.Request) -> JsonDict:
    """The JSON object that was sent. Raises HTTPBadRequest."""
    try:
        return as_object(json.loads(await request.text()), "the request")
    except (ValueError, LookupError, RecursionError) as error:  # LookupError: of a charset that there is not
        raise web.HTTPBadRequest(text="a JSON object is wanted") from error


def text_of(sent: JsonDict, key: str, most: int = 200) -> str:
    """A text of a request that is no note. Raises JsonError if it is none, RuleBroken for one that cannot be kept."""
    text = as_text(sent.get(key), key)
    if len(text) > most:
        raise RuleBroken(f"{key} has at most {most} characters, not {len(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RuleBroken(f"{key} has half of a character, which no file can hold: write it anew") from error
    return text


def verdict_sent(sent: JsonDict) -> Verdict:
    """The verdict of a request. Raises JsonError, RuleBroken."""
    step1, step2 = (None if sent.get(step) is None else text_of(sent, step) for step in ("step1", "step2"))
    return verdict_of(step1, step2, as_text(sent.get("note"), "note"))


async def told(work: Callable[[], T]) -> T:
    """What the store answers, from a thread: it waits for the disk. Rules, conflicts and a store that cannot be used
    become answers of their own: 422, 409 and 503, with the message. The last is told here too, where it can be mended.
    """
    try:
        return await asyncio.to_thread(work)
    except (RuleBroken, JsonError, Conflict, StudyError) as error:
        kind: type[web.HTTPError] = web.HTTPUnprocessableEntity
        if isinstance(error, Conflict):
            kind = web.HTTPConflict
        elif isinstance(error, StudyError):
            kind = web.HTTPServiceUnavailable
            print(f"error: {error}", file=sys.stderr, flush=True)
        raise kind(text=json.dumps({"error": str(error)}), content_type="application/json") from error


async def own_item(request: web.Request) -> Item:
    """The item that the address names, if it is one of the annotator's. Raises HTTPNotFound."""
    found = parts(request)
    name = request[PERSON].name
    item = found.view(name).items.get(request.match_info["key"])
    if item is None:
        raise web.HTTPNotFound(text="there is no such item")
    if (name, item) not in found.assigned:
        if not await told(lambda: found.store.is_assigned(name, item)):
            raise web.HTTPNotFound(text="this item is not one of yours")
        found.assigned.add((name, item))
    return found.study.items[item]


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
    return {"step1": verdict.step1, "step2": verdict.step2, "note": verdict.note}


def held_json(held: Held) -> JsonDict:
    """A verdict with its version."""
    return {**verdict_json(held.verdict), "version": held.version}
