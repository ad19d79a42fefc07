"""Counts of what the judge was asked and how it went."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import Usage


@dataclass(frozen=True, kw_only=True)
class JudgeStatistics:
    """Totals of a client, or of one of its endpoints.

    requests: HTTP requests sent. retries: how many of them repeated an earlier one.
    judged, failed: questions that ended with a value from a server, and with a failure. store_hits: questions
    that the store answered, which are in neither.
    failures: final failures by reason. errors: single HTTP requests that failed, by reason; most are retried.
    latency_sum_s, latency_max_s: over HTTP requests. busy_s: time with at least one request under way.
    prompt_tokens, cached_tokens, completion_tokens: as the server counts them, 0 where it does not.
    media_tokens: prompt tokens of pictures and videos with what stands between them, where the server tells.
    media_sent, media_named: pictures and videos that went along with a request, and that were only named.
    media_resent: requests repeated because the server had lost what they named; no retry.
    outages: how often an endpoint dropped out. waited_s: what all questions together waited for one.
    endpoints: the same by address, where there are several; empty for a single one.
    """

    requests: int = 0
    retries: int = 0
    judged: int = 0
    failed: int = 0
    store_hits: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    latency_sum_s: float = 0.0
    latency_max_s: float = 0.0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    media_tokens: int = 0
    media_sent: int = 0
    media_named: int = 0
    media_resent: int = 0
    outages: int = 0
    waited_s: float = 0.0
    endpoints: Mapping[str, JudgeStatistics] = field(default_factory=dict)

    def since(self, earlier: JudgeStatistics) -> JudgeStatistics:
        """What was added after ``earlier``. The maximum cannot be taken apart and is that of the whole
        time.
        """
        added = {name: getattr(self, name) - getattr(earlier, name) for name in _SUMS}
        return JudgeStatistics(
            **added,
            latency_max_s=self.latency_max_s,
            failures=dict(Counter(self.failures) - Counter(earlier.failures)),
            errors=dict(Counter(self.errors) - Counter(earlier.errors)),
            endpoints={
                name: now.since(earlier.endpoints.get(name, JudgeStatistics()))
                for name, now in self.endpoints.items()
            },
        )


_NO_SUMS = ("latency_max_s", "failures", "errors", "endpoints")
_SUMS = tuple(field.name for field in fields(JudgeStatistics) if field.name not in _NO_SUMS)


class _Tally:
    """Sums of one endpoint, or of all."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(int)  # whole numbers stay whole
        self.failures, self.errors = Counter[str](), Counter[str]()
        self.under_way, self.busy_from = 0, 0.0

    def add(self, **counts: float) -> None:
        for name, count in counts.items():
            self.sums[name] += count

    def snapshot(self, now: float, endpoints: Mapping[str, JudgeStatistics]) -> JudgeStatistics:
        busy_s = self.sums["busy_s"] + (now - self.busy_from if self.under_way else 0)
        return JudgeStatistics(
            **{**self.sums, "busy_s": busy_s},  # type: ignore[arg-type]
            failures=dict(self.failures),
            errors=dict(self.errors),
            endpoints=endpoints,
        )


class StatisticsRecorder:
    """Adds up from the event loop; read from any thread.

    addresses: of the endpoints. clock: monotonic seconds.
    """

    def __init__(self, addresses: tuple[str, ...], clock: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._total = _Tally()
        self._each = {address: _Tally() for address in addresses} if len(addresses) > 1 else {}

    def request_begins(self, address: str) -> None:
        """An HTTP request is being sent."""
        with self._tallies(address) as tallies:
            for tally in tallies:
                if tally.under_way == 0:
                    tally.busy_from = self._clock()
                tally.under_way += 1

    def request(self, address: str, seconds: float, failure: Failure | None, usage: Usage | None) -> None:
        """It ended. usage: where there was an answer."""
        tokens: dict[str, int] = {}
        if usage is not None:
            tokens = {**vars(usage), "media_tokens": sum(usage.media_tokens.values())}
        with self._tallies(address) as tallies:
            for tally in tallies:
                tally.under_way -= 1
                if tally.under_way == 0:
                    tally.sums["busy_s"] += self._clock() - tally.busy_from
                tally.sums["latency_max_s"] = max(seconds, tally.sums["latency_max_s"])
                if failure is not None:
                    tally.errors[failure.reason] += 1
                tally.add(requests=1, latency_sum_s=seconds, **tokens)

    def media(self, address: str, *, sent: int = 0, named: int = 0, resent: int = 0) -> None:
        """Pictures and videos of a request."""
        self._add(address, media_sent=sent, media_named=named, media_resent=resent)

    def retry(self, address: str) -> None:
        """A further request follows the one that this address got."""
        self._add(address, retries=1)

    def judgement(self, address: str, failure: Failure | None) -> None:
        """A question ended. address: of the endpoint asked last."""
        with self._tallies(address) as tallies:
            for tally in tallies:
                tally.sums["judged" if failure is None else "failed"] += 1
                if failure is not None:
                    tally.failures[failure.reason] += 1

    def store_hits(self, count: int) -> None:
        """Questions that the store answered."""
        with self._lock:
            self._total.sums["store_hits"] += count

    def snapshot(self, outages: Mapping[str, int] | None = None, waited_s: float = 0.0) -> JudgeStatistics:
        """All counts. outages: so far, by address."""
        outages = outages or {}
        with self._lock:
            for address, tally in self._each.items():
                tally.sums["outages"] = outages.get(address, 0)
            self._total.sums["outages"] = sum(outages.values())
            self._total.sums["waited_s"] = waited_s
            now = self._clock()
            return self._total.snapshot(
                now, {name: tally.snapshot(now, {}) for name, tally in self._each.items()}
            )

    def _add(self, address: str, **counts: float) -> None:
        with self._tallies(address) as tallies:
            for tally in tallies:
                tally.add(**counts)

    @contextmanager
    def _tallies(self, address: str) -> Iterator[list[_Tally]]:
        """The sums that a request to ``address`` enters, while nobody else writes to them."""
        with self._lock:
            yield [self._total, self._each[address]] if address in self._each else [self._total]
