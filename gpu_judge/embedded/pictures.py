"""From the data URLs of a request to pixels, within bounds that are known before anything is decoded.

A picture is decoded alone and brought to the size that the judge's eyes work at before the next one is, so a request
takes the memory of its own text and of one picture, however many it has.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from gpu_judge.embedded.headers import Header, HeaderError, read_header
from gpu_judge.embedded.request import BadRequest, Picture

MOST_ENCODED = 64 * 1024**2
"""Characters of one picture's base64: 48 MiB, several times a camera's JPEG."""
MOST_DECODED = 256 * 1024**2
"""Bytes that one picture may take while it is decoded: 67 megapixels of RGB, 26 of a progressive JPEG."""
MOST_PIXELS = 512 * 10**6
"""Of all pictures of a request: 246 frames of 1920 x 1080."""
_LONGEST_HEADER = 100
_SMALLER = "smaller pictures (data.judge_media.max_edge scales them down in a run)"


def decode_pictures(pictures: Sequence[Picture], edge: int) -> list[np.ndarray]:
    """The pictures at ``edge`` x ``edge`` pixels, uint8 [edge, edge, 3] each.

    Raises BadRequest for one that is no data URL, cannot be decoded or is too large, and for too many pixels together;
    a header is looked at before anything is decoded, and those of all pictures before the first is.
    """
    pixels = 0
    for number, picture in enumerate(pictures, start=1):
        pixels += _header(_raw(picture.url, number), number).pixels
        if pixels > MOST_PIXELS:
            raise BadRequest(
                f"the first {number} of {len(pictures)} pictures have {pixels / 1e6:,.0f} megapixels together; at most "
                f"{MOST_PIXELS / 1e6:,.0f} are looked at in one request: send fewer or {_SMALLER}"
            )
    return [_decode(picture.url, number, edge) for number, picture in enumerate(pictures, start=1)]


def _raw(url: str, number: int) -> bytes:
    """The file in a data URL."""
    comma = url.find(",", 0, _LONGEST_HEADER)
    header = url[: max(comma, 0)]
    if not (header.startswith("data:image/") and header.endswith(";base64")):
        raise BadRequest(
            f"picture {number} is not a data URL 'data:image/...;base64,...': this judge fetches nothing"
        )
    if len(url) - comma > MOST_ENCODED:
        raise BadRequest(
            f"picture {number} has {len(url) - comma:,} characters of base64; at most {MOST_ENCODED:,} are read: "
            f"send {_SMALLER}"
        )
    try:
        return base64.b64decode(url[comma + 1 :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"picture {number} cannot be decoded: its base64 is broken ({error})") from error


def _header(raw: bytes, number: int) -> Header:
    """What the file says about itself, within what one picture may take."""
    try:
        header = read_header(raw)
    except HeaderError as error:
        raise BadRequest(f"picture {number} cannot be decoded: it {error}") from error
    if header.decoded_bytes > MOST_DECODED:
        raise BadRequest(
            f"picture {number} is {header.width} x {header.height} pixels, {header.decoded_bytes / 2**20:,.0f} MiB "
            f"while it is decoded; at most {MOST_DECODED / 2**20:,.0f} are given to one: send {_SMALLER}"
        )
    return header


def _decode(url: str, number: int, edge: int) -> np.ndarray:
    raw = _raw(url, number)
    header = _header(raw, number)
    try:
        with Image.open(io.BytesIO(raw), formats=(header.format,)) as image:
            if image.size != (header.width, header.height):
                raise ValueError(f"it says two sizes, {header.width} x {header.height} and {image.size}")
            picture: Image.Image = image if image.mode == "RGB" else image.convert("RGB")
            if picture.size != (edge, edge):
                picture = picture.resize((edge, edge), Image.Resampling.BOX)
            return np.array(picture)
    except MemoryError:
        raise  # ours to have foreseen, and no fault of the picture
    except Exception as error:  # a decoder raises nearly anything about a file that is none
        raise BadRequest(f"picture {number} cannot be decoded: {error}") from error
