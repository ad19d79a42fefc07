"""What came of one HTTP exchange with a judge: whose answer it is, and whether, when and where to ask again.

On one connection of HTTP/1.1 an answer belongs to the request before it, and a connection whose answer is not read to
its end is closed, so a late answer cannot be taken for the next one. Whatever lies between us and the model (a proxy,
a cache, the server's own queue) can still mix answers up. Every request therefore carries an identity of its own in
``X-Request-Id``, which vLLM and the embedded judge give back as part of the completion's ``id``. An answer with the
identity of another request is refused; so is one without any from a server that gives them back. A server that never
does cannot be checked in this way, nor one that mixes up texts behind the right identities.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.endpoint import Endpoint, Reply
from vcap_jax.reward.endpoints import Outcome
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import (
    BUSY,
    LIMITED,
    Completion,
    error_message,
    may_pass,
    read_completion,
    short,
)

HEADER = "X-Request-Id"
_IDENTITY = re.compile(r"vcap-[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class Try:
    """One HTTP exchange: a completion, or a failure with whether and when to ask again.

    gone: the server refuses the key, or does not know the model or the address. limited: it says that too much is
    asked of it. busy: it says this if it is well, and else that it is not.
    """

    outcome: Outcome
    completion: Completion | None = None
    failure: Failure | None = None
    again: bool = True
    retry_after: float | None = None
    gone: bool = False
    limited: bool = False
    busy: bool = False


class FailedAt:
    """Where one question has failed. tries: the number of the last such try by endpoint, infinite where it was for
    good: it refuses the question, or asks to wait for longer than ``judge.max_retry_after_s``. elsewhere: another is in
    that has not failed it for good: what one refuses, as a proxy with a limit may, the next may answer."""

    def __init__(self, config: JudgeConfig, endpoints: Sequence[Endpoint]) -> None:
        self._most_s, self._endpoints = config.max_retry_after_s, endpoints
        self.tries: dict[Endpoint, float] = {}
        self.elsewhere = False

    def saw(self, endpoint: Endpoint, tried: Try, attempt: int) -> tuple[float | None, bool]:
        """Takes note of a try. Returns the seconds that must be waited for, and whether they are too many: none where
        another endpoint may answer. With all its tries at one, what another could answer would be lost."""
        wait = tried.retry_after
        shut = wait is not None and wait > self._most_s
        final = shut or (tried.completion is None and not tried.again)
        if tried.completion is None:
            self.tries[endpoint] = math.inf if final else attempt
        self.elsewhere = final and self._better(math.inf)
        # After a failure for good another try is better at any other endpoint, after others at one that has not failed.
        return (None, False) if self._better(math.inf if final else 0) else (wait, shut)

    def _better(self, most: float) -> bool:
        """Whether an endpoint is in whose last failure has a lower number."""
        return any(e.breaker.admits and self.tries.get(e, -1) < most for e in self._endpoints)


def new_identity() -> str:
    """An identity that no other request has."""
    return f"vcap-{uuid.uuid4().hex}"


def read_reply(reply: Reply, endpoint: Endpoint, identity: str) -> Try:
    """An answer as it came to the request ``identity``; one to another request is a failure."""
    if reply.status != 200:
        away = reply.elsewhere is not None
        said = f"it sends us to {reply.elsewhere}" if away else error_message(reply.raw)
        return Try(
            outcome="doubt" if reply.status >= 500 or away else "answered",
            failure=Failure(reason="http_status", detail=f"{reply.status}: {said}"),
            again=away or may_pass(reply.status),
            retry_after=reply.retry_after,
            gone=reply.status in (401, 403, 404),
            limited=reply.status == LIMITED,
            busy=reply.status in BUSY,
        )
    completion = read_completion(reply.raw)
    if completion is None:
        detail = f"no chat completion in the answer: {short(reply.raw)}"
        return Try(outcome="answered", failure=Failure(reason="bad_response", detail=detail))
    found = _IDENTITY.search(completion.id or "")
    if found.group() != identity if found else endpoint.echoes:
        detail = f"asked as {identity}, answered as {completion.id}"
        return Try(outcome="answered", failure=Failure(reason="foreign_answer", detail=detail))
    endpoint.echoes = endpoint.echoes or found is not None
    return Try(outcome="answered", completion=completion)


def backoff(config: JudgeConfig, attempt: int, retry_after: float | None, jitter: float) -> float:
    """Seconds until the next try. attempt: how many count so far, from 1. retry_after: what the server asks for.
    jitter: from 0 to 1; not all come back at the same moment."""
    wait = min(config.max_backoff_s, config.backoff_s * 2.0 ** min(attempt - 1, 30)) * (0.5 + 0.5 * jitter)
    return wait if retry_after is None else retry_after + wait
