"""Keeps the servers running: starts, waits until they judge, restarts, gives up on an endless crash, drains."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from gpu_judge.lifetime import on_signals, watch_parent
from gpu_judge.vllm_server import processes
from gpu_judge.vllm_server.readiness import NotReady, Server, healthy
from gpu_judge.vllm_server.stalls import Silence, look, sleeps
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import tail

_log = logging.getLogger("gpu_judge")


class EndlessCrash(VCapError, RuntimeError):
    """A server does not come up; the message ends with the last lines of its log."""


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """How long to wait for what, in seconds.

    first_backoff_s, max_backoff_s: wait before a restart, doubled with every crash in a row.
    crash_limit: so many crashes without becoming ready in between, however long each start took, and the server is
        given up.
    stable_s: a server ready for so long starts again from the first wait when it crashes.
    start_timeout_s: from start to ready; loading a large model from a network disk takes many minutes.
    judgement_tries: unusable first judgements before a start counts as failed.
    poll_s: between looks at a starting server. watch_s: between looks at one that is ready.
    health_timeout_s: for one answer of ``/health``.
    hang_s: a ready server whose ``/health`` has been silent for so long is killed and restarted.
    stall_timeout_s: so is one that has read and written no token for so long while requests waited, if it then does not
        judge within confirm_s either. Together less than a trainer waits (its ``judge.deadline_s`` twice, then
        ``judge.outage_timeout_s``), with time to load; and far more than the longest video takes to be read.
    drain_s: for requests in flight after SIGTERM. end_s: on top of that, for the server to take itself down.
    log_lines: of the log, shown when giving up.
    """

    first_backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    crash_limit: int = 3
    stable_s: float = 600.0
    start_timeout_s: float = 1800.0
    judgement_tries: int = 3
    poll_s: float = 1.0
    watch_s: float = 5.0
    health_timeout_s: float = 10.0
    hang_s: float = 180.0
    stall_timeout_s: float = 300.0
    confirm_s: float = 120.0
    drain_s: float = 60.0
    end_s: float = 30.0
    log_lines: int = 30


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One server: what to run, how to see that it judges, where its output goes.

    environment: complete, with the key if there is one.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    probe: Server
    log: Path


class CrashHistory:
    """Decides from the crashes so far how long to wait, and when to give up."""

    def __init__(self, settings: Supervision) -> None:
        self._settings = settings
        self._in_a_row = self._never_ready = 0

    def record(self, ready_for: float | None) -> None:
        """A crash; ``ready_for``: seconds it was ready, None if it never was."""
        if ready_for is None:
            self._never_ready += 1
        else:
            self._never_ready = 0
            if ready_for >= self._settings.stable_s:
                self._in_a_row = 0
        self._in_a_row += 1

    @property
    def endless(self) -> bool:
        return self._never_ready >= self._settings.crash_limit

    @property
    def backoff_s(self) -> float:
        """Seconds before the next start."""
        return _backoff(self._settings, self._in_a_row)


def _backoff(settings: Supervision, in_a_row: int) -> float:
    return min(settings.max_backoff_s, settings.first_backoff_s * 2.0 ** min(in_a_row - 1, 30))


async def supervise_until_signalled(
    launches: Sequence[Launch],
    settings: Supervision,
    *,
    parent: int | None = None,
    all_ready: Callable[[], None] = lambda: None,
) -> None:
    """``supervise`` until SIGTERM or SIGINT, or until ``parent``, the process that started this one, is gone."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    # The first signal ends it in order, a second one does not wait.
    on_signals(lambda: hurry.set() if stop.is_set() else stop.set())
    watch = None if parent is None else asyncio.create_task(watch_parent(stop, parent))
    try:
        await supervise(launches, settings, stop=stop, hurry=hurry, all_ready=all_ready)
    finally:
        if watch is not None:
            watch.cancel()


