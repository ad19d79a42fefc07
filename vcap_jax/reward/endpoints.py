"""Which endpoint a question goes to: routing, failover, and waiting while none answers.

Every question brings a route, the content hash of its group's media, which prefers the endpoints in an order of its own
(``reward.routing``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import aiohttp

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.endpoint import Endpoint
from vcap_jax.reward.errors import JudgeOutage, JudgeUnavailable, NotReachable
from vcap_jax.reward.http_answers import ServerCard
from vcap_jax.reward.role import Role
from vcap_jax.reward.routing import preference
from vcap_jax.system.clock import Clock
from vcap_jax.system.waiting import Waiting

Outcome = Literal["answered", "connection", "doubt", "abandoned"]

_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.5, 5.0


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to send one request to an endpoint; it must be released.

    trial: the request decides about a half-open breaker. epoch: outages of the endpoint so far. leads: the
    prefix that others wait for until the server has read it (:meth:`EndpointPool.end_lead`) or failed to. number: of
    all leases.
    """

    endpoint: Endpoint
    trial: bool
    epoch: int
    leads: str | None
    number: int

    @property
    def lost(self) -> bool:
        """Whether the endpoint turned out to be down after the lease was given."""
        return self.trial or self.endpoint.breaker.epoch > self.epoch

    @property
    def outage_id(self) -> tuple[str, int, int]:
        """What took a lease that was lost: an outage, the same for all whom it took; or, of a server that had come back
        and answered its probe, the trial itself.
        """
        return (self.endpoint.base, self.epoch, self.number if self.trial else -1)


