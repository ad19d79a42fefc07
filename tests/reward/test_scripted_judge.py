"""The judge of other tests: a crash of it is one for everybody."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from tests.patience import GUARD_S


def test_no_connection_outlives_a_crash(judge: Any) -> None:
    """Also one that was made a moment before: what asks on it would wait for an answer for ever."""
    for _ in range(10):
        connections = [socket.create_connection(("127.0.0.1", judge.port), GUARD_S) for _ in range(5)]
        judge.stop()
        for connection in connections:
            with connection, contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: judge\r\n\r\n")
                assert connection.recv(1) == b""
        judge.start()
    judge.stop()  # as it is closed at the end of a test in which it has crashed
