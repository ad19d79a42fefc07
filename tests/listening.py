"""Listening sockets of servers that a test stops at any moment."""

from __future__ import annotations

import asyncio
import socket

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
