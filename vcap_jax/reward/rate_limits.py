"""Servers of which too much is asked, by what they say (429, or 503 while they are well) or because they do not answer
in time: how long questions wait, when that is told, and when nobody is answered."""

from __future__ import annotations

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.endpoint import Endpoint
from vcap_jax.reward.endpoints import EndpointPool
from vcap_jax.reward.errors import JudgeOutage
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.tries import Try

_TOLD_AFTER_S, _TOLD_EVERY_S = 10.0, 300.0
_LATE_EVERY_S = 60.0


class RateLimits:
    """Of all endpoints of one judge, inside one event loop. answered: when any question last got an answer that was
    none of these, whatever it said."""

    def __init__(self, config: JudgeConfig, pool: EndpointPool) -> None:
        self.most_s, self.pool = config.outage_timeout_s, pool
        self.answered = self._told = float("-inf")
        self._deadline_s, self._tries = config.deadline_s, config.max_tries
        self._told_late: dict[Endpoint, float] = {}

    def tell(self, endpoint: Endpoint, refusal: Failure, *, since: float) -> None:
        """Says that questions wait, where that takes long."""
        now, role = self.pool.clock.now(), self.pool.role
        if now - since >= _TOLD_AFTER_S and now - self._told >= _TOLD_EVERY_S:
            self._told = now
            self.pool.say(
                f"{role.who} at {endpoint.base} limits how much it is asked ({refusal.detail:.200}): questions wait, "
                f"each at most {self.most_s:g} s ({role.settings}.outage_timeout_s); {role.settings}.concurrency asks "
                "fewer at once"
            )

    def late(self, endpoint: Endpoint) -> None:
        """A try has ended at its deadline. That is told, for a server whose engine hangs is healthy all the while."""
        now, role = self.pool.clock.now(), self.pool.role
        if now - self._told_late.get(endpoint, float("-inf")) >= _LATE_EVERY_S:
            self._told_late[endpoint] = now
            self.pool.say(
                f"{role.who} at {endpoint.base} has not answered a question within {self._deadline_s:g} s "
                f"({role.settings}.deadline_s); it is asked at most {self._tries} times ({role.settings}.max_tries)"
            )


class Refusals:
    """Of one question. count: so many answers in a row said that too much is asked."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits, self._clock = limits, limits.pool.clock
        self._since, self.count = 0.0, 0

    def saw(self, endpoint: Endpoint, tried: Try) -> bool:
        """Takes note of a try. True where it was refused so and may be put again without the loss of a try."""
        now = self._clock.now()
        if not tried.limited:
            self.count = 0
            if tried.outcome == "answered":
                self._limits.answered = now
            return False
        assert tried.failure is not None
        self._since = self._since if self.count else now
        self.count += 1
        self._limits.tell(endpoint, tried.failure, since=self._since)
        return now - self._since < self._limits.most_s

    async def give_up(self, endpoint: Endpoint, refusal: Failure) -> None:
        """Raises JudgeOutage where nobody has been answered meanwhile, and a greeting is refused as well. Else it is
        this question that is refused, such as one of more tokens than a minute may have."""
        pool = self._limits.pool
        if self._limits.answered >= self._since or not await endpoint.limits(await pool.model()):
            return
        role = pool.role
        raise JudgeOutage(
            f"{role.who} at {endpoint.base} refused all questions for {self._clock.now() - self._since:.0f} s "
            f"({role.settings}.outage_timeout_s): {refusal.detail}. Wait until its limits allow more, have them "
            f"raised, or ask fewer questions at once ({role.settings}.concurrency)"
        )
