from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings, encode_picture
from vcap_jax.reward.media import JudgeMedia, TimeWindow

RNG = np.random.default_rng(0)


def picture(height: int, width: int) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def decode(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1])))


def test_small_pictures_travel_without_loss() -> None:
    pixels = picture(96, 128)
    frame = encode_picture(pixels, JudgeMediaSettings()).as_frame()
    assert frame.url.startswith("data:image/png;base64,")
    np.testing.assert_array_equal(np.asarray(decode(frame.url)), pixels)


@pytest.mark.parametrize(("kind", "size"), [("auto", (129, 20)), ("jpeg", (20, 20))])
def test_large_ones_travel_as_jpeg(kind: str, size: tuple[int, int]) -> None:
    encoded = encode_picture(picture(*size), JudgeMediaSettings(format=kind))
    assert encoded.mime == "image/jpeg"
    assert decode(encoded.as_frame().url).size == size[::-1]


def test_the_longer_side_is_limited() -> None:
    frame = encode_picture(picture(300, 600), JudgeMediaSettings(max_edge=200, format="png")).as_frame()
    assert decode(frame.url).size == (200, 100)
    frame = encode_picture(picture(2, 600), JudgeMediaSettings(max_edge=200, format="png")).as_frame()
    assert decode(frame.url).size == (200, 1)


def test_a_window_selects_the_frames_of_a_video() -> None:
    settings = JudgeMediaSettings()
    pictures = tuple(encode_picture(picture(8, 8), settings, seconds=t / 2) for t in range(8))
    media: JudgeMedia = EncodedMedia(modality="video", duration=4.0, pictures=pictures)
    assert [f.seconds for f in media.frames()] == [t / 2 for t in range(8)]
    assert [f.seconds for f in media.frames(TimeWindow(start=1.0, end=2.0))] == [1.0, 1.5]
    assert [f.seconds for f in media.frames(TimeWindow(start=1.6, end=1.9))] == [1.5]


@pytest.mark.parametrize("wrong", [{"max_edge": -1}, {"quality": 100}])
def test_values_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        JudgeMediaSettings(**wrong)
