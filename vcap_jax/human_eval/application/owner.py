"""What the one who runs a study asks the server: how far it is, what is disputed, and the answers themselves.

Disputes are shown without names, also to the third person who decides them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from aiohttp import web

from vcap_jax.human_eval.answers import Held
from vcap_jax.human_eval.application.access import OWNER, PERSON, Role, only
from vcap_jax.human_eval.application.parts import (
    Parts,
    answer,
    body,
    held_json,
    parts,
    text_of,
    told,
    verdict_sent,
)
from vcap_jax.human_eval.errors import RuleBroken
from vcap_jax.human_eval.exchange import export_records, records_of
from vcap_jax.human_eval.progress import Agreement, Dispute, Progress, agreement_so_far, disputes, progress_of
from vcap_jax.human_eval.protocol import NOTE_CHARACTERS, Ranking, Step1, Step2
from vcap_jax.report.progress import duration
from vcap_jax.system.json_values import JsonDict, as_whole

DISPUTES_A_PAGE = 50
_MOST_DIGITS = 9
"""Of the number of a dispute; Python reads no more than some thousands."""
EXPORTS = {
    "annotations.jsonl": "application/x-ndjson",
    "rankings.jsonl": "application/x-ndjson",
    "adjudications.jsonl": "application/x-ndjson",
    "label_studio.json": "application/json",
    "label_studio.xml": "application/xml",
}
owner = only(Role.OWNER)
deciders = only(Role.OWNER, Role.ADJUDICATOR)


def add_routes(app: web.Application) -> None:
    app.add_routes(
        [
            web.get("/study", owner(overview)),
            web.get("/disputes", deciders(disputed)),
            web.post("/api/adjudicate", deciders(adjudicate)),
            web.get("/export/{name}", owner(export)),
        ]
    )


async def overview(request: web.Request) -> web.Response:
    """Progress of everybody, agreement so far, and the links."""
    found = parts(request)

    def read() -> tuple[list[Progress], Agreement, int, int]:
        store = found.store
        people = dict.fromkeys((*found.study.settings.annotators, *store.annotators()))
        progress = [
            progress_of(name, store.assigned(name), store.answer_times(name), taken_in=store.taken_in(name))
            for name in people
        ]
        verdicts = store.verdicts()
        agreement = agreement_so_far(verdicts, store.rankings())
        disputed, decisions = disputes(verdicts), store.adjudications()
        decided = sum(one.prop in decisions for one in disputed)
        return progress, agreement, len(disputed) - decided, decided

    progress, agreement, undecided, decided = await told(read)
    return found.page(
        "study.html",
        person=request[PERSON],
        progress=progress,
        agreement=agreement,
        undecided=undecided,
        decided=decided,
        links=found.links,
        exports=EXPORTS,
        duration=duration,
        rankings=list(Ranking),
        items=len(found.study.items),
        propositions=sum(map(len, found.study.propositions.values())),
    )


async def disputed(request: web.Request) -> web.Response:
    """Propositions about which annotators disagree, with their answers side by side."""
    found, person = parts(request), request[PERSON]
    given = request.query.get("from", "")
    first = int(given) if given.isdecimal() and len(given) <= _MOST_DIGITS else 0
    show_all = request.query.get("all") == "1"

    def read() -> tuple[list[Dispute], dict[str, tuple[str, Held]]]:
        return _disputes(found), dict(found.store.adjudications())

    everything, decided = await told(read)
    chosen = everything if show_all else [one for one in everything if one.prop not in decided]
    # Decided ones leave the list, which may then end before the page that was open.
    if first >= len(chosen):
        first = max(0, len(chosen) - 1) // DISPUTES_A_PAGE * DISPUTES_A_PAGE
    shown = [
        _shown(found, place, one, decided.get(one.prop, ("", Held()))[1])
        for place, one in enumerate(chosen[first : first + DISPUTES_A_PAGE], first + 1)
    ]
    return found.page(
        "disputes.html",
        person=person,
        shown=shown,
        first=first,
        size=DISPUTES_A_PAGE,
        count=len(chosen),
        all=len(everything),
        decided=sum(one.prop in decided for one in everything),
        show_all=show_all,
        may_decide=_may_decide(request),
        step1=list(Step1),
        step2=list(Step2),
        most=NOTE_CHARACTERS,
    )


async def adjudicate(request: web.Request) -> web.Response:
    found, person, sent = parts(request), request[PERSON], await body(request)
    if not _may_decide(request):
        raise web.HTTPForbidden(text="the study names somebody else for this")

    def work() -> JsonDict:
        key, view = text_of(sent, "prop"), found.view(OWNER)
        dispute = next((one for one in _disputes(found) if view.alias(one.prop) == key), None)
        if dispute is None:
            raise RuleBroken("this proposition is not disputed")
        if person.name in dispute.answers:  # before the study named them for this
            raise RuleBroken("one of the answers is your own: somebody else must be named to decide it")
        version = as_whole(sent.get("version"), "version")
        return held_json(
            found.store.adjudicate(person.name, dispute.prop, verdict_sent(sent), version=version)
        )

    return answer(await told(work))


async def export(request: web.Request) -> web.Response:
    """One file of everything that is decided by now."""
    found, name = parts(request), request.match_info["name"]
    if name not in EXPORTS:
        raise web.HTTPNotFound(text=f"there is no such export; there are {', '.join(EXPORTS)}")

    def write() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            export_records(found.study, records_of(found.study, found.store), Path(folder))
            return (Path(folder) / name).read_bytes()

    content = await told(write)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return web.Response(body=content, content_type=EXPORTS[name], headers=headers)


def _may_decide(request: web.Request) -> bool:
    """The adjudicator; the owner where the study names none."""
    return request[PERSON].role is Role.ADJUDICATOR or parts(request).study.settings.adjudicator is None


def _disputes(found: Parts) -> list[Dispute]:
    """Those of an item beside each other, in an order that says nothing: ids, by which they are stored, may name
    models."""
    alias_of = found.view(OWNER).alias
    everything = disputes(found.store.verdicts())
    return sorted(everything, key=lambda one: (alias_of(one.item), alias_of(one.prop)))


def _shown(found: Parts, place: int, one: Dispute, decided: Held) -> dict[str, object]:
    """A dispute for the page. key: of the proposition, whose own id may name the models. before, span, after: the
    caption around what the proposition rests on. decided: by the third person, perhaps nothing yet."""
    item, view = found.study.items[one.item], found.view(OWNER)
    proposition = next(row for row in found.study.propositions[one.item] if row.prop_id == one.prop)
    caption, span = item.caption(proposition.model), proposition.span
    start, end = (0, 0) if span is None else (span.start, span.end)
    # Neither the order of names nor that of answering: nobody should know whose answer is whose.
    names = sorted(one.answers, key=lambda name: found.view(name).alias(one.prop))
    return {
        "place": place,
        "key": view.alias(one.prop),
        "proposition": proposition,
        "media": f"/media/{view.alias(one.item)}",
        "video": item.video is not None,
        "before": caption[:start],
        "span": caption[start:end],
        "after": caption[end:],
        "answers": [one.answers[name].verdict for name in names],
        "decided": decided,
    }
