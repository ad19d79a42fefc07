"""Requests that ask the embedded judge for more than it should give, or that are none. Every one must get a 4xx.

``HOSTILE`` has them all. Those with a size of their own come in two: as large as an attacker would make them, and small
enough for a test.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image

from tests.gpu_judge.requests_of_the_world import MODEL, about, body
from vcap_jax.data.media import JudgeFrame
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.video_scenes import sample_video_scene

IMAGE, VIDEO = sample_image_scene(0, 0), sample_video_scene(0, 0)
CAPTION = "At the top left is a large red circle."


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """make: the body, from "is it to be small?". status: what it must get.

    announced: the Content-Length to send if it is not the body's. sending: all of it and wait; all of it and then
    nothing, though more was announced; in chunks without end.
    """

    name: str
    make: Callable[[bool], bytes]
    status: tuple[int, ...] = (400,)
    headers: Mapping[str, str] = field(default_factory=dict)
    announced: int | None = None
    sending: Literal["whole", "stalled", "endless"] = "whole"


def request_with(url: str) -> dict[str, Any]:
    """A request about one picture, good but for its URL."""
    return body("image", [JudgeFrame(url=url)], CAPTION, CAPTION)


def data_url(raw: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(raw).decode()}"


def dumped(asked: Any) -> bytes:
    return json.dumps(asked).encode()


def pictured(raw: bytes, kind: str = "image/png") -> bytes:
    return dumped(request_with(data_url(raw, kind)))


def png(
    width: int,
    height: int,
    rows: bytes | None = None,
    *,
    depth: int = 1,
    colours: int = 0,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG of zeros, 1 bit a pixel; rows: compressed data of its own. before, after: chunks around its pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    if rows is None:
        squeeze = zlib.compressobj(9)
        channels = {0: 1, 2: 3, 6: 4}[colours]
        row = bytes(1 + (width * depth * channels + 7) // 8)
        rows = b"".join([*(squeeze.compress(row) for _ in range(height)), squeeze.flush()])
    pixels = chunk(b"IDAT", rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + pixels + after + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg(side: int = 64, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (side, side), (200, 30, 30)).save(stream, "JPEG", **options)
    return stream.getvalue()


def resized_jpeg(width: int, height: int, **options: Any) -> bytes:
    """A small JPEG whose header says another size."""
    raw = bytearray(jpeg(**options))
    at = raw.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    struct.pack_into(">HH", raw, at + 5, height, width)
    return bytes(raw)


def many_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan comes ``count`` times."""
    raw = jpeg(progressive=True)
    last = raw.rindex(b"\xff\xda")
    return raw[:last] + count * raw[last:-2] + raw[-2:]


def saved(kind: str, side: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L" if kind == "GIF" else "RGB", (side, side)).save(stream, kind)
    return stream.getvalue()


def gif_frames(count: int) -> bytes:
    """A GIF of 60,000 x 60,000 with ``count`` frames of one pixel."""
    frame = b"\x2c" + bytes(4) + struct.pack("<HHB", 1, 1, 0) + b"\x02\x02D\x01\x00"
    return b"GIF89a" + struct.pack("<HHBBB", 60_000, 60_000, 0x80, 0, 0) + bytes(6) + count * frame + b";"


def webp_canvas(side: int) -> bytes:
    """The head of an animated WebP that says its canvas is so large."""
    edge = struct.pack("<I", side - 1)[:3]
    extended = b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + edge + edge
    animation = b"ANIM" + struct.pack("<I", 6) + bytes(6)
    rest = b"WEBP" + extended + animation
    return b"RIFF" + struct.pack("<I", len(rest)) + rest


def mp4(size: int) -> bytes:
    """What begins as an MP4 does."""
    return (
        struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 512, b"isom")
        + struct.pack(">I4s", size, b"mdat")
        + bytes(size)
    )


def frames_of(count: int, raw: bytes) -> bytes:
    url = data_url(raw)
    frames = [JudgeFrame(url=url, seconds=k / 2) for k in range(count)]
    return dumped(body("video_global", frames, CAPTION, CAPTION))


