"""One vLLM server over HTTP: is it fit for rollouts, load weights into it, send it a group; and waiting for several.

``/collective_rpc``, ``/reset_*`` and ``/weight_info`` are routes of the server's development mode: anyone who reaches
them controls the server. They are used on loopback addresses only.
"""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from vcap_jax.rollout.config import VllmConfig
from vcap_jax.rollout.engine import RolloutError
from vcap_jax.rollout.vllm_weights import VERSIONS
from vcap_jax.system.clock import Clock
from vcap_jax.system.connection_errors import broken_connection
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.in_work import arrived, until_ended
from vcap_jax.system.json_values import JsonDict, JsonObject, JsonValue, parse_json
from vcap_jax.system.shutdown import requested
from vcap_jax.system.sleep_mode import Limit, ServerGone, SleepMode, SleepModeError
from vcap_jax.system.waiting import EVERY_S, Waiting, telling

T = TypeVar("T")

_READING = "-reading"
"""Behind the version of weights that a server is still being given."""

# Worth another try: the request was not processed, or not by its own fault.
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_SHOWN = 500
_ANSWER, _LOAD, _OUTAGE = (
    f"rollout.vllm.{name}" for name in ("timeout_s", "load_timeout_s", "outage_timeout_s")
)
_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.5, 5.0
_QUIET_S = 60.0
"""A server that answers no group for so long is worth a word; a single group often takes as long."""


class ServerLost(RolloutError):
    """A server is gone, broken, or was started anew since it was given weights: it is worth waiting for."""


def first_answer_limit(settings: VllmConfig) -> Limit:
    """For the first answer of a server that takes turns: as long as one that is still starting is waited for, and no
    less than for any other."""
    return max(Limit(settings.outage_timeout_s, _OUTAGE), Limit(settings.load_timeout_s, _LOAD))


