"""What annotators ask the server: their items, the media, and to store what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import av
from aiohttp import web

from vcap_jax.human_eval.answers import ItemState
from vcap_jax.human_eval.application.access import OWNER, PERSON, Role, only
from vcap_jax.human_eval.application.parts import (
    Parts,
    answer,
    body,
    optional_text,
    own_item,
    parts,
    text_of,
    told,
    version_of,
)
from vcap_jax.human_eval.application.views import held_json, item_json, verdict_json
from vcap_jax.human_eval.errors import RuleBroken
from vcap_jax.human_eval.progress import progress_of
from vcap_jax.human_eval.protocol import NOTE_CHARACTERS, Ranking, verdict_of
from vcap_jax.human_eval.records import Item
from vcap_jax.human_eval.study import IMAGES, VIDEOS
from vcap_jax.system.json_values import JsonDict, as_list, as_object

annotators = only(Role.ANNOTATOR)


def add_routes(app: web.Application) -> None:
    """Adds what this module answers."""
    app.add_routes(
        [
            web.get("/annotate", annotators(page)),
            web.get("/own", annotators(own_work)),
            web.get("/api/me", annotators(me)),
            web.get("/api/item/{key}", annotators(item)),
            web.post("/api/item/{key}/answer", annotators(put_answer)),
            web.post("/api/item/{key}/undo", annotators(undo)),
            web.post("/api/item/{key}/finish", annotators(finish)),
            web.get("/media/{key}", media),
        ]
    )


async def page(request: web.Request) -> web.Response:
    """The page on which an annotator works; a script fills it."""
    return parts(request).page("annotate.html", person=request[PERSON], rankings=list(Ranking))


async def me(request: web.Request) -> web.Response:
    """Who is asking, all their items and how far they are."""
    found, name = parts(request), request[PERSON].name
    assigned = await told(lambda: found.store.assigned(name))
    times = await told(lambda: found.store.answer_times(name))
    taken_in = await told(lambda: found.store.taken_in(name))
    progress = progress_of(name, assigned, times, taken_in=taken_in)
    view = found.view(name)
    return answer(
        {
            "name": name,
            "left_s": progress.left_s,
            "items": [
                {
                    "key": view.alias(one.item),
                    "decided": one.decided,
                    "total": one.total,
                    "finished": one.finished,
                }
                for one in assigned
            ],
        }
    )


async def item(request: web.Request) -> web.Response:
    """One item with what was answered. Asking for it begins the time that it takes."""
    found, name, one = parts(request), request[PERSON].name, await own_item(request)

    def read() -> tuple[ItemState, dict[Ranking, Sequence[str]]]:
        state = found.store.state(name, one.id)
        if not state.finished:
            found.store.opened(name, one.id)
        rows = found.store.rankings(of=(name, one.id)) if state.finished else ()
        return state, {row.ranking: row.models for row in rows}

    state, orders = await told(read)
    shown = item_json(found.view(name), one, state, orders)
    if one.video is not None:
        facts = await asyncio.to_thread(_video_facts, found.study.media_path(one.id))
        shown["media"] = {**as_object(shown["media"], "media"), **facts}
    return answer(shown)


async def _change_asked(request: web.Request) -> tuple[Parts, str, Item, JsonDict]:
    """The application, the annotator's name, the item, and what was sent about it."""
    return parts(request), request[PERSON].name, await own_item(request), await body(request)


async def put_answer(request: web.Request) -> web.Response:
    """Stores a verdict; answered when it is on disk."""
    found, name, one, sent = await _change_asked(request)

    def work() -> JsonDict:
        prop = found.view(name).proposition(one, text_of(sent, "prop"))
        note = text_of(sent, "note", NOTE_CHARACTERS)
        verdict = verdict_of(optional_text(sent, "step1"), optional_text(sent, "step2"), note)
        held = found.store.answer(
            name,
            one.id,
            prop.prop_id,
            verdict,
            version=version_of(sent),
            request=text_of(sent, "request", 64),
        )
        return held_json(held)

    return answer(await told(work))


async def undo(request: web.Request) -> web.Response:
    """Takes the last change of the item back."""
    found, name, one, sent = await _change_asked(request)

    def work() -> JsonDict:
        prop = found.view(name).proposition(one, text_of(sent, "prop"))
        held = found.store.undo(
            name, one.id, prop.prop_id, version=version_of(sent), request=text_of(sent, "request", 64)
        )
        return held_json(held)

    return answer(await told(work))


async def finish(request: web.Request) -> web.Response:
    """Stores the three rankings, and ends the item."""
    found, name, one, sent = await _change_asked(request)

    def work() -> None:
        try:
            given = as_object(sent.get("rankings"), "rankings")
            letters = {key: [str(letter) for letter in as_list(row, key)] for key, row in given.items()}
        except ValueError as error:
            raise RuleBroken(str(error)) from error
        orders = found.view(name).rankings(one, letters)
        found.store.finish(name, one.id, orders, request=text_of(sent, "request", 64))

    await told(work)
    return answer({"finished": True})


async def own_work(request: web.Request) -> web.Response:
    """Everything that this annotator has said, item by item."""
    found, name = parts(request), request[PERSON].name
    view = found.view(name)
    assigned = await told(lambda: found.store.assigned(name))

    def states() -> list[ItemState]:
        return [found.store.state(name, one.item) for one in assigned if one.decided or one.finished]

    begun = iter(await told(states))
    rows = []
    for place, one in enumerate(assigned, 1):
        answers = []
        if one.decided or one.finished:
            state = next(begun)
            item_of = found.study.items[one.item]
            by_model = {model: letter for letter, model in view.letters(item_of).items()}
            for prop in view.propositions(item_of):
                held = state.verdicts.get(prop.prop_id)
                if held is not None:
                    said = {"letter": by_model[prop.model], "kind": str(prop.kind), "text": prop.text}
                    answers.append(said | verdict_json(held.verdict))
        rows.append({"place": place, "key": view.alias(one.item), "one": one, "answers": answers})
    return found.page("own.html", person=request[PERSON], rows=rows)


async def media(request: web.Request) -> web.StreamResponse:
    """A picture or video of one of the annotator's items; the owner's of any. Parts of it, as players ask for them."""
    found, person = parts(request), request[PERSON]
    if person.role is Role.ANNOTATOR:
        item_id = (await own_item(request)).id
    else:
        item_id = found.view(OWNER).items.get(request.match_info["key"], "")
        if not item_id:
            raise web.HTTPNotFound(text="there is no such item")
    path = found.study.media_path(item_id)
    if not path.is_file():
        raise web.HTTPNotFound(text="the file of this item is gone from the study's folder")
    kind = (IMAGES | VIDEOS)[path.suffix.lower()]
    return web.FileResponse(path, headers={"Content-Type": kind, "Cache-Control": "private, max-age=3600"})


def _video_facts(path: Path) -> JsonDict:
    """Frames a second and seconds of a video, for stepping; without what the file does not say."""
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            rate, length = stream.average_rate, container.duration
    except (av.FFmpegError, IndexError):
        return {}
    facts: JsonDict = {}
    if rate:
        facts["fps"] = float(rate)
    if length:
        facts["seconds"] = length / av.time_base
    return facts
