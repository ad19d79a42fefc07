"""Whether a server's engine is at work. ``/health`` is 200 while the engine hangs: the process that answers is another.

What shows a hang: requests are under way, and no token is read or written for minutes. A look at the server tells both,
from its process for HTTP alone. Before anything is done about it the server is asked for a judgement, for a count of
requests may be wrong; see ``supervisor``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import aiohttp

from gpu_judge.vllm_server.readiness import NotReady, Server, Silent
from vcap_jax.system.json_values import as_object, as_whole, parse_json

_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
_REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_SAMPLE = re.compile(rf"^({'|'.join(_TOKENS + _REQUESTS)})(?:\{{.*\}})?[ \t]+(\S+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What a server says of its work.

    waiting: requests are under way, from those whose pictures are being read to those that are being answered.
    tokens: read and written since its start.
    """

    waiting: bool
    tokens: float


class Silence:
    """For how long requests have been under way without a token.

    Time without requests neither counts nor ends it: clients leave a server that does not answer, and come back.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._tokens: float | None = None

    def record(self, seen: Activity, passed_s: float) -> None:
        """A look at the server, ``passed_s`` seconds after the one before."""
        if seen.tokens != self._tokens:
            self.seconds = 0.0
        elif seen.waiting:
            self.seconds += passed_s
        self._tokens = seen.tokens


async def look(session: aiohttp.ClientSession, server: Server, timeout_s: float) -> Activity | None:
    """What the server is doing; None if it does not answer in time, which is for whoever asks ``/health`` to see.

    Raises NotReady for an answer that does not tell.
    """
    try:
        load = await server.told(session, "GET", "/load", limit_s=timeout_s)
        metrics = await server.told(session, "GET", "/metrics", limit_s=timeout_s)
    except Silent:
        return None
    return read_activity(load.decode(errors="replace"), metrics.decode(errors="replace"))


def read_activity(load: str, metrics: str) -> Activity:
    """Reads the answers of ``/load`` and ``/metrics``. Raises NotReady where they do not tell.

    Both are needed. ``/load`` also has requests that the engine has not looked at yet, as with a hang in the first step
    after a pause, whose counts the engine never sends; a request that breaks off may be counted down twice there.
    """
    try:
        under_way = as_whole(as_object(parse_json(load), "/load").get("server_load"), "server_load")
    except ValueError as error:
        raise NotReady(f"GET /load answers without a server_load: {load[:100]!r}") from error
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(metrics):  # one of each engine
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError as error:
            raise NotReady(f"GET /metrics: {name} is {value[:40]!r}, no number") from error
    if missing := [name for name in (*_TOKENS, *_REQUESTS) if name not in found]:
        raise NotReady(f"GET /metrics answers without {', '.join(missing)}")
    return Activity(
        waiting=under_way > 0 or any(found[name] > 0 for name in _REQUESTS),
        tokens=sum(found[name] for name in _TOKENS),
    )


async def sleeps(session: aiohttp.ClientSession, server: Server, timeout_s: float) -> bool:
    """Whether the server says that it is asleep, where it can: what waits for its turn is no hang."""
    if not server.can_sleep:
        return False
    try:
        asleep = parse_json(await server.told(session, "GET", "/is_sleeping", limit_s=timeout_s))
    except (NotReady, ValueError):
        return False
    return isinstance(asleep, dict) and asleep.get("is_sleeping") is True
