"""The judge's turns on devices that it shares with the policy (``judge.sleep_mode``).

Outside of its turn it sleeps, and what it is asked is held: no request is sent, no try and no time limit counts.
"""

from __future__ import annotations

import asyncio

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.endpoint import Endpoint
from vcap_jax.reward.endpoints import EndpointPool
from vcap_jax.reward.errors import NotReachable
from vcap_jax.system.waiting import telling


async def begin_turn(pool: EndpointPool, config: JudgeConfig) -> None:
    """Wakes the endpoints up; questions that were held go on their way.

    One that is not there is left out until it is back, as in an outage that begins now. Raises JudgeUnavailable for a
    server that has no sleep mode.
    """
    limit_s, setting = config.deadline_s, "deadline_s"
    if not all(endpoint.can_sleep for endpoint in pool.endpoints):  # their first answer may take longer
        limit_s, setting = config.ready_timeout_s, "ready_timeout_s"

    async def woken(endpoint: Endpoint) -> str | None:
        try:
            await endpoint.begin_turn()
        except NotReachable as error:
            return str(error)
        return None

    async with telling(
        pool.waiting(limit_s, f"{pool.role.settings}.{setting}"), lambda: "it wakes up", pool.clock
    ):
        found = await asyncio.gather(*map(woken, pool.endpoints))
    pool.turn.set()
    for endpoint, wrong in zip(pool.endpoints, found, strict=True):
        if wrong is None:
            endpoint.breaker.reachable(wanted=False)
        else:
            endpoint.breaker.since = None
            endpoint.breaker.open(wrong)
        pool.after_change(endpoint)


async def end_turn(pool: EndpointPool, limit_s: float) -> None:
    """Has the endpoints sleep; questions are held from now on. limit_s: for each answer (``judge.deadline_s``).

    One that is not there holds no memory, and is looked for when the next turn begins. Raises JudgeUnavailable for one
    that keeps its memory.
    """
    pool.turn.clear()
    async with telling(
        pool.waiting(limit_s, f"{pool.role.settings}.deadline_s"), lambda: "it falls asleep", pool.clock
    ):
        ended = await asyncio.gather(*(e.end_turn() for e in pool.endpoints), return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, BaseException) and not isinstance(outcome, NotReachable):
            raise outcome
