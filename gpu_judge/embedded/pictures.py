"""From the data URLs of a request to what they show, within bounds that are known before anything is decoded.

A picture is decoded alone and brought to the size that the judge's eyes work at before the next one is, so a request
takes the memory of its own text and of one picture, however many it has.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from PIL import Image

from gpu_judge.embedded.headers import Header, HeaderError, read_header
from gpu_judge.embedded.request import BadRequest, Kind, Picture
from vcap_jax.world.image_perception import see_image
from vcap_jax.world.noisy_perception import ImperfectSight, PerceptionConfig, imperfect
from vcap_jax.world.scenes import IMAGE_EDGE, VIDEO_EDGE
from vcap_jax.world.video_perception import see_video

MOST_ENCODED = 64 * 1024**2
"""Characters of one picture's base64: 48 MiB, several times a camera's JPEG."""
MOST_DECODED = 256 * 1024**2
"""Bytes that one picture may take while it is decoded: 67 megapixels of RGB, 26 of a progressive JPEG."""
MOST_PIXELS = 512 * 10**6
"""Of all pictures of a request: 246 frames of 1920 x 1080."""
_MOST_FACTS = 250_000
"""That are remembered in all, some 150 bytes each. 4,096 clips of this world have 175,000."""
_LONGEST_HEADER = 100
_SMALLER = "smaller pictures (data.judge_media.max_edge scales them down in a run)"


class Eyes:
    """Looks at pictures, at most once at each of the last ``capacity``, as well as ``perception`` says."""

    def __init__(self, capacity: int, perception: PerceptionConfig) -> None:
        self._capacity, self._perception = capacity, perception
        self._seen: OrderedDict[bytes, ImperfectSight] = OrderedDict()
        self._facts = 0

    def look(self, kind: Kind, pictures: Sequence[Picture]) -> ImperfectSight:
        """What the judge takes the pictures to show. Of several pictures of an image request, the first is looked at.

        Raises BadRequest for a picture that cannot be decoded or is too large.
        """
        if kind == "image":
            pictures = pictures[:1]
        key = _key(kind, pictures)
        if (sight := self._seen.get(key)) is not None:
            self._seen.move_to_end(key)
            return sight
        # The eyes would bring a picture to this size themselves, but would hold all of a clip's at their own first.
        if kind == "image":
            (frame,) = decode_pictures(pictures, IMAGE_EDGE)
            pixels = see_image(frame)
        else:
            frames = decode_pictures(pictures, VIDEO_EDGE)
            pixels = see_video(frames, [picture.seconds or 0.0 for picture in pictures])
        sight = imperfect(pixels, self._perception, key)
        self._remember(key, sight)
        return sight

    def _remember(self, key: bytes, sight: ImperfectSight) -> None:
        self._seen[key] = sight
        self._facts += _size(sight)
        while len(self._seen) > self._capacity or self._facts > _MOST_FACTS:
            self._facts -= _size(self._seen.popitem(last=False)[1])


def _size(sight: ImperfectSight) -> int:
    """Roughly how many entries a sight keeps."""
    return len(sight.truth) + len(sight.unknown) + len(sight.prominence) + len(sight.shots)


def _key(kind: Kind, pictures: Sequence[Picture]) -> bytes:
    digest = blake2b(b"image" if kind == "image" else b"video", digest_size=16)
    for picture in pictures:
        digest.update(f"|{picture.seconds}|{len(picture.url)}|".encode())
        digest.update(picture.url.encode(errors="surrogatepass"))
    return digest.digest()


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
