"""Sends bodies to a server on this machine as no good client would: cut off, without end, with false lengths."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.gpu_judge.hostile_bodies import Hostile

_PIECE = 2**20
_CHUNK = b"1000\r\n" + 4096 * b" " + b"\r\n"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """status: 0 where no answer came. message: of the error in the answer, or what stands in its place."""

    status: int
    message: str


def send(
    address: str, hostile: Hostile, body: bytes | Path, *, timeout_s: float, most_chunks: int = 1_000
) -> Reply:
    """One request to ``/v1/chat/completions`` on a connection of its own; the answer may come before all is sent.

    body: or a file that holds it. most_chunks: pieces of 4 KiB that an endless body is given before we only wait.
    """
    size = len(body) if isinstance(body, bytes) else body.stat().st_size
    length = size if hostile.announced is None else hostile.announced
    headers = {"Content-Type": "application/json", **hostile.headers}
    if hostile.sending != "endless":
        headers["Content-Length"] = str(length)
    where = urlsplit(address)
    with socket.create_connection((where.hostname, where.port), timeout=timeout_s) as connection:
        over = threading.Event()

        def deliver() -> None:
            try:
                connection.sendall(_head(where.netloc, headers))
                for piece in _chunks(body, most_chunks) if hostile.sending == "endless" else _pieces(body):
                    if over.is_set():
                        return
                    connection.sendall(piece)
            except OSError:
                pass  # the server has answered and closed, or we have

        sender = threading.Thread(target=deliver, daemon=True)
        sender.start()
        try:
            return _answer(connection)
        except OSError as error:
            return Reply(status=0, message=f"{type(error).__name__}: {error}")
        finally:
            over.set()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            sender.join(timeout_s)


def _head(host: str, headers: Mapping[str, str]) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: {host}",
        *(f"{k}: {v}" for k, v in headers.items()),
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def _pieces(body: bytes | Path) -> Iterator[bytes]:
    if isinstance(body, bytes):
        for start in range(0, len(body), _PIECE):
            yield body[start : start + _PIECE]
        return
    with body.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _chunks(body: bytes | Path, most: int) -> Iterator[bytes]:
    for piece in _pieces(body):
        yield f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    for _ in range(most):
        yield _CHUNK


def _answer(connection: socket.socket) -> Reply:
    raw = b""
    while b"\r\n\r\n" not in raw or len(_split(raw)[1]) < _length(_split(raw)[0]):
        piece = connection.recv(65_536)
        if not piece:
            break
        raw += piece
    if not raw:
        return Reply(status=0, message="the connection was closed without an answer")
    head, content = _split(raw)
    status = int(head.split(b" ", 2)[1])
    try:
        answer = json.loads(content)
        message = answer["error"]["message"] if status != 200 else answer["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        message = content[:200].decode(errors="replace")
    return Reply(status=status, message=message)


def _split(raw: bytes) -> tuple[bytes, bytes]:
    head, _, content = raw.partition(b"\r\n\r\n")
    return head, content


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 2**62  # until the connection closes
