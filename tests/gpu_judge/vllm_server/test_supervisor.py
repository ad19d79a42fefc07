"""Supervision of servers that are small scripts: start, crash, restart, giving up, draining, nothing left."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest

from gpu_judge.vllm_server import processes, supervisor
from gpu_judge.vllm_server.processes import family, read_stat
from gpu_judge.vllm_server.supervisor import (
    CrashHistory,
    EndlessCrash,
    Supervision,
    supervise_until_signalled,
)
from tests.gpu_judge.vllm_fakes import give_orders, starts
from tests.gpu_judge.vllm_server.supervising import QUICK, Run, answers, launch, play
from tests.listening import ports_for_servers
from tests.patience import GUARD_S


def test_ready_means_that_all_have_judged(vllm: Path) -> None:
    give_orders(vllm, slow_s=0.3)

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        assert all(map(answers, now.ports))
        members = family(now.leader(now.ports[0]))
        assert len(members) == 2  # the server and its engine
        now.stop.set()
        await asyncio.wait_for(now.task, GUARD_S)
        assert not any(map(answers, now.ports))

    play(vllm, scene, count=2)


def test_servers_end_in_order_at_a_signal_and_when_whoever_started_them_is_gone(vllm: Path) -> None:
    (port,) = ports_for_servers(1)
    ready: list[bool] = []

    def signalled() -> None:
        ready.append(answers(port))
        os.kill(os.getpid(), signal.SIGTERM)

    asyncio.run(supervise_until_signalled([launch(vllm, port)], QUICK, all_ready=signalled))
    assert ready == [True]
    assert not answers(port)
    asyncio.run(supervise_until_signalled([launch(vllm, port)], QUICK, parent=-1))
    assert not answers(port)


def test_a_killed_server_comes_back_while_the_other_goes_on(vllm: Path) -> None:
    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        one, other = now.ports
        first, others = now.leader(one), now.leader(other)
        engine = next(pid for pid in family(first) if pid != first)
        os.kill(first, signal.SIGKILL)
        await now.until(lambda: len(starts(vllm, one)) == 2)
        assert read_state(engine) in (None, "Z")  # what the dead server left is gone before the next start
        assert answers(other)
        await now.until(lambda: answers(one))
        assert starts(vllm, other) == [others]

    play(vllm, scene, count=2)


def test_a_server_that_takes_turns_sleeps_once_it_has_judged_after_every_start(vllm: Path) -> None:
    def sleeps(port: int) -> bool:
        with urlopen(f"http://127.0.0.1:{port}/is_sleeping", timeout=GUARD_S) as response:
            return bool(json.loads(response.read())["is_sleeping"])

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        (port,) = now.ports
        assert sleeps(port)
        os.kill(now.leader(port), signal.SIGKILL)
        await now.until(lambda: len(starts(vllm, port)) == 2)
        await now.until(lambda: answers(port) and sleeps(port))

    play(vllm, scene, can_sleep=True)


def test_a_server_that_stays_awake_is_not_ready(vllm: Path) -> None:
    give_orders(vllm, mode="awake")

    async def scene(now: Run) -> None:
        with pytest.raises(EndlessCrash, match="does not judge: it is awake after POST /sleep"):
            await asyncio.wait_for(asyncio.shield(now.task), GUARD_S)

    play(vllm, scene, settings=_with(crash_limit=1, judgement_tries=1), can_sleep=True)


def read_state(pid: int) -> str | None:
    try:
        return read_stat(Path(f"/proc/{pid}/stat").read_text())[0]
    except OSError:
        return None


def test_crashes_before_it_is_ready_are_forgiven_below_the_limit(vllm: Path) -> None:
    give_orders(vllm, mode="crash-first", times=1)

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        assert len(starts(vllm, now.ports[0])) == 2

    play(vllm, scene, settings=_with(crash_limit=2))


@pytest.mark.slow
def test_crashes_of_a_ready_server_are_no_endless_crash(vllm: Path) -> None:
    give_orders(vllm, mode="crash-judged", times=3)

    async def scene(now: Run) -> None:
        await now.until(lambda: len(starts(vllm, now.ports[0])) == 4)
        await now.until(lambda: answers(now.ports[0]))
        assert not now.task.done()

    play(vllm, scene, settings=_with(crash_limit=2))


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("crash", "ended with status 1"),
        ("eleven", "bad_score"),
    ],
)
def test_what_never_judges_ends_everything_with_its_log(vllm: Path, mode: str, message: str) -> None:
    give_orders(vllm, mode=mode)

    async def scene(now: Run) -> None:
        with pytest.raises(EndlessCrash, match=message) as end:
            await asyncio.wait_for(now.task, GUARD_S)
        text = str(end.value)
        assert "failed 2 times" in text
        assert f"start 2 in mode {mode}" in text
        assert "start 1" not in text  # of the last start only
        assert not now.ready.is_set()

    play(vllm, scene, settings=_with(crash_limit=2, judgement_tries=2))


def _with(**changes: Any) -> Supervision:
    return Supervision(**{**QUICK.__dict__, **changes})


@pytest.mark.slow
def test_a_server_that_crashes_endlessly_is_left_out_until_none_is_left(
    vllm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        one, other = now.ports
        give_orders(vllm, mode="crash")
        os.kill(now.leader(one), signal.SIGKILL)
        await now.until(lambda: f"server :{one} is given up, and 1 of 2 servers go on" in caplog.text)
        assert "no memory is left for the key and value cache" in caplog.text
        assert answers(other)
        assert len(starts(vllm, other)) == 1
        os.kill(now.leader(other), signal.SIGKILL)
        with pytest.raises(EndlessCrash, match=f"server :{other}"):
            await asyncio.wait_for(now.task, GUARD_S)

    play(vllm, scene, count=2, settings=_with(crash_limit=2))


def test_a_process_that_nothing_ends_leaves_the_other_servers_alone(
    vllm: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, stuck = processes.kill_family, set[int]()

    async def kill_family(leader: int) -> None:
        await real(leader)
        if leader in stuck:
            raise processes.StuckProcess(f"processes [{leader}] survive SIGKILL")

    monkeypatch.setattr(processes, "kill_family", kill_family)

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        one, other = now.ports
        stuck.add(now.leader(one))
        os.kill(now.leader(one), signal.SIGKILL)
        await now.until(lambda: f"server :{one} is given up" in caplog.text)
        assert "survive SIGKILL" in caplog.text
        assert answers(other)
        now.stop.set()
        await asyncio.wait_for(now.task, GUARD_S)

    play(vllm, scene, count=2)


def test_an_endless_crash_before_all_have_been_ready_takes_the_other_servers_down(vllm: Path) -> None:
    async def scene(now: Run) -> None:
        give_orders(vllm, mode="crash-port", port=now.ports[0])
        with pytest.raises(EndlessCrash, match=f"server :{now.ports[0]}"):
            await asyncio.wait_for(now.task, GUARD_S)
        assert not answers(now.ports[1])

    play(vllm, scene, count=2)


def test_one_that_does_not_get_ready_in_time_is_started_again(vllm: Path) -> None:
    give_orders(vllm, slow_s=60)

    async def scene(now: Run) -> None:
        with pytest.raises(EndlessCrash, match=r"is not ready after 0\.3 s"):
            await asyncio.wait_for(now.task, GUARD_S)

    play(vllm, scene, settings=_with(start_timeout_s=0.3, crash_limit=2))


@pytest.mark.slow
def test_starts_that_never_become_ready_come_to_an_end_however_long_each_takes(
    vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the usual limits, for a supervisor whose clock runs 6000 times as fast."""
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: 6000 * time.monotonic()))
    give_orders(vllm, slow_s=60)
    usual = Supervision()

    async def scene(now: Run) -> None:
        with pytest.raises(EndlessCrash, match=r"is not ready after 1800 s: .* has failed 3 times"):
            await asyncio.wait_for(now.task, GUARD_S)

    play(vllm, scene, settings=_with(start_timeout_s=usual.start_timeout_s, crash_limit=usual.crash_limit))


