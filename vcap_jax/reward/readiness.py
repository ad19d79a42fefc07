"""The servers before there is work for them: waited for, or looked at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from vcap_jax.reward.encoded_view import EncodedView
from vcap_jax.reward.endpoint import GREETED, Endpoint
from vcap_jax.reward.endpoints import EndpointPool
from vcap_jax.reward.errors import JudgeUnavailable, NotReachable
from vcap_jax.reward.http_answers import error_message
from vcap_jax.reward.media_cache import Lru, address
from vcap_jax.reward.prompts import ChatMessage
from vcap_jax.system.waiting import telling

_POLL_S = 0.5
_REFUSED = (400, 415, 422)


async def wait_until_ready(pool: EndpointPool, timeout_s: float) -> str:
    """Wait until every endpoint is healthy, serves the judge's model and takes a question; the model's name.

    The wait is told. Raises JudgeUnavailable when the time is up, and at once where waiting cannot help.
    """
    role, clock = pool.role, pool.clock
    setting = f"{role.settings}.ready_timeout_s"
    absent = dict.fromkeys(pool.endpoints, "no answer yet")
    began = clock.now()

    async def ready(endpoint: Endpoint) -> None:
        while (seen := await _look(pool, endpoint, absent)) is not None:
            absent[endpoint] = seen
            waited = clock.now() - began  # the last look, which may have ended at its own limit, included
            left = timeout_s - waited
            if left <= 0:
                raise JudgeUnavailable(
                    f"{role.who} at {endpoint.base} is not ready after {waited:.0f} s; last seen: {seen}. "
                    f"Check {role.addresses} and the server's log, or raise {setting}"
                )
            await clock.sleep(min(_POLL_S, left))
        del absent[endpoint]

    looks = [asyncio.create_task(ready(endpoint)) for endpoint in pool.endpoints]
    try:
        async with telling(pool.waiting(timeout_s, setting), lambda: pool.summary(absent), clock):
            await asyncio.gather(*looks)
    finally:
        for one in looks:
            one.cancel()
    return await pool.model()


async def wait_for_one(pool: EndpointPool, timeout_s: float) -> str:
    """``wait_until_ready`` that is content with one endpoint; others that are not ready are left out until they are,
    whatever is wrong with them. Waiting cannot help only where it can at none."""
    role, clock = pool.role, pool.clock
    hopeless: dict[Endpoint, str] = {}

    async def look_at(endpoint: Endpoint) -> str | None:
        hopeless.pop(endpoint, None)
        try:
            return await _look(pool, endpoint, {})
        except JudgeUnavailable as error:
            hopeless[endpoint] = str(error)
            return str(error)

    setting = f"{role.settings}.ready_timeout_s"
    wrong: dict[Endpoint, str] = {}
    began = clock.now()
    async with telling(pool.waiting(timeout_s, setting), lambda: pool.summary(wrong), clock):
        while len(found := await _not_ready(pool, look_at)) == len(pool.endpoints):
            if len(hopeless) == len(pool.endpoints):
                raise JudgeUnavailable("; ".join(hopeless.values()))  # each names its address
            wrong = found
            waited = clock.now() - began
            if waited >= timeout_s:
                raise JudgeUnavailable(
                    f"{pool.whom} is not ready after {waited:.0f} s; last seen: {pool.summary(wrong)}. Check "
                    f"{role.addresses} and the server's log, or raise {setting}"
                )
            await clock.sleep(min(_POLL_S, timeout_s - waited))
    for endpoint, seen in found.items():
        endpoint.greeted = False  # which may be what is wrong: it is well when it takes one
        pool.leave_out(endpoint, seen)
    return await pool.model()


async def shortest_context(pool: EndpointPool) -> int | None:
    """Tokens of a question and its answer that every endpoint takes; None where none of those that are known tells."""
    model = await pool.model()
    cards = [endpoint.card for endpoint in pool.endpoints if endpoint.card is not None]
    return min((card.contexts[model] for card in cards if model in card.contexts), default=None)


async def check_sight(pool: EndpointPool, shown: EncodedView) -> None:
    """Has every endpoint look at pictures that mean nothing: one that takes no such pictures is told before the work of
    which every question would fail.

    Raises JudgeUnavailable for one that takes a greeting, and refuses it with the pictures. What else goes wrong is for
    those to tell who ask it.
    """
    model = await pool.model()
    message: ChatMessage = {"role": "user", "content": [*shown.parts, GREETED]}
    pictures = address([message], keeps=False, kept=Lru(1)).messages

    async def ask(endpoint: Endpoint) -> None:
        greeting = endpoint.greeting(model)
        try:
            plain = await endpoint.chat(greeting)
            seen = await endpoint.chat({**greeting, **shown.fields, "messages": pictures})
        except (NotReachable, TimeoutError):
            return
        if plain.status == 200 and seen.status in _REFUSED:
            what = "pictures" if shown.video is None else "a video"
            remedy = "" if shown.video is None else f", or set {pool.role.settings}.video_input=frames"
            raise JudgeUnavailable(
                f"{endpoint.base} takes questions, and refuses one with {what} ({seen.status}: "
                f"{error_message(seen.raw)}). Serve a model that is shown them (gpu_judge/serve.py: --modality)"
                f"{remedy}"
            )

    await asyncio.gather(*map(ask, pool.endpoints))


async def look(pool: EndpointPool) -> str | None:
    """What is wrong now with the endpoints that are not ready; None if all are. Raises JudgeUnavailable where waiting
    cannot help.
    """
    return pool.summary(await _not_ready(pool, lambda endpoint: _look(pool, endpoint, {}))) or None


async def _not_ready(
    pool: EndpointPool, look_at: Callable[[Endpoint], Awaitable[str | None]]
) -> dict[Endpoint, str]:
    """What is wrong now, by endpoint."""
    found = await asyncio.gather(*map(look_at, pool.endpoints))
    return {e: seen for e, seen in zip(pool.endpoints, found, strict=True) if seen is not None}


async def _look(pool: EndpointPool, endpoint: Endpoint, absent: dict[Endpoint, str]) -> str | None:
    """What is wrong with an endpoint now. absent: where what it was last seen doing is put."""
    seen = await endpoint.probe()
    if seen is None:
        assert endpoint.card is not None
        pool.agree(endpoint, endpoint.card)
        absent[endpoint] = "it is up, and has not answered a question yet"
        seen = await endpoint.greet(await pool.model())
    return seen