async def supervise(
    launches: Sequence[Launch],
    settings: Supervision,
    *,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    all_ready: Callable[[], None],
) -> None:
    """Runs the servers until ``stop`` is set, then drains them.

    all_ready: called once, when every server has judged. hurry: set to end the draining at once.
    A server that is given up, for endless crashes or a process that nothing ends, is left out once all have been ready:
    one broken GPU should not end a run that others can judge. Before that, and where it is the last, EndlessCrash or
    StuckProcess is raised, after taking the other servers down. However it ends, no process is left that can be ended.
    """
    ready: set[str] = set()
    left = len(launches)
    told = False

    def became_ready(name: str) -> None:
        nonlocal told
        ready.add(name)
        if len(ready) == len(launches) and not told:
            told = True
            all_ready()

    async def keep(server: _Server) -> None:
        nonlocal left
        try:
            await server.run()
        except (EndlessCrash, processes.StuckProcess) as error:
            left -= 1
            if not told or not left or stop.is_set():
                raise
            _log.error(
                "%s is given up, and %d of %d servers go on; mend what is wrong and start serve.py again. %s",
                server.launch.name,
                left,
                len(launches),
                error,
            )

    async with aiohttp.ClientSession() as session:
        servers = [_Server(launch, settings, session, stop, hurry, became_ready) for launch in launches]
        tasks = [asyncio.create_task(keep(server)) for server in servers]
        try:
            await asyncio.gather(*tasks)
        finally:
            # One gave up, or we are being cancelled: the others end as after SIGTERM.
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class _Server:
    launch: Launch
    settings: Supervision
    session: aiohttp.ClientSession
    stop: asyncio.Event
    hurry: asyncio.Event
    became_ready: Callable[[str], None]
    ready_since: float | None = None
    metrics_unreadable: bool = False
    started: bool = False

    async def run(self) -> None:
        """Start after start, until told to stop. Raises EndlessCrash."""
        history = CrashHistory(self.settings)
        launch = self.launch
        while not self.stop.is_set():
            self.ready_since = None
            written = _size(launch.log)
            process = await self._start()
            if process is None:
                return
            _log.info("%s: started as process %d, log %s", launch.name, process.pid, launch.log)
            try:
                reason = await self._until_it_fails(process)
                if reason is None:
                    await self._drain(process)
                    return
            finally:
                await processes.kill_family(process.pid)
                await process.wait()
            if self.ready_since is None and (cause := processes.cause(launch.log, written)):
                reason = f"{reason} ({cause})"
            history.record(None if self.ready_since is None else time.monotonic() - self.ready_since)
            if history.endless:
                end = tail(launch.log, self.settings.log_lines, written)
                raise EndlessCrash(
                    f"{launch.name} {reason}; it has failed {self.settings.crash_limit} times without becoming "
                    f"ready. The end of {launch.log}:\n{end}"
                )
            _log.warning(
                "%s %s; restarting in %.1f s (log %s)", launch.name, reason, history.backoff_s, launch.log
            )
            await _first(self.stop.wait(), asyncio.sleep(history.backoff_s))

    async def _start(self) -> asyncio.subprocess.Process | None:
        """Its process; None when we are to stop. Raises EndlessCrash.

        The system may refuse for a moment: too many processes, a full disk. Once it has granted a start it is asked
        again, for as long as one may take.
        """
        launch, settings, began, refusals = self.launch, self.settings, time.monotonic(), 0
        while True:
            try:
                process = await processes.start(launch.argv, launch.environment, launch.log)
            except OSError as error:
                why = f"{launch.name} cannot be started: {error}"
                if not self.started or time.monotonic() - began > settings.start_timeout_s:
                    raise EndlessCrash(f"{why}; executable {launch.argv[0]}, log {launch.log}") from error
                refusals += 1
                pause = _backoff(settings, refusals)
                _log.warning("%s; trying again in %.1f s (log %s)", why, pause, launch.log)
            else:
                self.started = True
                return process
            await _first(self.stop.wait(), asyncio.sleep(pause))
            if self.stop.is_set():
                return None

    async def _until_it_fails(self, process: asyncio.subprocess.Process) -> str | None:
        """Why it must be restarted; None when we are to stop."""
        ended, stopped = asyncio.create_task(process.wait()), asyncio.create_task(self.stop.wait())
        watched = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({ended, stopped, watched}, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                return None
            if ended.done():
                return f"ended with {_how(ended.result())}"
            return watched.result()
        finally:
            for task in (ended, stopped, watched):
                task.cancel()
            await asyncio.gather(ended, stopped, watched, return_exceptions=True)

    async def _watch(self) -> str:
        """Waits until it is ready, then looks after it; returns what is wrong with it."""
        began, refusals, last = time.monotonic(), 0, "its /health does not answer"
        while True:
            if time.monotonic() - began > self.settings.start_timeout_s:
                return f"is not ready after {self.settings.start_timeout_s:g} s: {last}"
            if await self._healthy():
                try:
                    await self.launch.probe.becomes_ready(self.session)
                except NotReady as error:
                    refusals, last = refusals + 1, str(error)
                    _log.warning("%s is healthy but not ready: %s", self.launch.name, error)
                    if refusals >= self.settings.judgement_tries:
                        return f"does not {self.launch.probe.task}: {error}"
                else:
                    self.ready_since = time.monotonic()
                    _log.info("%s: ready after %.0f s", self.launch.name, self.ready_since - began)
                    self.became_ready(self.launch.name)
                    return await self._look_after()
            await asyncio.sleep(self.settings.poll_s)

    async def _look_after(self) -> str:
        """Watches it while it is ready; returns what is wrong with it."""
        settings, heard, silence = self.settings, time.monotonic(), Silence()
        while time.monotonic() - heard < settings.hang_s:
            await asyncio.sleep(settings.watch_s)
            if await self._healthy():
                await self._listen(silence)
                if silence.seconds >= settings.stall_timeout_s:
                    if await self._stalls(silence):
                        return (
                            f"is healthy, and has read and written no token for {settings.stall_timeout_s:g} s while "
                            f"requests waited, and did not {self.launch.probe.task} when asked: its engine hangs (the "
                            "log, and dmesg for errors of the GPU, may tell why; if it was at work, give a longer "
                            "--stall-timeout-s)"
                        )
                    silence = Silence()
                heard = time.monotonic()
        return f"has not answered /health for {settings.hang_s:g} s"

    async def _listen(self, silence: Silence) -> None:
        """One look at what it does."""
        try:
            seen = await look(self.session, self.launch.probe, self.settings.health_timeout_s)
        except NotReady as error:
            if not self.metrics_unreadable:
                self.metrics_unreadable = True
                _log.warning("%s: whether its engine hangs cannot be seen: %s", self.launch.name, error)
            return
        if seen is not None:
            silence.record(seen, self.settings.watch_s)

    async def _stalls(self, silence: Silence) -> bool:
        """Whether the silence is a hang: it is awake, does not do its work, and still no token comes."""
        launch, settings = self.launch, self.settings
        if await sleeps(self.session, launch.probe, settings.health_timeout_s):
            return False
        _log.warning(
            "%s: no token for %.0f s while requests seem to wait; it is asked to %s",
            launch.name,
            silence.seconds,
            launch.probe.task,
        )
        try:
            async with asyncio.timeout(settings.confirm_s):
                await launch.probe.works(self.session)
        except (NotReady, TimeoutError):
            await self._listen(silence)
            asleep = await sleeps(self.session, launch.probe, settings.health_timeout_s)
            return silence.seconds > 0 and not asleep
        return False

    async def _healthy(self) -> bool:
        return await healthy(self.session, self.launch.probe.url, self.settings.health_timeout_s)

    async def _drain(self, process: asyncio.subprocess.Process) -> None:
        """SIGTERM to the server, which takes its own processes down; what remains is killed by our caller."""
        waiting = self.settings.end_s + (self.settings.drain_s if self.ready_since is not None else 0.0)
        processes.signal_leader(process, signal.SIGTERM)
        _log.info("%s: SIGTERM, up to %.0f s to finish", self.launch.name, waiting)
        begun = time.monotonic()
        await _first(process.wait(), self.hurry.wait(), asyncio.sleep(waiting))
        if process.returncode is None:
            _log.warning("%s: still running, killed", self.launch.name)
        else:
            _log.info("%s: ended after %.1f s", self.launch.name, time.monotonic() - begun)


async def _first(*waits: object) -> None:
    """Returns when the first of several coroutines does; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:  # not there yet, or a disk that does not answer: its end is shown from the beginning
        return 0


def _how(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
