"""What annotators ask the server: their items, the media, and to store what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import av
from aiohttp import web

from vcap_jax.data.pyav import opened
from vcap_jax.human_eval.answers import ItemState
from vcap_jax.human_eval.application.access import OWNER, PERSON, Role, only
from vcap_jax.human_eval.application.parts import (
    Parts,
    answer,
    body,
    held_json,
    item_json,
    own_item,
    parts,
    text_of,
    told,
    verdict_json,
    verdict_sent,
)
from vcap_jax.human_eval.progress import progress_of
from vcap_jax.human_eval.protocol import Ranking
from vcap_jax.human_eval.records import Item
from vcap_jax.human_eval.study import IMAGES, VIDEOS
from vcap_jax.system.json_values import JsonDict, as_list, as_object, as_whole

annotators = only(Role.ANNOTATOR)


def add_routes(app: web.Application) -> None:
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


def _named(sent: JsonDict) -> tuple[int, str]:
    """Of a change: the version that was seen, and the name of the request."""
    return as_whole(sent.get("version"), "version"), text_of(sent, "request", 64)


async def put_answer(request: web.Request) -> web.Response:
    """Stores a verdict; answered when it is on disk."""
    found, name, one, sent = await _change_asked(request)

    def work() -> JsonDict:
        prop = found.view(name).proposition(one, text_of(sent, "prop")).prop_id
        verdict, (version, request) = verdict_sent(sent), _named(sent)
        return held_json(found.store.answer(name, one.id, prop, verdict, version=version, request=request))

    return answer(await told(work))


async def undo(request: web.Request) -> web.Response:
    found, name, one, sent = await _change_asked(request)

    def work() -> JsonDict:
        prop = found.view(name).proposition(one, text_of(sent, "prop")).prop_id
        version, request = _named(sent)
        return held_json(found.store.undo(name, one.id, prop, version=version, request=request))

    return answer(await told(work))


async def finish(request: web.Request) -> web.Response:
    found, name, one, sent = await _change_asked(request)

    def work() -> None:
        given = as_object(sent.get("rankings"), "rankings")
        letters = {key: [str(letter) for letter in as_list(row, key)] for key, row in given.items()}
        orders = found.view(name).rankings(one, letters)
        found.store.finish(name, one.id, orders, request=text_of(sent, "request", 64))

    await told(work)
    return answer({"finished": True})


async def own_work(request: web.Request) -> web.Response:
    """Everything that this annotator has said, item by item."""
    found, name = parts(request), request[PERSON].name
    view = found.view(name)
    assigned = await told(lambda: found.store.assigned(name))

    def answers(item: Item) -> list[JsonDict]:
        verdicts = found.store.state(name, item.id).verdicts
        by_model = {model: letter for letter, model in view.letters(item).items()}
        return [
            {"letter": by_model[one.model], "kind": str(one.kind), "text": one.text}
            | verdict_json(verdicts[one.prop_id].verdict)
            for one in view.propositions(item)
            if one.prop_id in verdicts
        ]

    def all_answers() -> list[list[JsonDict]]:
        return [answers(found.study.items[one.item]) if one.decided else [] for one in assigned]

    rows = [
        {"place": place, "key": view.alias(one.item), "one": one, "answers": said}
        for place, (one, said) in enumerate(zip(assigned, await told(all_answers), strict=True), 1)
    ]
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
        with opened(path) as container:
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
