"""Where a test's servers listen, and how they stop listening at any moment."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

_TURNS = 10
"""Of the event loop: more than it takes from a connection to its handler."""


async def accept_no_more(listening: socket.socket) -> None:
    """Before a server of asyncio is closed: whoever has connected gets a handler first, which can be closed too.

    A server that is closed with a connection between the two makes no handler and leaves the connection open, and
    whoever asks on it waits for ever.
    """
    if listening.fileno() < 0:
        return  # it has been closed before
    asyncio.get_running_loop().remove_reader(listening)
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def ports_for_servers(count: int) -> list[int]:
    """Different ones that the system gives to nobody: a connection, or a test beside this one, could be given the port
    on which a server is to listen in a moment, or to come back."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(given.read_text().split()[0]) if given.exists() else 32_768
    free: list[int] = []
    for port in random.sample(range(10_000, max(lowest, 11_000)), 50 * count):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                free.append(port)
        if len(free) == count:
            return free
    raise AssertionError("no port is free")
