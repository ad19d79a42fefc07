"""Who may ask for what: tokens, the cookie that carries one, and what every answer of the server says to browsers.

Everybody has a link with a token of their own. The token goes into a cookie that scripts cannot read and other sites
cannot make a browser send. A request that changes something also names who sends it, in a header that another site
cannot set: a browser in which somebody else has logged in meanwhile is refused, not mistaken.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from aiohttp import web

from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.study import LINKS, Settings
from vcap_jax.system.files import write_through
from vcap_jax.system.json_values import JsonError, as_text, read_json_object

OWNER = "owner"
WHO = "X-Annotator"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Mapping[str, str] = {
    # Nothing from elsewhere, nothing inline: even a caption that got into the page as markup could do nothing.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: a form would then be sent with "Origin: null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Role(StrEnum):
    """What somebody may do: annotate; decide disputes; see everything."""

    ANNOTATOR = "annotator"
    ADJUDICATOR = "adjudicator"
    OWNER = "owner"


@dataclass(frozen=True, kw_only=True)
class Person:
    name: str
    role: Role


PERSON = web.RequestKey("person", Person)


def read_tokens(folder: Path, settings: Settings) -> dict[str, str]:
    """Everybody's token, by name; those who have none yet get one, which ``write_tokens`` keeps.

    Raises StudyError for a file that is no such file.
    """
    path = folder / LINKS
    tokens: dict[str, str] = {}
    if path.exists():
        try:
            tokens = {name: as_text(token, str(path)) for name, token in read_json_object(path).items()}
        except JsonError as error:
            raise StudyError(f"{error}: remove the file for new links") from error
    wanted = [OWNER, *settings.annotators, *([settings.adjudicator] if settings.adjudicator else [])]
    if OWNER in wanted[1:]:
        raise StudyError(f'"{OWNER}" is the one who runs the study: give the annotator another name')
    return {name: tokens.get(name) or secrets.token_urlsafe(24) for name in wanted}


def write_tokens(folder: Path, tokens: Mapping[str, str]) -> None:
    """Keeps everybody's token, in a file that is for this user alone."""
    content = json.dumps(tokens, indent=2).encode()

    def write(temporary: Path) -> None:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(content)

    write_through(folder / LINKS, write)


class Access:
    """Knows tokens and addresses.

    hosts: names under which the server may be asked for; a page of another site that has its own name point here is
    refused by this. identity: of the study, as ``StoredAnswers.identity`` gives it.
    """

    def __init__(
        self, tokens: Mapping[str, str], settings: Settings, hosts: Iterable[str], *, identity: str
    ) -> None:
        # Browsers keep the cookies of a host together, whatever the port: studies beside each other need two names.
        self.cookie = f"vcap_study_{identity}"
        self._people = {
            token: Person(name=name, role=_role(name, settings)) for name, token in tokens.items()
        }
        self._hosts = frozenset(host.lower() for host in hosts)  # as urlsplit gives what a browser asks for

    def person(self, token: str) -> Person | None:
        """Who has this token; the time it takes tells nothing about tokens."""
        found = None
        for known, person in self._people.items():
            if hmac.compare_digest(known.encode(), token.encode("utf-8", "surrogatepass")):
                found = person
        return found

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = self._refused(request)
        return await handler(request) if refused is None else web.Response(status=refused[0], text=refused[1])

    def _refused(self, request: web.Request) -> tuple[int, str] | None:
        """Status and reason; None for a request that may be answered."""
        if _split(f"//{request.headers.get('Host', '')}").hostname not in self._hosts:
            return 421, "this server does not answer to that name; see --name"
        person = self.person(request.cookies.get(self.cookie, ""))
        if person is not None:
            request[PERSON] = person
        changes = request.method not in ("GET", "HEAD")
        origin = request.headers.get("Origin")
        if changes and origin is not None and _split(origin).netloc != request.headers.get("Host"):
            return 403, "requests of another site are refused"
        if request.path.startswith(("/enter/", "/static/")):
            return None
        if person is None:
            return 401, "This page needs your own link: open the link that you were given."
        if changes and request.headers.get(WHO) != person.name:
            return 403, f"this browser now belongs to {person.name}: open your own link again"
        return None


def _split(address: str) -> SplitResult:
    """An address in its parts, all of them empty where it is none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _role(name: str, settings: Settings) -> Role:
    if name == OWNER:
        return Role.OWNER
    return Role.ADJUDICATOR if name == settings.adjudicator else Role.ANNOTATOR


async def secure(request: web.Request, response: web.StreamResponse) -> None:
    """Puts ``HEADERS`` on an answer, refusals and errors included (for ``Application.on_response_prepare``)."""
    del request
    response.headers.update(HEADERS)


def only(*roles: Role) -> Callable[[Handler], Handler]:
    """A handler for people of these roles alone."""

    def guard(handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            if request[PERSON].role not in roles:
                raise web.HTTPForbidden(text="this page is not for you")
            return await handler(request)

        return guarded

    return guard
