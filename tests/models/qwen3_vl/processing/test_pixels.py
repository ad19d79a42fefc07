from __future__ import annotations

import math

import numpy as np
import pytest

from tests.models.qwen3_vl.processing.cases import pixels
from vcap_jax.models.errors import InputError
from vcap_jax.models.qwen3_vl.processing.frames import pair_timestamps, timestamp_text
from vcap_jax.models.qwen3_vl.processing.pixels import (
    image_patches,
    image_size,
    patchify,
    video_patches,
    video_size,
)
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings, PatchSettings, VideoSettings


@pytest.mark.parametrize("size", [(480, 640), (1, 150), (3000, 40), (4000, 6000), (17, 17), (96, 96)])
def test_image_sizes_fill_whole_tokens_within_the_bounds_and_keep_the_aspect(size: tuple[int, int]) -> None:
    settings = ImageSettings(min_pixels=65_536, max_pixels=6_422_528)
    height, width = image_size(*size, settings)
    assert height % 32 == 0
    assert width % 32 == 0
    assert settings.min_pixels <= height * width <= settings.max_pixels
    # Rounding moves either side by less than one token from where the bounds put it.
    area = size[0] * size[1]
    scale = math.sqrt(min(max(area, settings.min_pixels), settings.max_pixels) / area)
    assert abs(height - size[0] * scale) < 32
    assert abs(width - size[1] * scale) < 32


def test_the_papers_video_budget_is_256_tokens_a_frame_and_25600_a_prompt() -> None:
    settings = VideoSettings().with_budget(max_frames=200, max_frame_tokens=256)
    for frames in (4, 57, 200):
        for height, width in ((1080, 1920), (720, 1280), (1920, 1080), (360, 480)):
            rows, columns = video_size(frames, height, width, settings)
            assert rows * columns // 32**2 <= 256
    assert len(settings.sample_indices(30 * 3600, 30.0)) == 200
    rows, columns = video_size(200, 1024, 1024, settings)
    assert 100 * rows * columns // 32**2 == 25_600


def test_a_budget_below_the_lower_bound_of_pixels_still_holds() -> None:
    settings = VideoSettings(min_pixels=128 * 32 * 32).with_budget(max_frames=8, max_frame_tokens=4)
    rows, columns = video_size(8, 500, 500, settings)
    assert rows * columns <= 4 * 32**2


@pytest.mark.parametrize("size", [(1, 201), (0, 5)])
def test_impossible_sizes_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"one side is 201.0 times the other is too long|empty"):
        image_size(*size, ImageSettings())


def test_patches_stand_in_merge_blocks_and_run_channel_time_row_column() -> None:
    settings = PatchSettings(patch_size=2, temporal_patch_size=2, merge_size=2)
    frames = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 3), dtype=np.uint8)
    patches = patchify(frames, settings)
    expected = []
    for block_row in range(2):
        for block_column in range(3):
            for row in range(2):
                for column in range(2):
                    y, x = (block_row * 2 + row) * 2, (block_column * 2 + column) * 2
                    patch = frames[:, y : y + 2, x : x + 2]
                    expected.append(patch.transpose(3, 0, 1, 2).ravel())
    assert patches.dtype == np.uint8
    np.testing.assert_array_equal(patches, np.stack(expected))


def test_an_image_is_one_frame_deep() -> None:
    settings = ImageSettings(min_pixels=1024, max_pixels=65_536)
    patches, grid = image_patches(pixels(64, 96), settings)
    assert grid == (4, 6)
    np.testing.assert_array_equal(patches, patchify(pixels(64, 96)[None], settings))


def test_a_cap_on_frames_leaves_a_twentieth_above_the_least_of_pixels() -> None:
    """As in the public class, whatever the cap."""
    settings = VideoSettings(min_pixels=65_536, cap_pixels_per_frame=True, max_video_tokens=1)
    assert video_size(10, 600, 750, settings) == (224, 288)


def test_odd_frames_are_filled_up_with_the_last_and_one_frame_makes_a_video() -> None:
    settings = VideoSettings()
    frames = np.stack([pixels(64, 64, seed=i) for i in range(3)])
    patches, grid = video_patches(frames, settings)
    assert grid == (4, 4)
    assert len(patches) == 2
    last = patches[1].reshape(16, 3, 2, 256)
    np.testing.assert_array_equal(last[:, :, 0], last[:, :, 1])
    assert len(video_patches(frames[:1], settings)[0]) == 1
    with pytest.raises(InputError, match="no frames"):
        video_patches(frames[:0], settings)


def test_pixels_of_another_type_are_refused() -> None:
    with pytest.raises(InputError, match=r"uint8 \[H, W, 3\]"):
        image_patches(np.zeros((32, 32, 3), np.float32), ImageSettings())


@pytest.mark.parametrize(("total", "fps"), [(1, 30.0), (3, 30.0), (300, 29.97), (100_000, 24.0)])
def test_sampled_frames_span_the_video_evenly(total: int, fps: float) -> None:
    settings = VideoSettings(max_frames=200)
    indices = settings.sample_indices(total, fps)
    assert 1 <= len(indices) <= min(200, total)
    assert indices[0] == 0
    if total > 1:
        assert indices[-1] == total - 1
        assert np.ptp(np.diff(indices)) <= 1
    assert settings.sample_indices(12, 5.0).tolist() == [0, 4, 7, 11]  # the nearest to 0, 3.7, 7.3 and 11


def test_timestamps_are_pair_means_and_the_last_frame_stands_alone() -> None:
    assert pair_timestamps([0.0, 0.5, 1.0], 2) == [0.25, 1.0]
    assert timestamp_text(12.345) == "<12.3 seconds>"
