"""Processes of a run as threads of one, for tests of what they agree on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tests.patience import GUARD_S
from vcap_jax.parallel.processes import PeerFailed, Processes

T = TypeVar("T")


class _Thread(Processes):
    """``all_gather_objects`` through shared memory; the rest is what processes do."""

    def __init__(self, index: int, count: int, table: dict[int, Any], gate: threading.Barrier) -> None:
        super().__init__(index, count)
        self._table, self._gate = table, gate

    def all_gather_objects(self, what: str, value: Any) -> list[Any]:
        try:
            self._table[self.index] = (what, value)
            self._gate.wait(timeout=GUARD_S)
            entries = [self._table[peer] for peer in range(self.count)]
            self._gate.wait(timeout=GUARD_S)
        except threading.BrokenBarrierError as error:
            raise PeerFailed(f"nobody else came to {what!r}") from error
        assert {there for there, _ in entries} == {what}
        return [theirs for _, theirs in entries]

    def fail(self, error: BaseException) -> None:
        self._gate.abort()


def in_threads(count: int, work: Callable[[Processes], T]) -> list[T]:
    """What ``work`` returns for each of ``count`` processes; raises the first exception."""
    gate, table = threading.Barrier(count), {}

    def one(index: int) -> T:
        processes = _Thread(index, count, table, gate)
        try:
            return work(processes)
        except BaseException as error:
            processes.fail(error)
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(one, index) for index in range(count)]
        return [future.result() for future in futures]
