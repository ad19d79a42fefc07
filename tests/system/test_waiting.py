"""What is said while somebody waits."""

from __future__ import annotations

import asyncio
import json
import re

import jax
import pytest

from tests.fake_clock import FakeClock
from tests.patience import until
from vcap_jax.parallel.processes import PeerFailed, Processes
from vcap_jax.system import waiting as module
from vcap_jax.system.waiting import Waiting, telling, told_beside


class Now:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_who_what_and_how_long_every_ten_seconds() -> None:
    now, said = Now(), []
    waiting = Waiting("the judge", said.append, limit_s=600, setting="judge.ready_timeout_s", now=now)
    for seconds in (0, 5, 9.9, 10.1, 15, 20.2, 29, 61):
        now.seconds = 100 + seconds
        waiting.tell(f"seen at {seconds}")
    end = "giving up after 600 s (judge.ready_timeout_s)"
    assert said == [
        f"waiting for the judge for 10 s: seen at 10.1; {end}",
        f"waiting for the judge for 20 s: seen at 20.2; {end}",
        f"waiting for the judge for 61 s: seen at 61; {end}",
    ]


def test_a_wait_without_a_limit_that_begins_anew() -> None:
    now, said = Now(), []
    waiting = Waiting("a group", said.append, first_s=60, since=95, now=now)
    now.seconds = 150
    waiting.tell("nothing")
    assert said == []
    now.seconds = 155
    waiting.tell("nothing")
    waiting.begin()
    now.seconds = 214
    waiting.tell("nothing")
    assert said == ["waiting for a group for 60 s: nothing"]


def test_it_is_told_beside_the_work_and_no_longer() -> None:
    clock, said = FakeClock(), []

    async def run() -> None:
        waiting = Waiting("it", said.append, now=clock.now)
        async with telling(waiting, lambda: f"{clock.now():.0f}", clock):
            await clock.sleep(25)
        await clock.sleep(100)

    asyncio.run(run())
    assert said == ["waiting for it for 10 s: 1010", "waiting for it for 20 s: 1020"]


def test_a_thread_tells_beside_what_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    said: list[str] = []
    with told_beside(Waiting("the others", said.append, first_s=0.01), "not all have come"):
        until(lambda: len(said) >= 2, "two messages")
    assert re.fullmatch(r"waiting for the others for \d+ s: not all have come", said[0])


class Store:
    """The coordination service of two processes, of which the other one takes its time."""

    def __init__(self, now: Now, comes_at: float | None) -> None:
        self.now, self.comes_at, self.failures = now, comes_at, []
        self.values: dict[str, bytes] = {}

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key: str, timeout_ms: int) -> bytes:
        if key in self.values:
            return self.values[key]
        if self.comes_at is not None and self.now.seconds >= self.comes_at:
            return json.dumps(["samples", "theirs"]).encode()
        self.now.seconds += timeout_ms / 1000
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: not there")

    def key_value_dir_get(self, _: str) -> list[tuple[str, str]]:
        if self.comes_at is None and self.now.seconds >= 300:
            return [("vcap/failures/1", "JudgeUnavailable: no judge")]
        return []


def test_a_process_says_whom_it_waits_for_at_a_meeting() -> None:
    now, said = Now(), []
    processes = Processes(0, 2, Store(now, comes_at=185), say=said.append, now=now)
    assert processes.all_gather_objects("samples", "mine") == ["mine", "theirs"]
    assert said == [
        f"waiting for process 1 at 'samples' for {seconds} s: it has not come yet" for seconds in (60, 70, 80)
    ]
    said.clear()
    with pytest.raises(PeerFailed, match=r"process 1 ended while this one waited at 'samples'.*no judge"):
        Processes(0, 2, Store(now, comes_at=None), say=said.append, now=now).all_gather_objects(
            "samples", "mine"
        )


def test_a_process_at_its_end_leaves_word_of_a_failure_to_who_failed() -> None:
    now, said = Now(), []
    failing = Processes(0, 2, Store(now, comes_at=None), say=said.append, now=now)
    failing.end()
    assert said[-1] == (
        "at its end, and another is not: process 1 ended while this one waited at 'the end': "
        "JudgeUnavailable: no judge"
    )


def test_processes_that_find_each_other_at_once_say_nothing() -> None:
    now, said = Now(), []
    Processes(0, 2, Store(now, comes_at=0), say=said.append, now=now).all_gather_objects("samples", 1)
    assert said == []
