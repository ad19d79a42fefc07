"""From the pictures of a request to what they show, remembered by content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from gpu_judge.embedded.pictures import decode_pictures
from gpu_judge.embedded.request import Kind, Picture
from vcap_jax.world.image_perception import see_image
from vcap_jax.world.noisy_perception import ImperfectSight, PerceptionConfig, imperfect
from vcap_jax.world.scenes import IMAGE_EDGE, VIDEO_EDGE
from vcap_jax.world.video_perception import see_video

_MOST_FACTS = 250_000
"""That are remembered in all, some 150 bytes each. 4,096 clips of this world have 175,000."""


class Eyes:
    """Looks at pictures, at most once at each of the last ``capacity``, as well as ``perception`` says."""

    def __init__(self, capacity: int = 4096, perception: PerceptionConfig | None = None) -> None:
        self._capacity = capacity
        self._perception = perception or PerceptionConfig()
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