def with_messages(messages: Any) -> bytes:
    return dumped({"model": MODEL, "messages": messages})


def with_content(content: Any) -> bytes:
    return with_messages([{"role": "user", "content": content}])


def with_text(text: str) -> bytes:
    """The good request about a picture with ``text`` before its instruction."""
    asked = about(IMAGE, CAPTION, CAPTION)
    asked["messages"][0]["content"].insert(1, {"type": "text", "text": text})
    return dumped(asked)


def good_with(raw: bytes) -> bytes:
    """A good request with some JSON more at its end."""
    return dumped(about(IMAGE, CAPTION, CAPTION))[:-1] + b", " + raw + b"}"


def inserted(message: Any) -> bytes:
    asked = about(IMAGE, CAPTION, CAPTION)
    asked["messages"].insert(0, message)
    return dumped(asked)


def at_second(time: str) -> bytes:
    asked = about(VIDEO, CAPTION, CAPTION)
    asked["messages"][0]["content"][-3]["text"] = f"<{time} seconds>"
    return dumped(asked)


def unclosed(count: int) -> bytes:
    opening = "<generated_caption>\n"
    return with_content([{"type": "text", "text": opening * count}])


def many_questions(count: int, length: int) -> bytes:
    questions = "\n".join(f"Q{k}: What colour is the background?" for k in range(count))
    caption = "The background is white. " * (length // 25)
    return with_content(f"<questions>\n{questions}\n</questions>\n<caption>\n{caption}\n</caption>")


def segments(count: int) -> bytes:
    """A description in so many segments, of a clip with as many shots as frames."""
    plain = [
        png(8, 8, zlib.compress((b"\0" + bytes([shade] * 24)) * 8), depth=8, colours=2) for shade in (0, 250)
    ]
    frames = [JudgeFrame(url=data_url(plain[k % 2]), seconds=float(k)) for k in range(64)]
    return dumped(body("video_global", frames, "[1-2]\n" * count, CAPTION))


def _sized(large: int, small: int) -> Callable[[bool], int]:
    return lambda tiny: small if tiny else large


def _bomb(name: str, make: Callable[[int], bytes], large: int, small: int, **more: Any) -> Hostile:
    size = _sized(large, small)
    return Hostile(name=name, make=lambda tiny: make(size(tiny)), **more)


def _plain(name: str, raw: bytes, **more: Any) -> Hostile:
    return Hostile(name=name, make=lambda tiny: raw, **more)


_GOOD = dumped(about(IMAGE, CAPTION, CAPTION))
_PICTURE = png(8, 8)
_CHUNKED = {"Transfer-Encoding": "chunked"}

HOSTILE: tuple[Hostile, ...] = (
    # pictures that are larger than their files
    _bomb("PNG, 177 megapixels in 30 kB", lambda n: pictured(png(n, n)), 13_300, 9_000),
    _bomb("PNG, 2.5 gigapixels in 400 kB", lambda n: pictured(png(n, n)), 50_000, 14_000),
    _bomb("PNG, RGBA", lambda n: pictured(png(n, n, depth=8, colours=6)), 9_000, 6_000),
    _plain("PNG, its header lies", pictured(png(60_000, 60_000, zlib.compress(bytes(100))))),
    _plain("PNG, one side of 2 gigapixels", pictured(png(2**31 - 1, 1, zlib.compress(bytes(100))))),
    _plain("PNG, no pixels", pictured(png(0, 8, b""))),
    _plain(
        "PNG, two headers",
        pictured(png(8, 8, before=chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)))),
    ),
    _plain("PNG, an animation", pictured(png(8, 8, before=chunk(b"acTL", struct.pack(">II", 10**6, 0))))),
    _bomb(
        "PNG, empty chunks",
        lambda n: pictured(png(8, 8, before=n * chunk(b"prIv", b""))),
        3_000_000,
        20_000,
    ),
    _plain("PNG, cut off", pictured(png(64, 64)[:-40])),
    _plain("JPEG, its header lies", pictured(resized_jpeg(65_000, 65_000), "image/jpeg")),
    _plain("JPEG, its header lies within bounds", pictured(resized_jpeg(8_000, 8_000)[:500], "image/jpeg")),
    _plain("JPEG, progressive", pictured(resized_jpeg(8_000, 8_000, progressive=True), "image/jpeg")),
    _bomb("JPEG, scans", lambda n: pictured(many_scans(n), "image/jpeg"), 100_000, 100),
    _bomb(
        "JPEG, empty segments",
        lambda n: pictured(jpeg()[:2] + n * b"\xff\xe1\x00\x02" + jpeg()[2:], "image/jpeg"),
        10_000_000,
        20_000,
    ),
    _bomb("GIF", lambda n: pictured(saved("GIF", n), "image/gif"), 6_000, 64),
    _plain("GIF, frames", pictured(gif_frames(1_000), "image/gif")),
    _bomb("WebP", lambda n: pictured(saved("WEBP", n), "image/webp"), 4_000, 64),
    _plain("WebP, an animation of 16,384 x 16,384", pictured(webp_canvas(16_384), "image/webp")),
    _bomb("TIFF", lambda n: pictured(saved("TIFF", n), "image/tiff"), 2_000, 64),
    _plain("EPS", pictured(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "image/eps")),
    _plain("SVG", pictured(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml")),
    _bomb("MP4 as a picture", lambda n: pictured(mp4(n), "video/mp4"), 20 * 2**20, 1_000),
    _bomb("MP4 said to be a PNG", lambda n: pictured(mp4(n)), 20 * 2**20, 1_000),
    _bomb(
        "MP4 as a video",
        lambda n: with_content([{"type": "video_url", "video_url": {"url": data_url(mp4(n), "video/mp4")}}]),
        20 * 2**20,
        1_000,
    ),
    _bomb("a clip of 4 gigapixels", lambda n: frames_of(n, png(4_000, 4_000)), 250, 40),
    _bomb("2,000 pictures", lambda n: frames_of(n, _PICTURE), 2_000, 1_100),
    _bomb(
        "base64 of 100 MB",
        lambda n: dumped(request_with("data:image/png;base64," + n * "A")),
        10**8,
        68 * 2**20,
    ),
    # URLs
    _plain("base64, cut off", dumped(request_with(data_url(_PICTURE)[:-3]))),
    _plain("base64, other signs", dumped(request_with("data:image/png;base64,@@@@"))),
    _plain("base64, half a surrogate", dumped(request_with("data:image/png;base64,\ud800"))),
    _plain("not base64", dumped(request_with("data:image/png,%89PNG"))),
    _plain("a data URL of HTML", dumped(request_with(data_url(b"<html>", "text/html")))),
    _plain("no URL", dumped(request_with(""))),
    _plain("an http URL", dumped(request_with("http://127.0.0.1:9/picture.png"))),
    _plain("a metadata service", dumped(request_with("http://169.254.169.254/latest/meta-data/"))),
    _plain("a file URL", dumped(request_with("file:///etc/passwd"))),
    # JSON
    _bomb("lists in lists", lambda n: n * b"[", 10**8, 200_000),
    # Python 3.14 reads half as many.
    _plain("lists in lists, closed", good_with(b'"x": ' + 200_000 * b"[" + 200_000 * b"]")),
    _plain("objects in objects", good_with(b'"x": ' + 200_000 * b'{"a":' + b"1" + 200_000 * b"}")),
    _bomb("empty lists", lambda n: good_with(b'"x": [' + n * b"[]," + b"1]"), 30_000_000, 600_000),
    _bomb("numbers", lambda n: good_with(b'"x": [' + n * b"1," + b"1]"), 40_000_000, 600_000),
    _bomb("escapes", lambda n: good_with(b'"x": "' + n * b"\\n" + b'"'), 40_000_000, 5_000_000),
    _bomb(
        "4 bytes a character",
        lambda n: good_with(b'"x": "' + "\U0001f600".encode() + n * b"a" + b'"'),
        10**8,
        49 * 2**20,
        status=(413,),
    ),
    _plain("a number of 100,000 digits", good_with(b'"x": ' + 100_000 * b"9")),
    _plain("NaN", good_with(b'"temperature": NaN')),
    _plain("infinity", good_with(b'"temperature": -Infinity')),
    _plain("a key twice", good_with(b'"n": 1, "n": 1')),
    _plain("cut off", _GOOD[: len(_GOOD) // 2]),
    _plain("no UTF-8", _GOOD[:-2] + b"\xff\xfe" + _GOOD[-2:]),
    _plain("UTF-16", _GOOD.decode().encode("utf-16")),
    _plain("a list", b"[1, 2]"),
    _plain("a string", b'"hello"'),
    _plain("nothing", b""),
    # the shape of a request
    _plain("no model", dumped({"messages": []})),
    _plain("a number as the model", dumped({"model": 1, "messages": []})),
    _bomb(
        "another model, with a long name",
        lambda n: dumped({"model": n * "\0", "messages": []}),
        500_000,
        10_000,
        status=(404,),
    ),
    _plain("streamed", good_with(b'"stream": true')),
    _plain("three answers", good_with(b'"n": 3')),
    _plain("messages as an object", with_messages({"role": "user"})),
    _plain("messages as a string", with_messages("hello")),
    _plain("a message as a number", with_messages([1])),
    _plain("no role", with_messages([{"content": "hello"}])),
    _plain("a list as the role", with_messages([{"role": ["user"], "content": "hello"}])),
    _bomb("messages", lambda n: with_messages(n * [{"role": "user", "content": "x"}]), 100_000, 300),
    _plain("content as a number", with_content(5)),
    _plain("content as an object", with_content({"type": "text", "text": "x"})),
    _plain("content as null", with_content(None)),
    _plain("parts as numbers", with_content([1, 2])),
    _plain("text as a number", with_content([{"type": "text", "text": 1}])),
    _plain("text as a list", with_content([{"type": "text", "text": ["x"]}])),
    _plain("a picture as a string", with_content([{"type": "image_url", "image_url": "data:,"}])),
    _plain("a URL as a number", with_content([{"type": "image_url", "image_url": {"url": 7}}])),
    _plain("a picture as null", with_content([{"type": "image_url", "image_url": None}])),
    _plain("a part of no known type", with_content([{"type": "input_audio", "input_audio": {}}])),
    _plain("another message's content as a number", inserted({"role": "system", "content": 5})),
    _plain("another message's parts as numbers", inserted({"role": "system", "content": [5]})),
    _bomb("parts", lambda n: with_content(n * [{"type": "text", "text": "x"}]), 50_000, 8_200),
    _bomb("a long text", lambda n: with_text(n * "word "), 12_000_000, 500_000),
    _bomb("openings that are never closed", unclosed, 100_000, 2_000),
    _bomb("questions about a long caption", lambda n: many_questions(n, 40 * n), 20_000, 800),
    _bomb("segments", segments, 150_000, 11_000),
    _plain("a frame after 10^400 seconds", at_second("9" * 400)),
    _plain("frames in disorder", at_second("0.1")),
    # HTTP
    _plain("a form", _GOOD, headers={"Content-Type": "application/x-www-form-urlencoded"}, status=(415,)),
    _plain("plain text", _GOOD, headers={"Content-Type": "text/plain"}, status=(415,)),
    _bomb(
        "gzip",
        lambda n: gzip.compress(bytes(n), 1),
        10**9,
        10**6,
        headers={"Content-Encoding": "gzip"},
        status=(415,),
    ),
    _bomb("more bytes than are read", bytes, 300 * 10**6, 0, announced=300 * 10**6, status=(413,)),
    _plain("a length of 1 TB", b"{", announced=10**12, sending="stalled", status=(413,)),
    _plain("a length below zero", b"{", announced=-5, status=(400,)),
    _plain("a body that does not come", b"{", announced=1_000, sending="stalled", status=(408,)),
    _plain("chunks without end", b"{", headers=_CHUNKED, sending="endless", status=(411,)),
)
