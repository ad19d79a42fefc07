"""From a connection to the JSON object of a request, within bounds on memory and time.

A body's size is known before it is read, its shape (how many values, how deep) before it is parsed. What all requests
hold at once is bounded too: who does not fit waits, and is sent away with 429 after a while.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from aiohttp import web

from vcap_jax.system.json_values import JsonDict, unique_keys

_PIECE = 4 * 1024**2


class Refusal(Exception):
    """A request that is not answered; the message says why and what would be.

    status: 4xx, or 500 for a defect of ours. param: the field at fault. code: OpenAI's name for it. retry_after:
    seconds, where later is better.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of request bodies.

    body_bytes: of one: 200 frames of 1920 x 1080 as JPEG take about 140 MB as base64.
    held_bytes: of all that are being read or judged. least_bytes: what each counts for at least.
    wait_s: for room among the others. silence_s: between two pieces of a body. read_s: for the whole of it.
    wide_bytes: of one with characters beyond ASCII, each of whose characters may take four bytes in memory.
    values: commas and opening brackets, inside of texts or not; a value takes up to 100 bytes in memory.
    escapes: backslashes.
    """

    body_bytes: int = 192 * 1024**2
    held_bytes: int = 256 * 1024**2
    least_bytes: int = 64 * 1024
    wait_s: float = 30.0
    silence_s: float = 10.0
    read_s: float = 120.0
    wide_bytes: int = 48 * 1024**2
    values: int = 500_000
    escapes: int = 4 * 1024**2


class Intake:
    """Reads bodies; to be used within one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0
        self._room = asyncio.Condition()

    @asynccontextmanager
    async def body(self, request: web.Request) -> AsyncIterator[bytearray]:
        """The body of a request, which counts as held until the context closes.

        Raises Refusal: of no known length or type, compressed, too large (before a byte of it is read), too slow, cut
        off, or without room for it.
        """
        length = _announced(request, self._limits)
        counted = max(length, self._limits.least_bytes)
        await self._take(counted)
        try:
            yield await self._read(request, length)
        finally:
            async with self._room:
                self._held -= counted
                self._room.notify_all()

    async def _take(self, counted: int) -> None:
        most = self._limits.held_bytes

        def fits() -> bool:
            return self._held + counted <= most or not self._held

        try:
            async with asyncio.timeout(self._limits.wait_s), self._room:
                await self._room.wait_for(fits)
                self._held += counted
        except TimeoutError as error:
            raise Refusal(
                429, f"other requests hold the {most:,} bytes that are held at once: try again", retry_after=1
            ) from error

    async def _read(self, request: web.Request, length: int) -> bytearray:
        body, limits = bytearray(), self._limits
        try:
            async with asyncio.timeout(limits.read_s):
                while len(body) < length:
                    async with asyncio.timeout(limits.silence_s):
                        piece = await request.content.readany()
                    if not piece:
                        break
                    body += piece
        except TimeoutError as error:
            raise Refusal(
                408, f"{len(body):,} of {length:,} bytes came in time: send the body faster"
            ) from error
        except (web.RequestPayloadError, ConnectionError) as error:
            raise Refusal(400, f"the body broke off after {len(body):,} of {length:,} bytes") from error
        return body


def _announced(request: web.Request, limits: Limits) -> int:
    """The length of a body that may be read."""
    if request.content_type != "application/json":
        raise Refusal(415, "send the request as JSON, with the header 'Content-Type: application/json'")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refusal(415, "the body is compressed: send it as it is, without Content-Encoding")
    length = request.content_length
    if length is None:
        raise Refusal(411, "the body has no length: send it in one piece, with the header Content-Length")
    if length > limits.body_bytes:
        raise Refusal(
            413,
            f"the body has {length:,} bytes; at most {limits.body_bytes:,} are read: send fewer or smaller pictures "
            "(data.judge_media.max_edge scales them down in a run)",
        )
    return length


def parse_object(body: bytearray, limits: Limits) -> JsonDict:
    """The JSON object that a body is. Empties ``body``: a large one should not be held twice.

    Raises Refusal: no JSON by the letter of RFC 8259 (NaN is none), a key given twice, too deep, too many values.
    """
    if _has_more(body, (b",", b"[", b"{"), limits.values):
        raise Refusal(400, f"the body has more than {limits.values:,} commas and brackets")
    if _has_more(body, (b"\\",), limits.escapes):
        raise Refusal(400, f"the body has more than {limits.escapes:,} backslashes")
    if len(body) > limits.wide_bytes and not body.isascii():
        raise Refusal(
            413,
            f"the body has {len(body):,} bytes and characters beyond ASCII; above {limits.wide_bytes:,} bytes write "
            "those as \\uXXXX",
        )
    try:
        text = body.decode()
        body.clear()
        parsed = json.loads(text, parse_constant=_no_number, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise Refusal(400, "the body's JSON is nested too deeply") from error
    except ValueError as error:  # of JSON, of UTF-8, and of integers with thousands of digits
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise Refusal(400, "the body must be a JSON object")
    return parsed


def _has_more(body: bytearray, signs: tuple[bytes, ...], most: int) -> bool:
    """Whether the signs occur more than ``most`` times, together. Other threads run between the pieces."""
    count = 0
    for start in range(0, len(body), _PIECE):
        count += sum(body.count(sign, start, start + _PIECE) for sign in signs)
        if count > most:
            return True
    return False


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