def test_a_hung_server_is_killed_and_restarted(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours pass for the supervisor once the server is stopped, so that no slow machine looks like a hung server."""
    hours = 0
    monkeypatch.setattr(
        supervisor, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * hours)
    )

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        os.kill(now.leader(now.ports[0]), signal.SIGSTOP)

        def started_again() -> bool:
            nonlocal hours
            again = len(starts(vllm, now.ports[0])) == 2
            hours += not again
            return again

        await now.until(started_again)
        await now.until(lambda: answers(now.ports[0]))

    play(vllm, scene, settings=_with(start_timeout_s=1e9, health_timeout_s=1))


STALLS_SOON = {"stall_timeout_s": 0.1, "watch_s": 0.05}


def ask(port: int, **body: Any) -> int:
    """The status of an answer that holds three scores."""
    asked = {"response_format": {"json_schema": {"schema": {"required": ["Analysis"]}}}, **body}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    with urlopen(Request(url, json.dumps(asked).encode(), method="POST"), timeout=GUARD_S) as response:
        return int(response.status)


def count(vllm: Path, what: str) -> int:
    """How often the servers were asked for something."""
    path = vllm.parent / what
    return path.stat().st_size if path.exists() else 0


def test_an_engine_that_hangs_behind_a_good_health_is_restarted(
    vllm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    give_orders(vllm, mode="hang-judged", times=1)

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        (port,) = now.ports
        broken: list[BaseException] = []

        def wait_for_an_answer() -> None:
            try:
                ask(port)
            except (OSError, http.client.HTTPException) as error:
                broken.append(error)

        asking = threading.Thread(target=wait_for_an_answer)
        asking.start()
        await now.until(lambda: len(starts(vllm, port)) >= 2)
        await asyncio.to_thread(asking.join)
        assert broken  # and so the client asks again
        assert "no token for 0.1 s while requests waited" in caplog.text
        assert "--stall-timeout-s" in caplog.text
        now.stop.set()
        await asyncio.wait_for(now.task, GUARD_S)

    play(vllm, scene, settings=_with(confirm_s=0.3, **STALLS_SOON))


def test_a_request_that_is_counted_and_not_there_restarts_nothing(vllm: Path) -> None:
    give_orders(vllm, leaked=1)

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        asked = count(vllm, "asked-to-judge")
        await now.until(lambda: count(vllm, "asked-to-judge") >= asked + 4)  # picture and video, twice
        assert len(starts(vllm, now.ports[0])) == 1

    play(vllm, scene, settings=_with(confirm_s=GUARD_S, **STALLS_SOON))


def test_an_engine_that_fails_a_judgement_and_goes_on_writing_tokens_does_not_hang(vllm: Path) -> None:
    give_orders(vllm, mode="fail-judged", leaked=1)

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        asked = count(vllm, "asked-to-judge")
        await now.until(lambda: count(vllm, "asked-to-judge") >= asked + 3)
        assert len(starts(vllm, now.ports[0])) == 1

    play(vllm, scene, settings=_with(confirm_s=GUARD_S, **STALLS_SOON))


def test_a_server_without_requests_is_left_alone(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours pass for the supervisor between two looks at it."""
    looks, asked = 0, 0
    monkeypatch.setattr(
        supervisor, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * looks)
    )

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        nonlocal asked
        asked = count(vllm, "asked-to-judge")
        await now.until(lambda: looks >= 20)
        assert count(vllm, "asked-to-judge") == asked
        assert len(starts(vllm, now.ports[0])) == 1

    real = supervisor.look

    async def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return await real(*arguments)

    monkeypatch.setattr(supervisor, "look", counted)
    play(vllm, scene, settings=_with(confirm_s=GUARD_S, hang_s=1800, **STALLS_SOON))


