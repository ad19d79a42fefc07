"""What all handlers share: the study, its answers, templates; work on the store beside the event loop; bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import jinja2
from aiohttp import web

from vcap_jax.human_eval.annotator_view import AnnotatorView
from vcap_jax.human_eval.application.access import PERSON
from vcap_jax.human_eval.errors import Conflict, RuleBroken
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
        """The study as somebody sees it."""
        if annotator not in self.views:
            self.views[annotator] = AnnotatorView(self.study, annotator)
        return self.views[annotator]

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


def answer(value: Mapping[str, object], status: int = 200) -> web.Response:
    """JSON to a script."""
    return web.json_response(value, status=status, headers={"Cache-Control": "no-store"})


async def body(request: web.Request) -> JsonDict:
    """The JSON object that was sent. Raises HTTPBadRequest."""
    try:
        return as_object(json.loads(await request.text()), "the request")
    except (ValueError, LookupError, RecursionError) as error:  # LookupError: of a charset that there is not
        raise web.HTTPBadRequest(text="a JSON object is wanted") from error


def text_of(sent: JsonDict, key: str, most: int = 200) -> str:
    """A text of a request. Raises RuleBroken if it is none, or longer than ``most``."""
    try:
        text = as_text(sent.get(key), key)
    except JsonError as error:
        raise RuleBroken(str(error)) from error
    if len(text) > most:
        raise RuleBroken(f"{key} has at most {most} characters, not {len(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RuleBroken(f"{key} has half of a character, which no file can hold: write it anew") from error
    return text


def optional_text(sent: JsonDict, key: str) -> str | None:
    """A text of a request, or None for null."""
    return None if sent.get(key) is None else text_of(sent, key)


def version_of(sent: JsonDict) -> int:
    """The version that was seen. Raises RuleBroken."""
    version = sent.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise RuleBroken("version: a whole number is wanted")
    return version


async def told(work: Callable[[], T]) -> T:
    """What the store answers, from a thread: it waits for the disk. Rules and conflicts become answers of their own:
    422 and 409, with the message."""
    try:
        return await asyncio.to_thread(work)
    except RuleBroken as error:
        raise _refusal(web.HTTPUnprocessableEntity, error) from error
    except Conflict as error:
        raise _refusal(web.HTTPConflict, error) from error


def _refusal(kind: type[web.HTTPClientError], error: Exception) -> web.HTTPClientError:
    return kind(text=json.dumps({"error": str(error)}), content_type="application/json")


async def own_item(request: web.Request) -> Item:
    """The item that the address names, if it is one of the annotator's. Raises HTTPNotFound."""
    found = parts(request)
    name = request[PERSON].name
    item = found.view(name).items.get(request.match_info["key"])
    if item is None:
        raise web.HTTPNotFound(text="there is no such item")
    if (name, item) not in found.assigned:
        if not await asyncio.to_thread(found.store.is_assigned, name, item):
            raise web.HTTPNotFound(text="this item is not one of yours")
        found.assigned.add((name, item))
    return found.study.items[item]
