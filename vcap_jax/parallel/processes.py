"""The processes of a run: how they find each other, agree, and end together.

Processes work side by side between meeting points: each reads, captions and judges its own groups at its own pace. At
a meeting point (``Processes.all_gather_objects``) every process hands in a value and gets everybody's, over the
key-value store of JAX's coordination service: on the host, without a compiled program, and however long the slowest
takes. Programs over all devices are only started after such a meeting, so no device waits for a process that is still
busy elsewhere.

What goes wrong in one process reaches the others at the next meeting as PeerFailed, so all end with a message and with
checkpoints in order. A process that dies without a word (SIGKILL, a lost node) is missed by JAX's heartbeats: after
``peer_timeout_s`` at most JAX aborts the others, in whatever they are waiting. A shell beside each process then says
what happened and what to do (``last_words``), which an aborted process cannot do itself.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Protocol, TypeVar

import jax
from jax._src import distributed as jax_distributed  # the key-value store has no public name
from pydantic import AfterValidator, Field

from vcap_jax.configuration import ConfigError, settings
from vcap_jax.system.errors import VCapError
from vcap_jax.system.waiting import Waiting, told_beside

T = TypeVar("T")

_POLL_S = 2.0
_USUAL_WAIT_S = 60.0
"""Not worth a word: processes caption and judge their own groups at their own pace, and meet in every step."""
_FAILURES = "vcap/failures"
_log = logging.getLogger(__name__)


class PeerFailed(VCapError, RuntimeError):
    """Another process of the run cannot go on; the message says which, and why."""

    resumable = True


def _host_and_port(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError("give HOST:PORT of process 0")
    return address


@settings
class DistributedConfig:
    """The processes that share a run; none of it set means one process."""

    coordinator: Annotated[str, AfterValidator(_host_and_port)] | None = None
    """HOST:PORT of process 0, reachable by all."""
    processes: int | None = Field(default=None, ge=1)
    """How many processes there are."""
    process_id: int | None = Field(default=None, ge=0)
    """Which process this is, from 0."""
    local_devices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Indices of this host's devices that belong to this process; empty for all."""
    automatic: bool = False
    """Let JAX find all of that out, as it can on TPU slices, under SLURM (one GPU per task) and
    Open MPI."""
    start_timeout_s: int = Field(default=300, ge=5)
    """Seconds that processes wait for each other at the start."""
    peer_timeout_s: int = Field(default=100, ge=5)
    """Seconds that a process may be silent before the others give the run up."""

    def __post_init__(self) -> None:
        named = {
            "coordinator": self.coordinator,
            "processes": self.processes,
            "process_id": self.process_id,
        }
        given = [name for name, value in named.items() if value is not None]
        if self.automatic and given:
            raise ValueError(
                f"distributed.automatic finds {' and '.join(given)} out itself: leave one of them out"
            )
        if given and len(given) < len(named):
            missing = [name for name in named if name not in given]
            raise ValueError(
                f"distributed.{given[0]} is set but not {' and '.join(missing)}: give all three, or none for one "
                "process"
            )
        if self.process_id is not None and self.process_id >= (self.processes or 0):
            raise ValueError(
                f"distributed.process_id is {self.process_id} of {self.processes} processes: count from 0"
            )
        if self.local_devices and not self.several:
            raise ValueError(
                f"distributed.local_devices is {list(self.local_devices)}, which shares a host's devices out among "
                "the processes of a run, and this run has one: leave it empty, and choose devices outside, such as "
                "with CUDA_VISIBLE_DEVICES"
            )

    @property
    def several(self) -> bool:
        """Whether there is anybody to find."""
        return self.automatic or self.processes is not None


class CoordinationClient(Protocol):
    """What is asked of JAX's coordination service: values by name, which every process can read."""

    def key_value_set(self, key: str, value: str) -> None: ...

    def key_value_set_bytes(self, key: str, value: bytes) -> None: ...

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes: ...

    def key_value_dir_get(self, key: str) -> Sequence[tuple[str, str]]: ...

    def key_value_delete(self, key: str) -> None: ...


