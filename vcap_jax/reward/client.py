"""An asynchronous client for any OpenAI-compatible chat endpoint, made for judging.

Every question ends in bounded time with a value or a :class:`Failure`; nothing is raised for what a server or
a network does. Connection errors, deadlines, 408, 409, 429 and 5xx are tried again after a jittered
exponential wait or the server's own Retry-After, and so are answers that cannot be used. Any other 4xx is
final, with the server's message in the failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.statistics import JudgeStatistics, StatisticsRecorder

T = TypeVar("T")
Reader = Callable[[str | None, str | None], T | Failure]

_RETRIED_STATUS = frozenset({408, 409, 429})
_POLL_S = 0.5


class JudgeUnavailable(RuntimeError):
    """The endpoint cannot be used at all; the message says what was tried and what to do."""


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """The end of one question.

    result: what the reader made of the answer, or the last failure.
    seconds: time spent inside HTTP requests, all tries together; waits between them and for a place not
        counted.
    tries: HTTP requests sent.
    """

    result: T | Failure
    seconds: float
    tries: int


@dataclass(frozen=True, kw_only=True)
class _Try:
    """One HTTP exchange: text and finish reason, or a failure with whether and when to ask again."""

    text: str | None = None
    finish_reason: str | None = None
    failure: Failure | None = None
    again: bool = True
    retry_after: float | None = None


class JudgeClient:
    """Use as ``async with JudgeClient(config) as judge``, inside one event loop.

    rng: jitter of the waits; give a seeded one for repeatable tests. sleep: the wait itself.
    """

    def __init__(
        self,
        config: JudgeConfig,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not config.urls:
            raise JudgeUnavailable(
                "judge.urls is empty: give the addresses of OpenAI-compatible endpoints"
            )
        self._config = config
        self._base = base_url(config.urls[0])
        self._headers = _authorisation(config.api_key_env)
        self._rng = rng if rng is not None else random.Random()
        self._sleep = sleep
        self._places = asyncio.Semaphore(config.concurrency)
        self._model = config.model
        self._model_lock = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._recorder = StatisticsRecorder()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # the semaphore is the limit
            timeout=aiohttp.ClientTimeout(total=self._config.deadline_s),
            headers=self._headers,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def statistics(self) -> JudgeStatistics:
        """Totals since the start; safe to call from any thread."""
        return self._recorder.snapshot()

    async def ask(
        self,
        messages: list[dict[str, Any]],
        read: Reader[T],
        *,
        response_format: dict[str, Any] | None = None,
    ) -> Answer[T]:
        """Put one question and read its answer.

        messages: OpenAI chat messages.
        read: turns (content, finish_reason) of the first choice into a value, or a Failure to be tried again.
        response_format: a ``json_schema`` format; sent as ``judge.response_format`` says.
        """
        config = self._config
        seconds, temperature = 0.0, config.temperature
        for attempt in range(1, config.max_tries + 1):
            async with self._places:
                began = time.perf_counter()
                tried = await self._post(messages, temperature, response_format)
                seconds += time.perf_counter() - began
            if tried.failure is None:
                result = read(tried.text, tried.finish_reason)
                if not isinstance(result, Failure):
                    self._recorder.judgement(None)
                    return Answer(result=result, seconds=seconds, tries=attempt)
                failure, temperature = result, config.retry_temperature
            else:
                failure = tried.failure
            too_long = tried.retry_after is not None and tried.retry_after > config.max_retry_after_s
            if attempt == config.max_tries or not tried.again or too_long:
                break
            self._recorder.retry()
            await self._sleep(self._wait(attempt, tried.retry_after))
        self._recorder.judgement(failure)
        return Answer(result=failure, seconds=seconds, tries=attempt)

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        wait = min(self._config.max_backoff_s, self._config.backoff_s * 2.0 ** (attempt - 1))
        wait *= 0.5 + 0.5 * self._rng.random()
        return wait if retry_after is None else retry_after + wait  # not all at the same moment

    async def _post(
        self, messages: list[dict[str, Any]], temperature: float, response_format: dict[str, Any] | None
    ) -> _Try:
        try:
            model = await self.model()
        except JudgeUnavailable as error:
            return _Try(failure=Failure(reason="connection", detail=str(error)))
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": self._config.max_tokens,
        }
        if response_format is not None and self._config.response_format != "none":
            plain = self._config.response_format == "json_object"
            body["response_format"] = {"type": "json_object"} if plain else response_format
        began = time.perf_counter()
        try:
            async with self._open().post(f"{self._base}/chat/completions", json=body) as response:
                raw = await response.read()
                status, headers = response.status, response.headers
        except TimeoutError:
            tried = _Try(
                failure=Failure(reason="timeout", detail=f"no answer in {self._config.deadline_s:g} s")
            )
        except aiohttp.ClientError as error:
            tried = _Try(failure=Failure(reason="connection", detail=f"{type(error).__name__}: {error}"))
        else:
            tried = self._read_status(status, raw, headers.get("Retry-After"))
        self._recorder.request(time.perf_counter() - began, tried.failure)
        return tried

    def _read_status(self, status: int, raw: bytes, retry_after: str | None) -> _Try:
        if status != 200:
            return _Try(
                failure=Failure(reason="http_status", detail=f"{status}: {_error_message(raw)}"),
                again=status >= 500 or status in _RETRIED_STATUS,
                retry_after=_retry_after_seconds(retry_after),
            )
        try:
            payload = json.loads(raw)
            choice = payload["choices"][0]
            content = choice["message"].get("content")
            finish_reason = choice.get("finish_reason")
            usage = payload.get("usage") or {}
            self._recorder.tokens(usage)
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            detail = f"no chat completion in the answer: {_short(raw)}"
            return _Try(failure=Failure(reason="bad_response", detail=detail))
        return _Try(text=_text_of(content), finish_reason=finish_reason)

    async def model(self) -> str:
        """The configured model, or the only one the server lists (asked for once). Raises
        JudgeUnavailable.
        """
        async with self._model_lock:
            if self._model is None:
                self._model = await self._discover_model()
            return self._model

    async def _discover_model(self) -> str:
        status, raw = await self._get(f"{self._base}/models")
        if status != 200:
            raise JudgeUnavailable(f"{self._base}/models answers {status}: {_error_message(raw)}")
        try:
            names = [str(entry["id"]) for entry in json.loads(raw)["data"]]
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            raise JudgeUnavailable(
                f"{self._base}/models lists no models: {_short(raw)}; set judge.model"
            ) from error
        if len(names) != 1:
            listed = ", ".join(names[:20]) or "none"
            raise JudgeUnavailable(
                f"{self._base} lists {len(names)} models ({listed}): name one in judge.model"
            )
        return names[0]

    async def wait_until_ready(self, timeout_s: float) -> str:
        """Wait until the server is healthy and its model is known; the model's name.

        A server without ``/health`` (hosted ones) counts as healthy. Raises JudgeUnavailable when the time is
        up, and at once where waiting cannot help: the key is refused, or there are several models and none is
        named.
        """
        give_up = time.monotonic() + timeout_s
        health = self._base.removesuffix("/v1") + "/health"
        while True:
            try:
                status, raw = await self._get(health)
                if status in (200, 204, 401, 403, 404, 405):
                    status, raw = await self._get(f"{self._base}/models")
                    if status == 200 or (status in (404, 405) and self._model is not None):
                        return await self.model()
                    if status in (401, 403):
                        raise JudgeUnavailable(
                            f"{self._base} refuses the key ({status}: {_error_message(raw)}); set "
                            "judge.api_key_env to the name of the environment variable that holds it"
                        )
                    seen = f"/models answers {status}: {_error_message(raw)}"
                else:
                    seen = f"/health answers {status}: {_error_message(raw)}"
            except _NotReachable as error:
                seen = str(error)
            if time.monotonic() >= give_up:
                raise JudgeUnavailable(
                    f"the judge at {self._base} is not ready after {timeout_s:g} s; last seen: {seen}. "
                    "Check judge.urls and the server's log, or raise judge.ready_timeout_s"
                )
            await asyncio.sleep(min(_POLL_S, max(0.0, give_up - time.monotonic())))

    async def _get(self, url: str) -> tuple[int, bytes]:
        try:
            async with self._open().get(url, timeout=aiohttp.ClientTimeout(total=10)) as response:
                return response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _NotReachable(f"{url}: {type(error).__name__}: {error}") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("JudgeClient is used outside of `async with`")
        return self._session


class _NotReachable(JudgeUnavailable):
    """Nothing answered; it may later."""


def base_url(url: str) -> str:
    """``url`` without a trailing slash; a bare host gets ``/v1``."""
    url = url.rstrip("/")
    return url if urlsplit(url).path else f"{url}/v1"


def _authorisation(api_key_env: str | None) -> dict[str, str]:
    if api_key_env is None:
        return {}
    key = os.environ.get(api_key_env)
    if not key:
        raise JudgeUnavailable(
            f"judge.api_key_env names {api_key_env}, and that environment variable is not set"
        )
    return {"Authorization": f"Bearer {key}"}


def _retry_after_seconds(header: str | None) -> float | None:
    """Seconds of a Retry-After header (a number or an HTTP date); None if absent or unreadable."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds == seconds else None


def _text_of(content: Any) -> str | None:
    """Message content as text; some servers give a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else None


def _error_message(raw: bytes) -> str:
    """The message inside an OpenAI-style error body, or the beginning of whatever came."""
    try:
        payload = json.loads(raw)
        error = payload.get("error", payload)
        message = error.get("message") if isinstance(error, dict) else error
        return str(message or payload.get("detail") or payload)[:500]
    except (ValueError, RecursionError, AttributeError):
        return _short(raw)


def _short(raw: bytes) -> str:
    return " ".join(raw[:400].decode("utf-8", "replace").split()) or "an empty body"
