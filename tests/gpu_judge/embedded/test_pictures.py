"""Pictures of a request: bounds before decoding, and the pixels that the judge's eyes get."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpu_judge.embedded import pictures
from gpu_judge.embedded.headers import HeaderError, read_header
from gpu_judge.embedded.pictures import Eyes, decode_pictures
from gpu_judge.embedded.request import BadRequest, Picture
from tests.gpu_judge.hostile_bodies import data_url, jpeg, png, resized_jpeg
from tests.gpu_judge.requests_of_the_world import frames_of
from vcap_jax.world.noisy_perception import PerceptionConfig
from vcap_jax.world.video_scenes import sample_video_scene

NOISE = np.random.default_rng(0).integers(0, 256, (150, 211, 4), np.uint8)


def saved(mode: str, kind: str, size: tuple[int, int] | None = None, **options: Any) -> bytes:
    image = Image.fromarray(NOISE)
    image = image.convert("RGB").quantize(50) if mode == "P" else image.convert("L").convert(mode)
    if mode in ("RGB", "RGBA"):
        image = Image.fromarray(NOISE).convert(mode)
    stream = io.BytesIO()
    (image if size is None else image.resize(size)).save(stream, kind, **options)
    return stream.getvalue()


def picture(raw: bytes) -> Picture:
    return Picture(url=data_url(raw), seconds=None)


KINDS = [
    *((mode, "PNG", {}) for mode in ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")),
    *((mode, "JPEG", options) for mode in ("L", "RGB", "CMYK") for options in ({}, {"progressive": True})),
]


@pytest.mark.parametrize(("mode", "kind", "options"), KINDS)
def test_pixels_are_those_of_the_whole_picture_scaled_down(
    mode: str, kind: str, options: dict[str, Any]
) -> None:
    """What ``see_image`` would make of the picture at its own size."""
    for size in (None, (96, 96)):
        raw = saved(mode, kind, size, **options)
        whole = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))
        expected = np.asarray(Image.fromarray(whole).resize((96, 96), Image.Resampling.BOX))
        (found,) = decode_pictures([picture(raw)], 96)
        np.testing.assert_array_equal(found, whole if size else expected)


@pytest.mark.parametrize(("mode", "kind", "options"), KINDS)
def test_the_header_is_read_as_the_decoder_reads_it(mode: str, kind: str, options: dict[str, Any]) -> None:
    header = read_header(saved(mode, kind, **options))
    assert (header.format, header.width, header.height) == (kind, 211, 150)
    assert header.bytes_per_pixel >= 4


def test_what_costs_more_memory_counts_for_more() -> None:
    plain = read_header(saved("RGB", "JPEG")).bytes_per_pixel
    assert plain == read_header(saved("RGB", "PNG")).bytes_per_pixel == 4
    assert read_header(saved("RGB", "JPEG", progressive=True)).bytes_per_pixel == plain + 6
    assert read_header(saved("RGBA", "PNG")).bytes_per_pixel == 2 * plain


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_no_cut_and_no_changed_byte_makes_the_header_reader_fail_otherwise(kind: str) -> None:
    raw, rng = saved("RGB", kind), np.random.default_rng(1)
    for length in range(min(len(raw), 1200)):
        _try_header(raw[:length])
    for _ in range(3000):
        changed = bytearray(raw[:700])
        changed[rng.integers(len(changed))] = rng.integers(256)
        _try_header(bytes(changed))


def _try_header(raw: bytes) -> None:
    with contextlib.suppress(HeaderError):
        read_header(raw)


def test_nothing_is_decoded_where_a_later_picture_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("decoded"))
    small, huge = picture(png(64, 64)), picture(png(60_000, 60_000, b"x"))
    with pytest.raises(BadRequest, match=r"picture 3 is 60000 x 60000 pixels, .* while it is decoded"):
        decode_pictures([small, small, huge], 96)
    monkeypatch.setattr(pictures, "MOST_PIXELS", 64 * 64 * 2)
    with pytest.raises(BadRequest, match="the first 3 of 5 pictures have 0 megapixels together"):
        decode_pictures([small] * 5, 96)


def test_pictures_that_say_too_much_are_refused_by_name() -> None:
    for raw, message in (
        (resized_jpeg(50_000, 50_000), "picture 1 is 50000 x 50000"),
        (resized_jpeg(600, 600)[:-200], "picture 1 cannot be decoded"),
        (jpeg()[:2] + b"\xff\xd9" + jpeg()[2:], "a segment 0xD9 before its pixels"),
        (jpeg()[:20] + b"junk" + jpeg()[20:], "bytes between its segments"),
    ):
        with pytest.raises(BadRequest, match=message):
            decode_pictures([picture(raw)], 96)


def test_the_eyes_remember_a_bounded_number_of_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    eyes = Eyes(4096, PerceptionConfig())
    monkeypatch.setattr("gpu_judge.embedded.pictures._MOST_FACTS", 100)
    for index in range(12):
        frames = frames_of(sample_video_scene(0, index))
        eyes.look("video", [Picture(url=frame.url, seconds=frame.seconds) for frame in frames])
    assert 0 < len(eyes._seen) < 12


def test_the_same_frames_at_other_times_are_another_clip() -> None:
    frames, eyes = frames_of(sample_video_scene(0, 0)), Eyes(4096, PerceptionConfig())

    def end(slower: float) -> float:
        told = [Picture(url=frame.url, seconds=slower * (frame.seconds or 0.0)) for frame in frames]
        return eyes.look("video", told).shots[-1][1]

    assert end(2.0) == pytest.approx(2 * end(1.0))