class Processes:
    """This process among those of the run. Every method but ``share`` must be called by all, in the same order.

    client: of JAX's coordination service. say: where messages about waiting for other processes go. now: monotonic
    seconds.
    """

    def __init__(
        self,
        index: int = 0,
        count: int = 1,
        client: CoordinationClient | None = None,
        *,
        say: Callable[[str], None] = _log.warning,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index, self.count = index, count
        self._client, self._meetings, self._failed = client, 0, False
        self._say, self._now = say, now

    @property
    def first(self) -> bool:
        """Whether this is the process that writes what a run has one of: logs, pages, summaries."""
        return self.index == 0

    @property
    def _store(self) -> CoordinationClient:
        assert self._client is not None, "several processes have one"
        return self._client

    def share(self, items: int) -> range:
        """This process's part of ``items`` things in order: ranges whose lengths differ by one at most."""
        return range(items * self.index // self.count, items * (self.index + 1) // self.count)

    def all_gather_objects(self, what: str, value: T) -> list[T]:
        """Everybody's ``value`` (anything JSON holds, NaN included), by process index; returns when all have come.

        what: the name of this meeting. Raises PeerFailed if another process has failed, or is at another meeting.
        """
        if self.count == 1:
            return [value]
        number, self._meetings = self._meetings, self._meetings + 1
        self._store.key_value_set_bytes(_meeting(number, self.index), json.dumps([what, value]).encode())
        values = []
        came = self._now()
        for peer in range(self.count):
            there, theirs = json.loads(self._wait_for(peer, number, what, came))
            if there != what:
                raise PeerFailed(
                    f"process {peer} is at {there!r}, this one at {what!r}: do all run the same command?"
                )
            values.append(theirs)
        if number:
            # Whoever came to this meeting had read everything of the last one.
            self._store.key_value_delete(_meeting(number - 1, self.index))
        return values

    def barrier(self, what: str) -> None:
        """Returns when all processes are here; see ``all_gather_objects``."""
        self.all_gather_objects(what, None)

    def together(self, what: str, work: Callable[[], T]) -> T:
        """``work()`` of every process; if it raises in one, that one raises its exception and the others PeerFailed."""
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # handed to the others first, then raised
            error = raised
        told = self.all_gather_objects(what, None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for peer, message in enumerate(told):
            if message is not None:
                raise PeerFailed(f"process {peer}, {what}: {message}")
        return result  # type: ignore[return-value]  # work has returned

    def on_process_0(self, what: str, work: Callable[[], T]) -> T:
        """``work()``, done by process 0 alone; all get what it returned (which JSON must hold), or PeerFailed."""
        value = self.together(what, lambda: work() if self.first else None)
        told = self.all_gather_objects(f"{what}: result", value)
        return told[0]  # type: ignore[return-value]  # process 0 has done it

    def led(self, what: str, work: Callable[[], T]) -> T:
        """``work()`` of process 0 first, then of the others, which find the files that it has left."""
        result = self.together(what, lambda: work() if self.first else None)
        others = self.together(f"{what}: the others", lambda: None if self.first else work())
        return result if self.first else others  # type: ignore[return-value]  # work's own, either way

    def fail(self, error: BaseException) -> None:
        """Leaves word for the others that this process ends. Meets nobody; only the first call counts."""
        self._failed = True
        if self.count > 1:
            # Where the coordinator is gone, so is everybody who could be told.
            with suppress(jax.errors.JaxRuntimeError):
                self._store.key_value_set(f"{_FAILURES}/{self.index}", f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """Returns when all have done their work, or one has failed, of which it leaves the word to that one."""
        if self._failed:
            return
        try:
            self.barrier("the end")
        except PeerFailed as error:
            self._say(f"at its end, and another is not: {error}")

    def _wait_for(self, peer: int, meeting: int, what: str, since: float) -> bytes:
        whom = f"process {peer} at {what!r}"
        waiting = Waiting(whom, self._say, first_s=_USUAL_WAIT_S, since=since, now=self._now)
        key = _meeting(meeting, peer)
        while True:
            try:
                return bytes(self._store.blocking_key_value_get_bytes(key, int(_POLL_S * 1000)))
            except jax.errors.JaxRuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    # Process 0 serves the store; JAX is about to abort this process too.
                    raise PeerFailed(
                        f"{what}: the coordinator (process 0) does not answer: {error}"
                    ) from error
            for name, message in self._store.key_value_dir_get(_FAILURES):
                failed = int(name.rpartition("/")[2])
                if failed != self.index:
                    raise PeerFailed(f"process {failed} ended while this one waited at {what!r}: {message}")
            waiting.tell("it has not come yet")


def _meeting(number: int, process: int) -> str:
    return f"vcap/meetings/{number}/{process}"


ALONE = Processes()


@contextmanager
def joined(config: DistributedConfig) -> Iterator[Processes]:
    """The processes of the run, found before any device is touched and left again at the end.

    Raises PeerFailed if the others do not come within ``start_timeout_s``, ConfigError where JAX is to find them and
    knows no way, RuntimeError if it has been used already.
    """
    if not config.several:
        yield ALONE
        return
    how: dict[str, Any] = {}
    if not config.automatic:
        how = {
            "coordinator_address": config.coordinator,
            "num_processes": config.processes,
            "process_id": config.process_id,
            # Whatever cluster this looks like: the configuration says it all.
            "cluster_detection_method": "deactivate",
        }
    # Its handler of SIGTERM would take the place of the trainer's, which ends a run after the step in work.
    jax.config.update("jax_enable_preemption_service", False)
    # gRPC would look for process 0 behind a proxy that is named for the web; an empty one of its own comes first.
    os.environ["grpc_proxy"] = ""  # noqa: SIM112
    jax.config.update("jax_check_proxy_envs", False)
    if config.local_devices:
        how["local_device_ids"] = list(config.local_devices)
    if config.process_id == 0 and config.coordinator is not None:
        _check_port(config.coordinator)
    where = config.coordinator or "found automatically"
    waiting = Waiting(
        f"the other processes of the run, coordinator {where}",
        _log.warning,
        limit_s=config.start_timeout_s,
        setting="distributed.start_timeout_s",
    )
    apart = (
        f"the processes of the run did not find each other within {config.start_timeout_s} s: start "
        f"{config.processes or 'all'} of them, each with its own distributed.process_id and the same "
        f"distributed.coordinator, {where}, which all must reach"
    )
    try:
        # Where they do not, JAX aborts this process.
        with last_words(f"error: {apart}"), told_beside(waiting, "not all have come"):
            jax.distributed.initialize(
                **how,
                initialization_timeout=config.start_timeout_s,
                heartbeat_timeout_seconds=config.peer_timeout_s,
                shutdown_timeout_seconds=config.peer_timeout_s,
            )
    except jax.errors.JaxRuntimeError as error:
        raise PeerFailed(f"{apart} ({error})") from error
    except ValueError as error:
        if not config.automatic:
            raise
        raise ConfigError(
            f"distributed.automatic is true, and JAX finds no other processes from here ({error}): start them under "
            "SLURM, by Open MPI or on a TPU slice, or give distributed.coordinator, processes and process_id in its "
            "place. One process alone needs none of this"
        ) from error
    index = jax.process_index()
    processes = Processes(
        index,
        jax.process_count(),
        jax_distributed.global_state.client,
        say=lambda text: _log.warning("process %d is %s", index, text),
    )
    with last_words(
        f"error: process {processes.index} of {processes.count} ended abruptly. If the lines above tell of heartbeats "
        "or a lost connection, another process was killed or its node was lost: see its log. What was done up to the "
        "last checkpoint is saved; start all processes again with --resume, on any number of processes."
    ):
        try:
            yield processes
            # JAX waits at leaving too, but aborts all of them after ``peer_timeout_s``, and the first may still send to
            # a tracker, or draw.
            processes.end()
        except BaseException as error:
            processes.fail(error)
            # Now: leaving may take long, and end in an abort.
            traceback.print_exception(error)
            raise
        finally:
            _leave()


def _check_port(coordinator: str) -> None:
    """Raises PeerFailed where JAX could not listen: it mostly ends the process then (SIGSEGV), without a word."""
    port = int(coordinator.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    try:
        socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
        ).close()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):  # what else there may be is for JAX to say
            raise PeerFailed(
                f"process 0 cannot listen at port {port}, which distributed.coordinator names ({error.strerror}): an "
                "earlier start may still be there. End it, or give all processes another port"
            ) from error


def _leave() -> None:
    """Waits for the others to leave as well, so that the coordinator does not vanish under them."""
    # Somebody may never come; whatever happened to it has been said, or will be by its own last words.
    with suppress(jax.errors.JaxRuntimeError):
        jax.distributed.shutdown()


@contextmanager
def last_words(message: str) -> Iterator[None]:
    """Prints ``message`` to the error output if this process dies inside the context without leaving it.

    A shell reads a pipe that only this process holds open: no handler could run in a process that is aborted by a C++
    thread or killed.
    """
    shell = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" TERM INT HUP; read -r line || printf "%s\\n" "$0" >&2', message],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert shell.stdin is not None
    os.set_inheritable(shell.stdin.fileno(), False)
    try:
        yield
    finally:
        shell.stdin.write(b"left\n")
        shell.stdin.close()
        shell.wait()


def device_summary(processes: Processes = ALONE) -> str:
    """For the first line of a run: what it runs on."""
    devices = jax.devices()
    shared = f" of {processes.count} processes" if processes.count > 1 else ""
    kind = f"{devices[0].device_kind} ({jax.default_backend()})"
    return f"{len(devices)} x {kind}{shared}, JAX {jax.__version__}"
