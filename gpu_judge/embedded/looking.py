"""From the pictures of a request to what they show, remembered by content."""

from __future__ import annotations

import base64
import binascii
import io
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from PIL import Image

from gpu_judge.embedded.request import BadRequest, Kind, Picture
from vcap_jax.world.imperfect_sight import ImperfectSight, PerceptionConfig, imperfect
from vcap_jax.world.perception import see_image, see_video


class Eyes:
    """Looks at pictures, at most once at each of the last ``capacity``, as well as ``perception`` says."""

    def __init__(self, capacity: int = 4096, perception: PerceptionConfig | None = None) -> None:
        self._capacity = capacity
        self._perception = perception or PerceptionConfig()
        self._seen: OrderedDict[bytes, ImperfectSight] = OrderedDict()

    def look(self, kind: Kind, pictures: Sequence[Picture]) -> ImperfectSight:
        """What the judge takes the pictures to show. Of several pictures of an image request, the first is looked at.

        Raises BadRequest for a picture that cannot be decoded.
        """
        if kind == "image":
            pictures = pictures[:1]
        key = _key(kind, pictures)
        if (sight := self._seen.get(key)) is not None:
            self._seen.move_to_end(key)
            return sight
        frames = [decode(picture.url, number) for number, picture in enumerate(pictures)]
        if kind == "image":
            pixels = see_image(frames[0])
        else:
            pixels = see_video(frames, [picture.seconds or 0.0 for picture in pictures])
        sight = self._seen[key] = imperfect(pixels, self._perception, key)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        return sight


def _key(kind: Kind, pictures: Sequence[Picture]) -> bytes:
    digest = blake2b(b"image" if kind == "image" else b"video", digest_size=16)
    for picture in pictures:
        digest.update(f"|{picture.seconds}|{len(picture.url)}|".encode())
        digest.update(picture.url.encode())
    return digest.digest()


def decode(url: str, number: int) -> np.ndarray:
    """The picture in a base64 data URL, uint8 [H, W, 3]; ``number`` (from 0) names it in messages."""
    header, comma, data = url.partition(",")
    if not (header.startswith("data:image/") and header.endswith(";base64") and comma):
        raise BadRequest(
            f"picture {number + 1} is not a data URL 'data:image/...;base64,...': this judge fetches nothing"
        )
    try:
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
            return np.asarray(image.convert("RGB"))
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadRequest(f"picture {number + 1} cannot be decoded: {error}") from error
