"""Child processes whose whole family ends with them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vcap_jax.system.errors import VCapError

_POLL_S = 0.1
_GONE_S = 30.0
_TIDY_S = 5.0
_ERROR = re.compile(
    rb"^(?:\([^)\n]*\) )?(?P<logged>ERROR [^\[\n]*\[[^\]\n]*\] )?(?P<said>[\w.]*(?:Error|Exception): .*)$",
    re.MULTILINE,
)
_MOST_LOG = 8_000_000
_MOST_SAID = 500
_TRACKER = b"multiprocessing.resource_tracker"
_PR_SET_PDEATHSIG = 1


class StuckProcess(VCapError, RuntimeError):
    """A process does not end; the message has its number."""


async def start(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> asyncio.subprocess.Process:
    """Starts ``argv`` as the leader of a session and process group of its own; its output is added to ``log``.

    A terminal's Ctrl-C then reaches only us, and everything the child starts can be signalled at once. On Linux the
    child also gets SIGTERM when we are gone, however we end.
    """
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )


def signal_leader(process: asyncio.subprocess.Process, number: int) -> None:
    """Signals the leader alone: it knows in which order its family should end."""
    if process.returncode is None:
        process.send_signal(number)


async def kill_family(leader: int) -> None:
    """Kills whatever is left of the group that ``leader`` led, and waits until it is gone.

    Python's resource tracker goes last, and by itself: it removes the shared memory of those that were killed, which
    nobody else would. vLLM's processes have some hundreds of MB of it between them.

    Raises StuckProcess if something survives SIGKILL for half a minute (a process stuck in its driver).
    """
    others_seen = time.monotonic()
    deadline = others_seen + _GONE_S
    while members := family(leader):
        now = time.monotonic()
        with suppress(ProcessLookupError):  # ended while we looked
            if others := [pid for pid in members if not _is_tracker(pid)]:
                others_seen = now
                for pid in others:
                    os.kill(pid, signal.SIGKILL)
            elif now > others_seen + _TIDY_S:
                os.killpg(leader, signal.SIGKILL)
        if now > deadline:
            raise StuckProcess(
                f"processes {members} survive SIGKILL: the GPU's driver may be stuck; see dmesg"
            )
        await asyncio.sleep(_POLL_S)


def family(leader: int) -> list[int]:
    """Living members of a process group. Zombies count as gone: where nobody reaps they stay for ever."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, group = read_stat((entry / "stat").read_text())
            except (OSError, ValueError):
                continue  # ended while we looked
            if group == leader and state not in "ZX":
                members.append(int(entry.name))
    return sorted(members)


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # ended while we looked


def read_stat(text: str) -> tuple[str, int]:
    """State and process group in a line of ``/proc/PID/stat``; the name before them may hold any character."""
    state, _, group = text.rpartition(")")[2].split()[:3]
    return state, int(group)


def _end_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # before the fork, where loading a library is safe
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the kernel knew of our wish
            os._exit(1)

    return ask


def cause(log: Path, offset: int = 0) -> str:
    """The error that a server ended with, by its log from byte ``offset`` on; empty where it tells none.

    That is the first one that vLLM logs as such. The engine's cause stands there above what its other processes say of
    it, some hundred lines before the end. Without one it is the last that a traceback ends with.
    """
    try:
        with log.open("rb") as file:
            file.seek(offset)
            found = list(_ERROR.finditer(file.read(_MOST_LOG)))
    except OSError:  # not there, or a disk that does not answer
        return ""
    if not found:
        return ""
    best = next((match for match in found if match["logged"]), found[-1])
    return best["said"].decode(errors="replace").strip()[:_MOST_SAID]