def test_what_waits_for_a_sleeping_server_is_no_hang(vllm: Path) -> None:
    give_orders(vllm, leaked=1)

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        judged, asked = count(vllm, "asked-to-judge"), count(vllm, "asked-for-sleep")
        await now.until(lambda: count(vllm, "asked-for-sleep") >= asked + 3)
        assert count(vllm, "asked-to-judge") == judged
        assert len(starts(vllm, now.ports[0])) == 1

    play(vllm, scene, settings=_with(confirm_s=GUARD_S, **STALLS_SOON), can_sleep=True)


def test_that_a_hang_could_not_be_seen_is_told_once(vllm: Path, caplog: pytest.LogCaptureFixture) -> None:
    give_orders(vllm, mode="no-metrics")

    def told() -> list[str]:
        return [
            line for line in caplog.text.splitlines() if "whether its engine hangs cannot be seen" in line
        ]

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        await now.until(told)
        for _ in range(20):
            await asyncio.sleep(QUICK.watch_s)
        (line,) = told()
        assert "GET /metrics answers 404" in line

    play(vllm, scene, settings=_with(**STALLS_SOON))


class Refusals:
    """Has the system refuse so many starts after the first ``granted``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, granted: int, refused: int) -> None:
        self._granted, self.left, self._real = granted, refused, processes.start
        monkeypatch.setattr(processes, "start", self._start)

    async def _start(self, *arguments: Any) -> Any:
        if self._granted == 0 and self.left > 0:
            self.left -= 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self._granted -= self._granted > 0
        return await self._real(*arguments)


@pytest.mark.slow
def test_a_restart_that_the_system_refuses_is_tried_again(
    vllm: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = Refusals(monkeypatch, granted=2, refused=4)

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        one, other = now.ports
        others = now.leader(other)
        os.kill(now.leader(one), signal.SIGKILL)
        await now.until(lambda: len(starts(vllm, one)) == 2)
        await now.until(lambda: answers(one))
        assert refusals.left == 0
        assert starts(vllm, other) == [others]
        assert re.findall(r"trying again in (\S+) s", caplog.text) == ["0.1", "0.1", "0.2", "0.2"]

    play(vllm, scene, count=2, settings=_with(crash_limit=2))


def test_a_restart_that_the_system_refuses_for_ever_ends_everything(
    vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = Refusals(monkeypatch, granted=1, refused=10**9)
    monkeypatch.setattr(
        supervisor,
        "time",
        SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * (10**9 - refusals.left)),
    )

    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        os.kill(now.leader(now.ports[0]), signal.SIGKILL)
        with pytest.raises(EndlessCrash, match=r"cannot be started: .*temporarily unavailable"):
            await asyncio.wait_for(now.task, GUARD_S)

    play(vllm, scene)


def test_a_first_start_that_the_system_refuses_is_told_at_once(
    vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Refusals(monkeypatch, granted=0, refused=1)

    async def scene(now: Run) -> None:
        with pytest.raises(EndlessCrash, match="cannot be started"):
            await asyncio.wait_for(now.task, GUARD_S)

    play(vllm, scene)


def test_sigterm_lets_answers_in_flight_finish(vllm: Path) -> None:
    async def scene(now: Run) -> None:
        await now.until(now.ready.is_set)
        body = {"slow": 0.7, "response_format": {"json_schema": {"schema": {"required": ["Analysis"]}}}}
        request = Request(
            f"http://127.0.0.1:{now.ports[0]}/v1/chat/completions", json.dumps(body).encode(), method="POST"
        )
        statuses: list[int] = []

        def ask() -> None:
            with urlopen(request, timeout=GUARD_S) as response:
                statuses.append(response.status)

        asking = threading.Thread(target=ask)
        asking.start()
        await now.until((vllm.parent / "in-flight").exists)
        now.stop.set()
        await asyncio.wait_for(now.task, GUARD_S)
        await asyncio.to_thread(asking.join)
        assert statuses == [200]

    play(vllm, scene)


def test_one_that_ignores_sigterm_is_killed_after_the_bound_or_at_once_when_hurried(vllm: Path) -> None:
    give_orders(vllm, mode="stubborn")

    async def bound(now: Run) -> None:
        await now.until(now.ready.is_set)
        now.stop.set()
        begun = time.monotonic()
        await asyncio.wait_for(now.task, GUARD_S)
        assert time.monotonic() - begun >= 0.4
        assert not family(now.leader(now.ports[0]))

    play(vllm, bound, settings=_with(drain_s=0.2, end_s=0.2))

    async def hurried(now: Run) -> None:
        await now.until(now.ready.is_set)
        now.stop.set()
        await asyncio.sleep(0.1)
        assert family(now.leader(now.ports[0]))
        now.hurry.set()  # who does not hurry waits for twice as long as this
        await asyncio.wait_for(now.task, GUARD_S)

    play(vllm, hurried)


def test_the_history_of_crashes() -> None:
    settings = Supervision(first_backoff_s=1, max_backoff_s=10, crash_limit=3, stable_s=50)
    history = CrashHistory(settings)
    waits = []
    for _ in range(6):
        history.record(ready_for=1.0)
        waits.append(history.backoff_s)
    assert waits == [1, 2, 4, 8, 10, 10]
    assert not history.endless
    history.record(ready_for=60.0)
    assert history.backoff_s == 1
    for endless in (False, False, True):
        history.record(ready_for=None)
        assert history.endless == endless
    history.record(ready_for=1.0)
    assert not history.endless
