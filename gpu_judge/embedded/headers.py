"""What a PNG or JPEG file says about itself before anything of it is decoded. Pure.

A decoder believes a header: 100 bytes can ask for gigabytes. So the header is read here first, more strictly than any
decoder reads it: what stands before the pixels must be a plain row of segments (JPEG) or chunks (PNG), few enough that
a decoder's own notes about them stay small, with one size among them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

_MOST_SEGMENTS = 10_000
"""A PNG of 48 MiB in chunks of 8 KiB has 6,144. Of each, Pillow keeps about 100 bytes."""
_MOST_SIDE = 65_535
"""JPEG's own limit. The weights of a resize grow with the side, whatever the other side is."""
_MOST_SCANS = 32
"""Each scan of a progressive JPEG goes over all coefficients; encoders make about ten."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_RGB = 2
_KNOWN_MARKERS = frozenset({0xC0, 0xC1, 0xC2, 0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})
_FRAMES = {0xC0: "baseline", 0xC1: "extended", 0xC2: "progressive"}
_SCAN = 0xDA


class HeaderError(ValueError):
    """The header cannot be believed; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """format: as Pillow calls it. width, height: pixels. bytes_per_pixel: that decoding to RGB takes at its peak."""

    format: Literal["PNG", "JPEG"]
    width: int
    height: int
    bytes_per_pixel: int

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def decoded_bytes(self) -> int:
        """Memory that decoding to RGB takes at its peak."""
        return self.pixels * self.bytes_per_pixel


def read_header(raw: bytes) -> Header:
    """The header of a PNG or JPEG file. Raises HeaderError for any other file, and one that no decoder should get."""
    if raw.startswith(_PNG):
        header = _png(raw)
    elif raw.startswith(b"\xff\xd8\xff"):
        header = _jpeg(raw)
    else:
        raise HeaderError("is neither a PNG nor a JPEG file")
    if not (0 < header.width <= _MOST_SIDE and 0 < header.height <= _MOST_SIDE):
        raise HeaderError(
            f"is {header.width} x {header.height} pixels; a side has 1 to {_MOST_SIDE}: scale it down"
        )
    return header


def _png(raw: bytes) -> Header:
    header: Header | None = None
    at, data = len(_PNG), False
    for _ in range(_MOST_SEGMENTS):
        if at + 8 > len(raw):
            break  # cut off; the decoder says where
        length, kind = struct.unpack_from(">I4s", raw, at)
        if (kind == b"IHDR") != (header is None) or (kind == b"IHDR" and length != 13):
            raise HeaderError("has no single header at its beginning")
        if kind == b"IHDR":
            if at + 8 + length > len(raw):
                break
            header = _png_size(raw, at + 8)
        if kind in (b"acTL", b"fcTL", b"fdAT"):
            raise HeaderError("is an animation: send one picture, or the frames of a video as pictures")
        data |= kind == b"IDAT"
        at += 12 + length
        if kind == b"IEND":
            break
    else:
        raise HeaderError(f"has more than {_MOST_SEGMENTS} chunks")
    if header is None or not data:
        raise HeaderError("is cut off before its pixels")
    return header


def _png_size(raw: bytes, at: int) -> Header:
    width, height, _, colours = struct.unpack_from(">IIBB", raw, at)
    if colours not in _PNG_CHANNELS:
        raise HeaderError("has pixels of no kind that PNG knows")
    # Pillow keeps 4 bytes of RGB, and anything else beside its conversion to RGB.
    return Header(format="PNG", width=width, height=height, bytes_per_pixel=4 if colours == _RGB else 8)


def _jpeg(raw: bytes) -> Header:
    size: tuple[int, int, int, bool] | None = None
    at = 2
    for _ in range(_MOST_SEGMENTS):
        if at + 4 > len(raw):
            raise HeaderError("is cut off before its pixels")
        if raw[at] != 0xFF:
            raise HeaderError("has bytes between its segments")
        marker = raw[at + 1]
        if marker == 0xFF:  # a marker may be preceded by any number of these
            at += 1
            continue
        (length,) = struct.unpack_from(">H", raw, at + 2)
        if marker == _SCAN:
            break
        if marker not in _KNOWN_MARKERS or length < 2:
            raise HeaderError(f"has a segment 0x{marker:02X} before its pixels, which is not read here")
        if marker in _FRAMES:
            if size is not None or length < 8 or at + 10 > len(raw):
                raise HeaderError("has no single header")
            height, width, channels = struct.unpack_from(">HHB", raw, at + 5)
            size = width, height, channels, _FRAMES[marker] == "progressive"
        at += 2 + length
    else:
        raise HeaderError(f"has more than {_MOST_SEGMENTS} segments")
    if size is None or at + 5 > len(raw):
        raise HeaderError("has no header before its pixels")
    width, height, channels, progressive = size
    # A scan of all channels at once is decoded line by line; anything else keeps every coefficient, 16 bits each.
    several = progressive or raw[at + 4] != channels
    if several and raw.count(b"\xff\xda", at) > _MOST_SCANS:
        raise HeaderError(f"has more than {_MOST_SCANS} scans")
    cost = (4 if channels == 3 else 8) + (2 * channels if several else 0)
    return Header(format="JPEG", width=width, height=height, bytes_per_pixel=cost)
