"""A circuit breaker: when an endpoint is left out, and how it comes back. Pure but for the clock.

::

    closed -- failures in a row --> open -- a good probe --> half open -- an answer --> closed
                                     ^                          |
                                     +------ a failure ---------+

Half open lets one request through, the trial. What a request sent before the opening comes back with says
nothing about the endpoint now and is passed over, unless it is an answer (and that too, where the endpoint takes
nothing new: ``EndpointPool.release``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half_open"]


class CircuitBreaker:
    """One endpoint's.

    threshold: failures in a row that open it, at least 1. clock: monotonic seconds.
    """

    def __init__(self, threshold: int, clock: Callable[[], float]) -> None:
        self._threshold, self._clock = threshold, clock
        self._failures = self._doubts = 0
        self.state: State = "closed"
        self._on_trial = False
        self.epoch = 0
        """How often it has opened from closed: outages so far."""
        self.since: float | None = None
        """When the present outage began; kept until an answer ends it."""
        self.reason = ""
        """What was seen last."""

    @property
    def closed(self) -> bool:
        return self.state == "closed"

    @property
    def admits(self) -> bool:
        """Whether a request may be sent now."""
        return self.state == "closed" or (self.state == "half_open" and not self._on_trial)

    def begin(self) -> bool:
        """A request is being sent. True if it is the trial of a half-open breaker."""
        if not self.admits:
            raise RuntimeError("a request through an open breaker")
        self._on_trial = self.state == "half_open"
        return self._on_trial

    def answered(self) -> None:
        """The endpoint gave an answer, whatever it said."""
        self._failures = self._doubts = 0
        self.state, self._on_trial, self.since = "closed", False, None

    def failed(self, reason: str, *, trial: bool) -> None:
        """No connection, or one that broke."""
        if self.state == "closed":
            self._failures += 1
            if self._failures >= self._threshold:
                self.open(reason)
        elif trial:
            self.open(reason)

    def doubted(self, reason: str, *, trial: bool) -> bool:
        """A timeout or a server's error: True where it is time to ask the endpoint how it is."""
        if trial:
            self.open(reason)
        if self.state != "closed":
            return False
        self._doubts += 1
        if self._doubts < self._threshold:
            return False
        self._doubts = 0
        return True

    def abandoned(self, *, trial: bool) -> None:
        """The request was given up from our side; it says nothing, but a trial makes room for another."""
        if trial and self.state == "half_open":
            self._on_trial = False

    def open(self, reason: str) -> None:
        """Leave the endpoint out."""
        if self.state == "closed":
            self.epoch += 1
        if self.since is None:
            self.since = self._clock()
        self.state, self._on_trial, self.reason = "open", False, reason
        self._failures = self._doubts = 0

    def reachable(self, *, wanted: bool) -> None:
        """A probe went well: one request may try, or any number where none is ``wanted`` at the moment."""
        if self.state != "open":
            return
        if wanted:
            self.state, self._on_trial = "half_open", False
        else:
            self.answered()