def rollout_session() -> aiohttp.ClientSession:
    """A session for ``VllmServer``s, to be opened in a running event loop.

    A connection serves one request: vLLM closes a kept one after five seconds of rest, and a group sent on it just then
    would look like a lost server.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))


class VllmServer:
    """Speaks to the server at ``url`` through ``session``; every method raises RolloutError, and ServerLost where the
    server itself is gone.

    settings: how long each request may take, and how often a group is sent. say: where messages about waiting for it
    go. others: by the name of weights, the folder of another run that gave them and is still at work.
    """

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        settings: VllmConfig,
        *,
        say: Callable[[str], None],
        others: Callable[[str], Path | None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self.url, self._others = url.rstrip("/"), others
        self._session = session
        self._limits = {
            _ANSWER: settings.timeout_s,
            _LOAD: settings.load_timeout_s,
            _OUTAGE: settings.outage_timeout_s,
        }
        self._attempts = settings.attempts
        self._say, self._clock = say, Clock() if clock is None else clock
        self._groups = 0
        self._quiet = self._waiting(_ANSWER, _QUIET_S)
        self.model = ""
        self._sleep_mode: SleepMode | None = None
        if settings.sleep_mode:
            self._sleep_mode = SleepMode(
                self.url,
                f"the rollout server at {self.url}",
                lambda: session,
                first=first_answer_limit(settings),
                limit=Limit(settings.load_timeout_s, _LOAD),
                start="launch/serve_rollout.py --sleep-mode",
                clock=self._clock,
            )

    async def check_sleep_mode(self) -> None:
        """Verifies that the server can sleep, if it is to."""
        if self._sleep_mode is not None:
            await self._turns("it says how it was started", self._sleep_mode.check(), self._sleep_mode.first)

    async def sleep(self) -> None:
        """Returns once it sleeps, without weights. Only for servers with ``rollout.vllm.sleep_mode``."""
        assert self._sleep_mode is not None
        await self._turns("it falls asleep", self._sleep_mode.sleep(2))

    async def _turns(self, how: str, work: Coroutine[object, object, T], limit: Limit | None = None) -> T:
        """What ``work`` of sleep mode comes to; waiting for it is told."""
        async with telling(self._waiting(limit.setting if limit else _LOAD), lambda: how, self._clock):
            with _as_rollout_errors(self.url):
                return await work

    async def check(self, token: int) -> None:
        """Verifies that the server is up and reports log-probabilities of the distribution it samples from, and takes
        its model's name.

        token: any ordinary token. A request that may answer with this token only has a processed log-probability
        of 0; the model's raw one is lower.
        """
        models: Any = await self._control("GET", "/v1/models", _LOAD)
        try:
            self.model = models["data"][0]["id"]
        except (KeyError, IndexError, TypeError):
            raise RolloutError(f"{self.url}/v1/models names no model; is this a vLLM server?") from None
        body: JsonObject = {
            "model": self.model,
            # Of one token alone vLLM 0.32's CPU build takes no prompt for a decoder with a convolution.
            "prompt": [token, token],
            "max_tokens": 1,
            "temperature": 1.0,
            "allowed_token_ids": [token],
            "ignore_eos": True,
            "logprobs": 0,
        }
        answer: Any = await self._control("POST", "/v1/completions", _ANSWER, body)
        try:
            logprob = float(answer["choices"][0]["logprobs"]["token_logprobs"][0])
        except (KeyError, IndexError, TypeError):
            raise RolloutError(f"{self.url} reports no log-probabilities; is this a vLLM server?") from None
        if math.isnan(logprob):
            raise RolloutError(
                f"{self.url} reports a log-probability that is not a number: what it computes with its weights is no "
                "distribution. Start it again with launch/serve_rollout.py, and look at its log"
            )
        if abs(logprob) > 1e-3:
            raise RolloutError(
                f"{self.url} reports log-probabilities of the raw logits, not of the distribution it samples from; "
                "start it with --logprobs-mode processed_logprobs (launch/serve_rollout.py does)"
            )
        await self.version()

    async def check_alone(self) -> None:
        """Raises RolloutError if it holds the weights of another run, which has not ended."""
        if (other := self._others(await self.version())) is not None:
            raise RolloutError(
                f"{self.url} holds the weights of another run, which uses it ({other}): a rollout server must serve "
                "one run alone. End that run, or give this one a server of its own (rollout.vllm.urls)"
            )

    async def load(self, folder: Path, version: str) -> None:
        """Replaces the server's weights by those in ``folder`` and forgets everything computed with the old ones. One
        that sleeps wakes up. Raises as ``check_alone`` before anything is replaced."""
        await self.check_alone()
        mode, asleep = self._sleep_mode, False
        # From now on, and wherever this ends, nobody takes it for one with other weights, or has it sleep as one that
        # was just started (``falls_asleep``).
        await self._name(f"{version}{_READING}")
        if mode is not None:
            asleep = await self._turns("it wakes up", mode.wake_up_weights())
        rpc: JsonObject = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._control("POST", "/collective_rpc", _LOAD, rpc, development=True)
        if mode is not None:
            # Who asked a moment before may still have had it sleep, which drops what it has read.
            if await self._turns("it reads the weights", mode.sleeps()) is not asleep:
                raise ServerLost(f"{self.url} fell asleep while it read its weights, and has dropped them")
            await self._turns("it wakes up", mode.wake_up())
        reset = await self._control("POST", "/reset_prefix_cache", _LOAD, development=True)
        if not isinstance(reset, dict) or reset.get("success") is not True:
            raise RolloutError(
                f"{self.url} could not drop its prefix cache, some other client's requests are running; "
                "a rollout server must serve one run alone"
            )
        # Image features belong to the old weights too; and the engine counts on them being dropped with the rest.
        await self._control("POST", "/reset_encoder_cache", _LOAD, development=True)
        await self._name(version)
        await self.expect(version)

    async def _name(self, version: str) -> None:
        label = {"new_version": version}
        await self._control("POST", "/update_weight_version", _LOAD, label, development=True)

    async def expect(self, version: str) -> None:
        """Raises ServerLost if the server was started anew since it was given this version, though it may be reading it
        again by now; RolloutError if another run has given it its own."""
        held = await self.version()
        if held == version:
            return
        if held.startswith(VERSIONS) and held != f"{version}{_READING}":
            raise RolloutError(
                f"{self.url} holds weights {held!r} instead of {version!r}: another run uses it; a rollout server must "
                "serve one run alone. End the other run, and continue with --resume"
            )
        raise ServerLost(f"{self.url} holds weights {held!r} instead of {version!r}: it was started anew")

    async def back(self) -> None:
        """Returns when the server answers. Raises RolloutError if it does not for ``outage_timeout_s``."""
        began, wait, limit_s = self._clock.now(), _FIRST_PROBE_S, self._limits[_OUTAGE]
        waiting = self._waiting(_OUTAGE)
        while True:
            try:
                await self._request("GET", "/weight_info", _ANSWER, development=True)
                return
            except ServerLost as error:
                left_s = began + limit_s - self._clock.now()
                if left_s <= 0:
                    raise RolloutError(
                        f"the rollout server at {self.url} did not answer for {limit_s:g} s ({_OUTAGE}); last seen: "
                        f"{error}. Start it again (launch/serve_rollout.py), and continue with --resume"
                    ) from error
                waiting.tell(str(error))
            await self._clock.sleep(min(wait, left_s))
            wait = min(2 * wait, _LONGEST_PROBE_S)

    async def version(self) -> str:
        """What the server calls the weights it holds."""
        info = await self._control("GET", "/weight_info", _ANSWER, development=True)
        if not isinstance(info, dict) or "weight_version" not in info:
            raise RolloutError(f"{self.url}/weight_info tells no weight_version")
        return str(info["weight_version"])

    async def complete(self, body: JsonObject) -> JsonDict:
        """The answer to a chat request."""
        if not self._groups:
            self._quiet.begin()
        self._groups += 1
        try:
            async with telling(self._quiet, lambda: f"it has {self._groups} groups to answer", self._clock):
                answer = await self._request(
                    "POST", "/v1/chat/completions", _ANSWER, body, attempts=self._attempts
                )
        finally:
            self._groups -= 1
            self._quiet.begin()
        if not isinstance(answer, dict):
            raise RolloutError(f"{self.url}/v1/chat/completions answered with something that is no object")
        return answer

    async def _control(
        self,
        method: str,
        path: str,
        limit: str,
        body: JsonObject | None = None,
        *,
        development: bool = False,
    ) -> JsonValue:
        """A request that is asked once; waiting for its answer is told. limit: the setting that says how long."""
        async with telling(self._waiting(limit), lambda: f"{method} {path} is not answered", self._clock):
            return await self._request(method, path, limit, body, development=development)

    def _waiting(self, limit: str, first_s: float = EVERY_S) -> Waiting:
        whom = f"the rollout server at {self.url}"
        return Waiting(
            whom,
            self._say,
            limit_s=self._limits[limit],
            setting=limit,
            first_s=first_s,
            now=self._clock.now,
        )

    async def _request(
        self,
        method: str,
        path: str,
        limit: str,
        body: JsonObject | None = None,
        *,
        attempts: int = 1,
        development: bool = False,
    ) -> JsonValue:
        for attempt in range(1, attempts + 1):
            status, reason = 0, ""
            try:
                async with (
                    self._clock.deadline(self._limits[limit]),
                    self._session.request(
                        method, self.url + path, json=body, timeout=aiohttp.ClientTimeout(total=None)
                    ) as response,
                ):
                    status, text = response.status, await response.text()
                if status == 200:
                    return parse_json(text) if text else None
                reason = f"answered {status}: {text[:_SHOWN].strip()}"
            except aiohttp.ClientError as error:
                reason = f"failed: {broken_connection(error)}"
                raise ServerLost(f"rollout server: {method} {self.url}{path} {reason}") from error
            except TimeoutError:
                reason = f"did not answer within {self._limits[limit]:g} s ({limit})"
            except json.JSONDecodeError as error:
                reason = f"failed: {error}"
            if status == 404 and development:
                raise RolloutError(
                    f"{self.url} has no {path}: its development routes are off, or it is older than vLLM 0.32; set "
                    "VLLM_SERVER_DEV_MODE=1 for the server (launch/serve_rollout.py does)"
                )
            if status and status not in _RETRIED:
                break
            if attempt < attempts:
                wait = 0.5 * 2**attempt
                self._say(
                    f"the rollout server at {self.url} {reason}: asked again in {wait:g} s, {attempts - attempt} of "
                    f"{attempts} tries left"
                )
                await self._clock.sleep(wait)
        failed = ServerLost if status >= 500 else RolloutError
        raise failed(f"rollout server: {method} {self.url}{path} {reason}")


@contextmanager
def _as_rollout_errors(url: str) -> Iterator[None]:
    try:
        yield
    except ServerGone as error:
        raise ServerLost(f"rollout server at {url}: {error}") from error
    except SleepModeError as error:
        raise RolloutError(str(error)) from error


class ServerWaits:
    """Waiting for servers: those that are still starting, those that are lost, and what is under way with them.

    A run that was asked to end does not wait for a server that is gone. It ends as after a long outage, with what was
    done before saved, while whoever asked it still has the patience.

    ``run`` and ``next`` are for the thread that draws, the others for ``loop``.

    say: where it is told that a server is waited for. limit_s: ``rollout.vllm.outage_timeout_s``.
    """

    def __init__(self, loop: LoopThread, say: Callable[[str], None], limit_s: float) -> None:
        self._loop, self._say, self._limit_s = loop, say, limit_s
        self._gone: set[str] = set()

    async def there(self, server: VllmServer) -> None:
        """Returns when it answers: whoever starts server and run at once has one that is still loading its model."""
        try:
            await server.version()
        except ServerLost as error:
            await self.back(server, error, "not there yet")

    async def back(self, server: VllmServer, error: ServerLost, what: str = "lost") -> None:
        """Returns when it answers again. what, error: how it is told."""
        self._say(
            f"{what}: {error}; waiting for it at most {self._limit_s:g} s (rollout.vllm.outage_timeout_s)"
        )
        self._gone.add(server.url)
        try:
            await server.back()
        finally:
            self._gone.discard(server.url)

    def run(self, work: Coroutine[object, object, T]) -> T:
        """The result of ``work``. Raises RolloutError where the run was asked to end and a server is gone."""
        future = self._loop.submit(work)
        try:
            return until_ended(future, self._end_if_asked).result()
        except BaseException:
            future.cancel()
            raise

    def next(self, at: queue.SimpleQueue[T]) -> T:
        """What arrives next. Raises as ``run``."""
        return arrived(at, self._end_if_asked)

    def _end_if_asked(self) -> None:
        if self._gone and requested():
            gone = ", ".join(sorted(self._gone))
            raise RolloutError(f"the run was asked to end while the rollout server at {gone} does not answer")
