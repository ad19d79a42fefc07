"""Counts of what the judge was asked and how it went."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vcap_jax.reward.failures import Failure


@dataclass(frozen=True, kw_only=True)
class JudgeStatistics:
    """Totals of a client.

    requests: HTTP requests sent. retries: how many of them repeated an earlier one.
    judged, failed: questions that ended with a value, and with a failure.
    failures: final failures by reason. errors: single HTTP requests that failed, by reason; most are retried.
    latency_sum_s, latency_max_s: over HTTP requests.
    prompt_tokens, cached_tokens, completion_tokens: as the server counts them, 0 where it does not.
    """

    requests: int = 0
    retries: int = 0
    judged: int = 0
    failed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    latency_sum_s: float = 0.0
    latency_max_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def since(self, earlier: JudgeStatistics) -> JudgeStatistics:
        """What was added after ``earlier``. The maximum cannot be taken apart and is that of the whole
        time.
        """
        return JudgeStatistics(
            requests=self.requests - earlier.requests,
            retries=self.retries - earlier.retries,
            judged=self.judged - earlier.judged,
            failed=self.failed - earlier.failed,
            failures=_difference(self.failures, earlier.failures),
            errors=_difference(self.errors, earlier.errors),
            latency_sum_s=self.latency_sum_s - earlier.latency_sum_s,
            latency_max_s=self.latency_max_s,
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            cached_tokens=self.cached_tokens - earlier.cached_tokens,
            completion_tokens=self.completion_tokens - earlier.completion_tokens,
        )


class StatisticsRecorder:
    """Adds up from the event loop; read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._latency_sum = 0.0
        self._latency_max = 0.0

    def request(self, seconds: float, failure: Failure | None) -> None:
        """One HTTP exchange ended."""
        with self._lock:
            self._add("requests", 1)
            self._latency_sum += seconds
            self._latency_max = max(self._latency_max, seconds)
            if failure is not None:
                self._errors[failure.reason] = self._errors.get(failure.reason, 0) + 1

    def retry(self) -> None:
        """A further request for the same question follows."""
        with self._lock:
            self._add("retries", 1)

    def judgement(self, failure: Failure | None) -> None:
        """A question ended."""
        with self._lock:
            self._add("judged" if failure is None else "failed", 1)
            if failure is not None:
                self._failures[failure.reason] = self._failures.get(failure.reason, 0) + 1

    def tokens(self, usage: Mapping[str, Any]) -> None:
        """The ``usage`` field of a completion; fields that are absent or null count as 0."""
        details = usage.get("prompt_tokens_details") or {}
        with self._lock:
            self._add("prompt_tokens", int(usage.get("prompt_tokens") or 0))
            self._add("completion_tokens", int(usage.get("completion_tokens") or 0))
            self._add("cached_tokens", int(details.get("cached_tokens") or 0))

    def snapshot(self) -> JudgeStatistics:
        with self._lock:
            return JudgeStatistics(
                **self._counts,
                failures=dict(self._failures),
                errors=dict(self._errors),
                latency_sum_s=self._latency_sum,
                latency_max_s=self._latency_max,
            )

    def _add(self, name: str, count: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + count


def _difference(later: Mapping[str, int], earlier: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name in later if (n := later[name] - earlier.get(name, 0))}
