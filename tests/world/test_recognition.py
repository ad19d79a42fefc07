"""The world's own pictures are told from all others, by their pixels."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageDraw

from vcap_jax.world.dataset import render, sample_scene, write_mp4
from vcap_jax.world.recognition import is_world_image, is_world_video
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS


def as_jpeg(picture: np.ndarray, quality: int = 90) -> np.ndarray:
    """As a picture reaches the judge where JPEG is asked for."""
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "JPEG", quality=quality)
    return np.asarray(Image.open(content).convert("RGB"))


@pytest.mark.parametrize("scenes", [range(5), pytest.param(range(5, 20), marks=pytest.mark.slow)], ids=str)
def test_every_picture_of_the_world_is_recognised(scenes: range) -> None:
    for index in scenes:
        picture = render(sample_scene("image", 0, index))
        assert is_world_image(picture), index
        assert is_world_image(as_jpeg(picture)), index


@pytest.mark.parametrize("index", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 5))])
def test_every_clip_of_the_world_is_recognised(tmp_path: Path, index: int) -> None:
    """After H.264, as it lies in its file, and after JPEG, as the judge gets its frames."""
    write_mp4(tmp_path / "clip.mp4", render(sample_scene("video", 0, index)))
    with av.open(str(tmp_path / "clip.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert is_world_video(frames)
    assert is_world_video([as_jpeg(frame) for frame in frames])


def gradients(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """From plain to four different corners, some grainy, in any colour and in the world's backgrounds."""
    rows, columns = np.mgrid[0:96, 0:96][..., None] / 96
    for index in range(20):
        corners = rng.uniform(0, 255, (4, 3))
        if index % 4 == 0:
            corners[:] = list(BACKGROUNDS.values())[index // 4 % 6]
        if index % 4 == 1:
            corners[2:] = corners[:2]
        top, bottom, right, left = corners
        picture = (top * (1 - rows) + bottom * rows) * columns + (right * (1 - rows) + left * rows) * (
            1 - columns
        )
        yield np.clip(picture + rng.normal(0, rng.uniform(0, 3), picture.shape), 0, 255).astype(np.uint8)


def noises(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """From one blurred patch to grains of a pixel."""
    for index in range(20):
        grains = int(rng.integers(2, 97))
        coarse = Image.fromarray(rng.integers(0, 256, (grains, grains, 3), np.uint8))
        yield np.asarray(
            coarse.resize((96, 96), [Image.Resampling.NEAREST, Image.Resampling.BICUBIC][index % 2])
        )


def photographs(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Fields with the spectrum of photographs (amplitude 1 / frequency), in tones that go together."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(128), np.fft.fftfreq(128)))
    frequency[0, 0] = 1
    for _ in range(20):
        fields = np.fft.ifft2(
            np.fft.fft2(rng.normal(size=(3, 128, 128))) / frequency ** rng.uniform(1, 1.6)
        ).real
        fields /= fields.std(axis=(1, 2), keepdims=True)
        tones = rng.uniform(60, 200, 3) + np.einsum("chw,cd->hwd", fields, rng.normal(0, 30, (3, 3)))
        yield np.clip(tones, 0, 255).astype(np.uint8)


def screenshots(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Windows with a title bar and lines of text, and bar charts in the world's colours on its backgrounds."""
    paints, grounds = list(COLOURS.values()), list(BACKGROUNDS.values())
    for index in range(20):
        edge = int(rng.choice([96, 200, 400]))
        image = Image.new("RGB", (edge, edge), grounds[index % 6])
        draw = ImageDraw.Draw(image)
        if index % 2:
            draw.rectangle((0, 0, edge, edge // 10), fill=paints[index % 8])
            for y in range(edge // 6, edge - 8, max(9, edge // 14)):
                draw.text(
                    (edge // 12, y), "the quick brown fox"[: int(rng.integers(4, 20))], fill=(20, 20, 20)
                )
        else:
            for bar in range(int(rng.integers(3, 9))):
                left, top = bar * edge // 9 + 3, int(rng.integers(0, edge - 4))
                draw.rectangle((left, top, left + edge // 14, edge - 2), fill=paints[int(rng.integers(8))])
        yield np.asarray(image)


@pytest.mark.parametrize(
    "others", [gradients, noises, pytest.param(photographs, marks=pytest.mark.slow), screenshots]
)
def test_other_pictures_are_not(others: Callable[[np.random.Generator], Iterator[np.ndarray]]) -> None:
    for index, picture in enumerate(others(np.random.default_rng(1))):
        assert not is_world_image(picture), index
        assert not is_world_video([picture]), index


def test_a_picture_of_the_world_with_something_else_in_it_is_not() -> None:
    """Stretched, with more things than a scene has, with a patch of something else."""
    picture = render(sample_scene("image", 0, 0))
    assert is_world_image(picture)
    assert not is_world_image(np.repeat(picture, 2, axis=1))
    tiled = np.tile(picture, (2, 2, 1))
    assert not is_world_image(tiled)
    patched = picture.copy()
    patched[20:60, 20:60] = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    assert not is_world_image(patched)


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"uint8 \[H, W, 3\]"):
        is_world_image(np.zeros((96, 96), np.uint8))
    with pytest.raises(ValueError, match="no frames"):
        is_world_video([])
