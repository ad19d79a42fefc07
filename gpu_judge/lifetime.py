"""What both backends owe whoever started them: an address in a file, and an end in time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import replace_file

_PARENT_CHECK_S = 1.0


class PortFileError(VCapError, OSError):
    """The addresses cannot be written where they were asked for; the message names the file."""


def on_signals(act: Callable[[], None]) -> None:
    """Calls ``act`` on every SIGTERM and SIGINT; needs a running event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, act)


async def watch_parent(stop: asyncio.Event, parent: int) -> None:
    """Sets ``stop`` when ``parent``, the process that started this one, is gone, even if it went before this call."""
    while os.getppid() == parent:
        await asyncio.sleep(_PARENT_CHECK_S)
    stop.set()


def check_port_file(path: Path | None) -> None:
    """Raises PortFileError where :func:`write_port_file` is bound to fail: better now than after minutes of loading."""
    if path is None:
        return
    if path.is_dir():
        raise PortFileError(f"--port-file {path} is a folder: name a file in it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        what = "cannot be written to" if path.parent.exists() else "does not exist"
        raise PortFileError(f"--port-file {path}: {path.parent} {what}: make it, or name a file elsewhere")


def remove_port_file(path: Path | None, *, unless: str | None = None) -> None:
    """Takes away what an earlier start wrote: whoever waits for the file would ask a judge that does not judge yet.

    unless: an address that the file may name and stay. Raises PortFileError.
    """
    if path is None:
        return
    try:
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace").strip() == unless:
            return
        path.unlink(missing_ok=True)
    except OSError as error:
        raise PortFileError(
            f"--port-file {path} is of an earlier start and cannot be removed ({error.strerror or error}): remove it, "
            "or name a file elsewhere"
        ) from error


def write_port_file(path: Path | None, addresses: Sequence[str]) -> None:
    """Writes the addresses, one per line, so that nobody can see half of them; None writes nothing.

    Raises PortFileError.
    """
    if path is None:
        return
    try:
        replace_file(path, "".join(f"{address}\n" for address in addresses).encode())
    except OSError as error:
        raise PortFileError(
            f"--port-file {path} cannot be written ({error.strerror or error}): free space, or name a file elsewhere"
        ) from error