class EndpointPool:
    """All endpoints of one judge, inside one event loop.

    say: where messages about waiting go. role: what they call the judge.
    """

    def __init__(
        self,
        config: JudgeConfig,
        session: Callable[[], aiohttp.ClientSession],
        say: Callable[[str], None],
        clock: Clock,
        role: Role,
    ) -> None:
        self.endpoints = [Endpoint(url, config, session, clock, role) for url in config.urls]
        self._addresses = [endpoint.base for endpoint in self.endpoints]
        self._config = config
        self.say, self.clock, self.role = say, clock, role
        self._model: str | None = None
        self._changed = asyncio.Event()
        self.asking = 0
        """Questions under way: those that have a request out, wait for an endpoint or pause before another try."""
        self._waiting = self._leases = 0
        self._announcer: asyncio.Task[None] | None = None
        self._announced: float | None = None
        self.turn = asyncio.Event()
        """Set while requests may be sent: always, or in the judge's turn (``reward.judge_turns``)."""
        if not config.sleep_mode:
            self.turn.set()
        self.waited_s = 0.0
        """Seconds that all questions together have waited for an endpoint to come back."""

    @property
    def whom(self) -> str:
        """The judge in words, with its addresses."""
        return f"{self.role.who} at {', '.join(self._addresses)}"

    def waiting(self, limit_s: float, setting: str, *, since: float | None = None) -> Waiting:
        """A wait for the judge, which is told. setting: the configuration's name of the limit."""
        return Waiting(self.whom, self.say, limit_s=limit_s, setting=setting, since=since, now=self.clock.now)

    # -- what the servers are --------------------------------------------------------------------------------

    async def model(self) -> str:
        """The judge's model, from the configuration or from the first endpoint that tells; waits through an
        outage. Raises JudgeUnavailable, JudgeOutage among others.

        Once it is known it is told at once: whoever holds a place at an endpoint must not wait for another.
        """
        if self._config.model is not None:
            return self._config.model
        if self._model is None:
            await self.card()
            for endpoint in self.endpoints:
                if endpoint.card is not None:
                    self.agree(endpoint, endpoint.card)
        assert self._model is not None
        return self._model

    async def card(self) -> ServerCard:
        """What some endpoint says of itself; waits through an outage."""
        known = [endpoint.card for endpoint in self.endpoints if endpoint.card is not None]
        while not known:
            lease = await self.acquire(self.order(""))
            assert lease.endpoint.card is not None
            known.append(lease.endpoint.card)
            self.release(lease, "abandoned")
        return known[0]

    def agree(self, endpoint: Endpoint, card: ServerCard) -> None:
        """Raises JudgeUnavailable unless the endpoint serves the judge's model."""
        wanted = self._config.model or self._model
        if wanted is None:
            if not card.models:
                raise JudgeUnavailable(
                    f"{endpoint.base}/models is not there, or names none: check {self.role.addresses} "
                    "(http://HOST:PORT, or http://HOST/PREFIX/v1); for a server without a list name its model in "
                    f"{self.role.model}"
                )
            if len(card.models) > 1:
                listed = ", ".join(card.models[:20])
                raise JudgeUnavailable(
                    f"{endpoint.base} lists {len(card.models)} models ({listed}): name one in {self.role.model}"
                )
            (self._model,) = card.models
        elif card.models and wanted not in card.models:
            told = f"the other endpoints serve {wanted}"
            if self._config.model:  # a run's is named in any case
                told = f"{self.role.model} names {wanted} (or null, and it answered at the start)"
            raise JudgeUnavailable(
                f"{endpoint.base} serves {', '.join(card.models[:20])}, and {told}: all of {self.role.addresses} "
                "must serve the same model under the same name (--served-model-name)"
            )

    def summary(self, seen: Mapping[Endpoint, str]) -> str:
        """What was seen of some of the endpoints, with their addresses where there are others."""
        if len(self.endpoints) == 1:
            return "".join(seen.values())
        return "; ".join(f"{endpoint.base}: {wrong}" for endpoint, wrong in seen.items())

    # -- leases ----------------------------------------------------------------------------------------------

    def order(self, route: str) -> list[int]:
        """The endpoints as the route prefers them."""
        return preference(route, self._addresses)

    async def acquire(
        self, order: Sequence[int], *, prefix: str | None = None, avoid: dict[Endpoint, float] | None = None
    ) -> Lease:
        """A place at the first endpoint of ``order`` that takes requests; waits for one.

        prefix: what the request shares with others of its group; where the server keeps media, the first one leads and
            the others wait until the server has read it. avoid: endpoints that come last, by these numbers.
        Raises JudgeOutage after too long without any endpoint, JudgeUnavailable for one that serves another
        model. Outside of the judge's turn it waits for that.
        """
        ranked = sorted((self.endpoints[index] for index in order), key=lambda e: (avoid or {}).get(e, 0))
        while True:
            await self.turn.wait()
            endpoint = next((e for e in ranked if e.breaker.admits), None)
            if endpoint is None:
                await self._wait_for_change()
                continue
            if not await self._introduced(endpoint):
                continue
            leads = None
            if prefix is not None and self._config.lead_request and endpoint.keeps_media:
                if prefix in endpoint.leads:
                    await endpoint.leads[prefix].wait()
                    continue
                if prefix not in endpoint.warm:
                    leads = prefix
                    endpoint.leads[prefix] = asyncio.Event()
            try:
                await endpoint.places.acquire()
            except BaseException:
                self._end_lead(endpoint, leads)
                raise
            if endpoint.breaker.admits:
                trial = endpoint.breaker.begin()
                self._leases += 1
                return Lease(
                    endpoint=endpoint,
                    trial=trial,
                    epoch=endpoint.breaker.epoch,
                    leads=leads,
                    number=self._leases,
                )
            endpoint.places.release()
            self._end_lead(endpoint, leads)

    def release(self, lease: Lease, outcome: Outcome, reason: str = "") -> bool:
        """The request is through. True where the endpoint should be asked how it is (:meth:`examine`)."""
        endpoint, breaker = lease.endpoint, lease.endpoint.breaker
        endpoint.places.release()
        self._end_lead(endpoint, lease.leads)
        doubtful = False
        if outcome == "answered":
            if endpoint.greeted or lease.epoch == breaker.epoch:  # else it only finishes what it had begun
                breaker.answered()
        elif outcome == "connection":
            breaker.failed(reason, trial=lease.trial)
        elif outcome == "doubt":
            doubtful = breaker.doubted(reason, trial=lease.trial)
        else:
            breaker.abandoned(trial=lease.trial)
        self.after_change(endpoint)
        return doubtful

    async def examine(self, endpoint: Endpoint, *, refused: bool = False) -> None:
        """Ask the endpoint how it is, and leave it out if it is not well.

        refused: it refuses the key of a question, knows no such model, or answers with an error. Then it is greeted
        too, now and until it takes that: some list their models to everybody, and vLLM is well while it is stopped.
        """
        endpoint.greeted = endpoint.greeted and not refused
        seen = await self._seen_wrong(endpoint)
        if seen is not None:
            self.leave_out(endpoint, seen)

    def leave_out(self, endpoint: Endpoint, seen: str) -> None:
        """It is not well, and looked for until it is."""
        if endpoint.breaker.closed:
            endpoint.breaker.open(seen)
            self.after_change(endpoint)

    async def _introduced(self, endpoint: Endpoint) -> bool:
        """Whether it is known what the endpoint serves; one that does not say is left out at once."""
        async with endpoint.introduction:
            # One asks for all: whoever waited here finds out, or finds the endpoint left out.
            if endpoint.card is None and endpoint.breaker.admits:
                try:
                    await endpoint.introduce()
                except NotReachable as error:
                    endpoint.breaker.open(str(error))
                    self.after_change(endpoint)
        if endpoint.card is None:
            return False
        self.agree(endpoint, endpoint.card)
        return True

    def end_lead(self, lease: Lease) -> None:
        """The server has read what the lease's request shares with its group: the others may follow."""
        if lease.leads is not None:
            lease.endpoint.warm.put(lease.leads, True)
            self._end_lead(lease.endpoint, lease.leads)

    def _end_lead(self, endpoint: Endpoint, prefix: str | None) -> None:
        leading = endpoint.leads.pop(prefix, None) if prefix is not None else None
        if leading is not None:
            leading.set()

    # -- outages ---------------------------------------------------------------------------------------------

    @property
    def unreachable(self) -> str | None:
        """That an outage of all endpoints goes on, in words."""
        if self._since() is None:
            return None
        return f"{self.whom} does not answer ({self._seen()})"

    async def _wait_for_change(self) -> None:
        left = self._left()
        if left <= 0:
            raise JudgeOutage(
                f"{self.whom} did not answer for {self._config.outage_timeout_s:g} s "
                f"({self._outage_setting}); last seen: {self._seen()}"
            )
        self._waiting += 1
        began = self.clock.now()
        try:
            await self.clock.wait(self._changed, left)
        finally:
            self._waiting -= 1
            self.waited_s += self.clock.now() - began

    @property
    def _outage_setting(self) -> str:
        return f"{self.role.settings}.outage_timeout_s"

    def _seen(self) -> str:
        return self.summary({endpoint: endpoint.breaker.reason for endpoint in self.endpoints})

    def _since(self) -> float | None:
        """When the last endpoint dropped out; None while one is in."""
        times = [endpoint.breaker.since for endpoint in self.endpoints]
        known = [t for t in times if t is not None]
        return max(known) if len(known) == len(times) else None

    def _left(self) -> float:
        since = self._since()
        timeout = self._config.outage_timeout_s
        return timeout if since is None else since + timeout - self.clock.now()

    def after_change(self, endpoint: Endpoint) -> None:
        """Its breaker may have changed: those who wait find out, and one that is left out is looked for."""
        if endpoint.breaker.state == "open" and endpoint.probing is None:
            endpoint.forget()
            endpoint.probing = asyncio.create_task(self._probe_until_back(endpoint))
        if endpoint.breaker.closed and endpoint.told_lost is not None:
            gone = self.clock.now() - endpoint.told_lost
            endpoint.told_lost = None
            self.say(f"{self.role.who} at {endpoint.base} answers again after {gone:.0f} s")
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _probe_until_back(self, endpoint: Endpoint) -> None:
        wait, breaker = _FIRST_PROBE_S, endpoint.breaker
        try:
            while not breaker.closed:
                await self.turn.wait()
                if breaker.state == "open":
                    seen = await self._seen_wrong(endpoint)
                    if seen is None:
                        breaker.reachable(wanted=self._wanted)
                    else:
                        breaker.reason = seen
                        self._tell_lost(endpoint)
                elif breaker.admits and not self._wanted:
                    breaker.answered()  # nobody is there to try it
                self.after_change(endpoint)
                if not breaker.closed:
                    await self.clock.sleep(wait)
                    wait = min(2 * wait, _LONGEST_PROBE_S)
        finally:
            endpoint.probing = None

    @property
    def _wanted(self) -> bool:
        """Whether somebody will try an endpoint that seems to be back: who waits for one, and while there is no other
        also who pauses between two tries. A good probe is then not enough to call an outage over.
        """
        return self._waiting > 0 or (self._since() is not None and self.asking > 0)

    async def _seen_wrong(self, endpoint: Endpoint) -> str | None:
        try:
            seen = await endpoint.probe()
            if seen is None and endpoint.card is not None:
                self.agree(endpoint, endpoint.card)
            if seen is None and not endpoint.greeted:
                seen = await endpoint.greet(await self.model())
                endpoint.greeted = seen is None
            return seen
        except JudgeUnavailable as error:
            return str(error)

    def _tell_lost(self, endpoint: Endpoint) -> None:
        """One message for an endpoint that others stand in for; repeated ones while none is left."""
        since = self._since()
        if since is not None:
            if since != self._announced:
                self._announced = since
                if self._announcer is not None:
                    self._announcer.cancel()
                self._announcer = asyncio.create_task(self._announce(since))
        elif endpoint.told_lost is None:
            self.say(
                f"{self.role.who} at {endpoint.base} does not answer ({endpoint.breaker.reason}): "
                "the other endpoints take its groups"
            )
        if endpoint.told_lost is None:
            endpoint.told_lost = endpoint.breaker.since

    async def _announce(self, since: float) -> None:
        """Tells of the outage that began then, until it ends."""
        limit_s = self._config.outage_timeout_s
        self.say(
            f"{self.whom} does not answer ({self._seen()}): waiting for it, at most {limit_s:g} s "
            f"({self._outage_setting})"
        )
        waiting = self.waiting(limit_s, self._outage_setting, since=since)
        while self._since() == since and self._left() > 0:
            waiting.tell(self._seen())
            await self.clock.sleep(waiting.until_next_s)

    async def close(self) -> None:
        """End the background tasks."""
        tasks = [e.probing for e in self.endpoints if e.probing is not None]
        if self._announcer is not None:
            tasks.append(self._announcer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
