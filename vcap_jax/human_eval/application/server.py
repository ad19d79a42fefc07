"""The application as a whole: who comes in, what is shipped, and serving it until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from vcap_jax.human_eval.application import annotator, owner
from vcap_jax.human_eval.application.access import (
    OWNER,
    PERSON,
    Access,
    Role,
    read_tokens,
    secure,
    write_tokens,
)
from vcap_jax.human_eval.application.parts import MOST_BYTES, PARTS, Parts, parts
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.store import AnswerStore
from vcap_jax.human_eval.study import ANSWERS, Study
from vcap_jax.system.file_locks import only_one
from vcap_jax.system.shutdown import finishing, requested

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOOK_S = 0.2
HOMES = {Role.ANNOTATOR: "/annotate", Role.ADJUDICATOR: "/disputes", Role.OWNER: "/study"}


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A server that answers. address: of its root. links: everybody's own, the owner's under "owner". left: items that
    people who are not named have begun and not finished, by their names."""

    address: str
    links: dict[str, str]
    left: dict[str, list[str]]


def make_app(
    study: Study, store: AnswerStore, *, tokens: dict[str, str], hosts: Iterable[str]
) -> web.Application:
    """The application of a study. hosts: the names it may be asked for by."""
    identity = store.identity()
    access = Access(tokens, study.settings, hosts, identity=identity)
    app = web.Application(middlewares=[access.middleware], client_max_size=MOST_BYTES)
    app.on_response_prepare.append(secure)
    app[PARTS] = Parts(study=study, store=store, identity=identity)

    async def enter(request: web.Request) -> web.Response:
        person = access.person(request.match_info["token"])
        if person is None:
            return web.Response(status=401, text="This link is not valid (any more): ask for a new one.")
        if request.method == "POST":
            done = web.Response(status=303, headers={"Location": HOMES[person.role]})
            # Secure would keep it from plain http, which loopback and tunnels speak.
            done.set_cookie(
                access.cookie,
                request.match_info["token"],
                httponly=True,
                samesite="Strict",
                max_age=90 * 86400,
                secure=request.secure,
            )
            return done
        return parts(request).page("enter.html", person=person)

    async def home(request: web.Request) -> web.Response:
        raise web.HTTPSeeOther(HOMES[request[PERSON].role])

    app.add_routes(
        [
            web.get("/", home),
            # A page in between: a cookie that is strict is not sent right after coming from another site, and whoever
            # only looks whether a link works is not logged in by it.
            web.get("/enter/{token}", enter),
            web.post("/enter/{token}", enter),
            web.static("/static", STATIC),
        ]
    )
    annotator.add_routes(app)
    owner.add_routes(app)
    return app


@contextlib.asynccontextmanager
async def serving(
    study: Study, *, host: str = "127.0.0.1", port: int = 0, names: Iterable[str] = ()
) -> AsyncIterator[Serving]:
    """Serves a study; port 0 takes a free one. names: of this machine, by which others ask for it.

    Raises StudyError if the address is taken or cannot be had, or the study is served already, and what reading the
    study's files raises.
    """
    tokens = read_tokens(study.folder, study.settings)
    # The address is taken before anything is written: a start that fails changes nothing. Who asks early waits.
    with (
        _listening(host, port) as sockets,
        only_one(study.folder, StudyError, "end that one: what one hands out the other would not know"),
        AnswerStore(study.folder / ANSWERS) as store,
    ):
        await asyncio.to_thread(store.open_study, study)
        write_tokens(study.folder, tokens)
        hosts = {*LOOPBACK, *names, *([] if _any_address(host) else [host])}
        app = make_app(study, store, tokens=tokens, hosts=hosts)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            for one in sockets:
                await web.SockSite(runner, one).start()
            taken = sockets[0].getsockname()[1]
            shown = next(iter(names), "127.0.0.1" if _any_address(host) else host)
            address = f"http://{f'[{shown}]' if ':' in shown else shown}:{taken}"
            links = {name: f"{address}/enter/{token}" for name, token in tokens.items()}
            app[PARTS].links = links
            yield Serving(address=address, links=links, left=_left(study, store))
        finally:
            await runner.cleanup()


def _left(study: Study, store: AnswerStore) -> dict[str, list[str]]:
    gone = (name for name in store.annotators() if name not in study.settings.annotators)
    left = {name: [one.item for one in store.assigned(name) if not one.finished] for name in gone}
    return {name: items for name, items in left.items() if items}


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Sockets that listen on all addresses of a host, on one port. Raises StudyError for an address that is taken."""
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        taken = port
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, address in dict.fromkeys(found):
                place = (address[0], taken, *address[2:])
                one = opened.enter_context(socket.create_server(place, family=family))
                taken = one.getsockname()[1]
                sockets.append(one)
        except (OSError, OverflowError, UnicodeError) as error:  # the last two: no port, no name can be so
            why = getattr(error, "strerror", None) or error
            raise StudyError(
                f"{host}:{port} cannot be served on ({why}): give another --port or --host"
            ) from error
        yield sockets


def serve(study: Study, *, host: str, port: int, names: Iterable[str], say: Callable[[str], None]) -> None:
    """Serves a study until Ctrl-C or SIGTERM, and raises Stopped then; requests in work are answered first."""

    async def run() -> None:
        async with serving(study, host=host, port=port, names=names) as server:
            say(f"{study.settings.name}: {len(study.items)} items at {server.address}")
            width = max(map(len, server.links))
            for name, link in server.links.items():
                say(f"  {name:<{width}}  {link}{'   (runs the study)' if name == OWNER else ''}")
            for name, items in server.left.items():
                say(
                    f"  {name}, who is not named, has begun {len(items)} items and not finished them, such as "
                    f"{items[0]!r}: they stay with {name}, who can be named again"
                )
            say("Ctrl-C ends it; every answer is on disk the moment it is acknowledged")
            while not requested():
                await asyncio.sleep(_LOOK_S)

    with finishing("each request in work"):
        asyncio.run(run())


def _any_address(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")
