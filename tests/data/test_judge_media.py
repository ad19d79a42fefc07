from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from gpu_judge.bodies import Limits
from vcap_jax.configuration import load_config, shipped_configs
from vcap_jax.data.errors import MediaError
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings, VideoSource, encode_picture
from vcap_jax.data.media import TimeWindow
from vcap_jax.run.config import RunConfig

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


def test_a_jpeg_has_the_quality_that_is_asked_for() -> None:
    pixels = picture(64, 64)
    settings = (JudgeMediaSettings(format="jpeg", quality=quality) for quality in (30, 75, 95))
    low, usual, high = (len(encode_picture(pixels, each).data) for each in settings)
    assert low < usual < high


def test_colours_of_small_pictures_stay_apart_in_a_video() -> None:
    """As far as they do in the PNG that is sent where no video is: one pixel beside the other."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, ::2, 0] = pixels[:, 1::2, 2] = 200
    frame = encode_picture(pixels, JudgeMediaSettings(), seconds=0.0, index=0)
    source = VideoSource(frames=1, fps=2.0)
    media = EncodedMedia(modality="video", duration=0.5, pictures=(frame,), source=source)
    (data,) = media.video().frames
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), int)
    assert np.abs(shown - pixels).max() < 40


def test_the_longer_side_is_limited() -> None:
    frame = encode_picture(picture(300, 600), JudgeMediaSettings(max_edge=200, format="png")).as_frame()
    assert decode(frame.url).size == (200, 100)
    frame = encode_picture(picture(2, 600), JudgeMediaSettings(max_edge=200, format="png")).as_frame()
    assert decode(frame.url).size == (200, 1)


@pytest.mark.parametrize("size", [(1080, 1920), (2160, 3840)])
def test_a_clip_of_the_papers_run_is_far_below_what_the_judges_server_takes(size: tuple[int, int]) -> None:
    """Of noise, which compresses worst."""
    data = load_config(RunConfig, [shipped_configs() / "paper" / "video.yaml"]).data
    frame = encode_picture(picture(*size), data.judge_media).as_frame()
    assert data.max_frames * len(frame.url) < Limits().body_bytes / 1.5
    # And it loses nothing that the judge would see: 256 tokens of 32 x 32 pixels.
    width, height = decode(frame.url).size
    assert width * height >= data.max_frame_tokens * 32 * 32


def test_a_window_selects_the_frames_of_a_video() -> None:
    settings = JudgeMediaSettings()
    pictures = tuple(encode_picture(picture(8, 8), settings, seconds=t / 2) for t in range(8))
    media = EncodedMedia(modality="video", duration=4.0, pictures=pictures)
    assert [f.seconds for f in media.frames()] == [t / 2 for t in range(8)]
    assert [f.seconds for f in media.frames(TimeWindow(start=1.0, end=2.0))] == [1.0, 1.5]
    assert [f.seconds for f in media.frames(TimeWindow(start=1.6, end=1.9))] == [1.5]


@pytest.mark.parametrize("wrong", [{"max_edge": -1}, {"quality": 100}])
def test_values_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        JudgeMediaSettings(**wrong)


def clip(times: list[float], indices: list[int], fps: float | None, frames: int) -> EncodedMedia:
    settings = JudgeMediaSettings()
    pictures = tuple(
        encode_picture(picture(64, 96), settings, seconds=t, index=i)
        for t, i in zip(times, indices, strict=True)
    )
    source = VideoSource(frames=frames, fps=fps)
    return EncodedMedia(modality="video", duration=10.0, pictures=pictures, source=source)


def test_a_video_keeps_indices_and_rate_of_its_file() -> None:
    media = clip([0.0, 2.0, 4.0, 6.0], [0, 50, 100, 150], 25.0, 250)
    video = media.video()
    assert (video.indices, video.fps, video.total_frames, video.duration) == (
        (0, 50, 100, 150),
        25.0,
        250,
        10.0,
    )
    window = media.video(TimeWindow(start=1.5, end=4.5))
    assert (window.indices, window.fps, window.total_frames) == ((50, 100), 25.0, 250)
    assert window.frames == video.frames[1:3]


def test_a_variable_rate_is_counted_in_milliseconds() -> None:
    video = clip([0.0, 0.037, 9.9604], [0, 1, 77], None, 78).video()
    assert (video.indices, video.fps, video.total_frames) == ((0, 37, 9960), 1000.0, 10_000)
    late = clip([0.0, 10.5], [0, 9], None, 10).video()
    assert late.total_frames == 10_501


def test_frames_of_a_video_are_jpegs_of_the_same_size() -> None:
    media = clip([0.0], [0], 2.0, 1)
    assert media.pictures[0].mime == "image/png"
    frame = base64.b64decode(media.video().frames[0])
    image = Image.open(io.BytesIO(frame))
    assert (image.format, image.size) == ("JPEG", (96, 64))
    large = encode_picture(picture(200, 300), JudgeMediaSettings(), seconds=0.0, index=0)
    source = VideoSource(frames=1, fps=2.0)
    sent = EncodedMedia(modality="video", duration=1.0, pictures=(large,), source=source).video()
    assert base64.b64decode(sent.frames[0]) == large.data  # not compressed a second time


def test_frames_without_a_source_are_no_video() -> None:
    picture_only = encode_picture(picture(8, 8), JudgeMediaSettings(), seconds=0.0)
    media = EncodedMedia(modality="video", duration=1.0, pictures=(picture_only,))
    with pytest.raises(ValueError, match="no video"):
        media.video()
    with pytest.raises(ValueError, match="no video"):
        EncodedMedia(
            modality="video",
            duration=1.0,
            pictures=(picture_only,),
            source=VideoSource(frames=1, fps=1.0),
        ).video()


def test_a_picture_that_no_jpeg_can_hold_is_a_bad_sample() -> None:
    long = np.zeros((65_501, 130, 3), np.uint8)
    with pytest.raises(MediaError, match=r"130 x 65501 pixels.*judge_media\.max_edge"):
        encode_picture(long, JudgeMediaSettings())
    assert encode_picture(long, JudgeMediaSettings(max_edge=1000)).mime == "image/jpeg"
    assert encode_picture(long, JudgeMediaSettings(format="png")).mime == "image/png"
