from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.models.qwen3_vl.processing.cases import CASES
from vcap_jax.configuration import ConfigError
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.errors import PromptTooLargeError
from vcap_jax.models.qwen3_vl.inputs import PixelScale
from vcap_jax.models.qwen3_vl.processing import collate, padded_sizes


@pytest.fixture(scope="module")
def prompts() -> list:
    return [CASES[name].encode() for name in ("mixed", "text", "image")]


def test_every_placeholder_finds_its_own_patches(prompts: list) -> None:
    batch = collate(prompts, Buckets(tokens=(64, 256), frames=(2, 10), patches=(128,)), 2, batch_size=4)
    assert batch.tokens.shape == (4, 256)
    assert batch.positions.shape == (4, 3, 256)
    assert batch.vision.patches.shape == (4, 10, 128, 1536)
    assert batch.lengths.tolist() == [*(len(p.tokens) for p in prompts), 0]
    # A "feature" that is the first number of the first patch of each merged token.
    features = batch.vision.patches[..., 0].reshape(4, -1, 4)[..., 0]
    for row, prompt in enumerate(prompts):
        index = batch.visual_index[row, : len(prompt.tokens)]
        np.testing.assert_array_equal(index >= 0, prompt.is_visual)
        expected = [frame[::4, 0] for frame in prompt.frames]
        np.testing.assert_array_equal(
            features[row][index[index >= 0]], np.concatenate(expected) if expected else []
        )
        np.testing.assert_array_equal(batch.vision.grids[row, : len(prompt.grids)], prompt.grids)
        assert (batch.vision.grids[row, len(prompt.grids) :] == 0).all()
    assert (batch.visual_index[3] == -1).all()


def test_sizes_are_the_smallest_that_hold_the_batch_or_multiples(prompts: list) -> None:
    batch = collate(prompts[2:], Buckets(tokens=(64, 256), frames=(1, 10), patches=(32, 128)), 2)
    assert batch.tokens.shape == (1, 64)
    assert batch.vision.patches.shape[:3] == (1, 1, 32)
    batch = collate(prompts[2:], Buckets(token_multiple=50, patch_multiple=20), 2)
    assert batch.tokens.shape == (1, 50)
    assert batch.vision.patches.shape[:3] == (1, 1, 40)


def test_stills_stay_one_frame_deep_unless_a_video_is_beside_them(prompts: list) -> None:
    mixed, text, image = prompts
    alone = collate([image, text], Buckets(), 2).vision
    assert alone.patches.dtype == np.uint8
    assert alone.patches.shape[-1] == 3 * 16 * 16
    beside = collate([image, mixed], Buckets(), 2).vision
    count = len(image.frames[0])
    both = beside.patches[0, 0, :count].reshape(count, 3, 2, 256)
    for half in (both[:, :, 0], both[:, :, 1]):
        np.testing.assert_array_equal(half, alone.patches[0, 0, :count].reshape(count, 3, 256))


def test_pixels_of_two_scales_do_not_share_a_batch(prompts: list) -> None:
    other = dataclasses.replace(prompts[2], scale=PixelScale(mean=(0.4, 0.5, 0.6)))
    assert collate([other], Buckets(), 2).vision.scale == other.scale
    with pytest.raises(ValueError, match=r"b is normalised by .*0\.4.* one batch has one scale"):
        collate([prompts[2], other], Buckets(), 2, names=["a", "b"])


def test_text_alone_has_no_frames(prompts: list) -> None:
    assert collate(prompts[1:2], Buckets(), 2).vision is None


@pytest.mark.parametrize(
    "buckets",
    [Buckets(tokens=(8, 16)), Buckets(max_tokens=16), Buckets(max_frames=2), Buckets(patches=(16,))],
)
def test_a_prompt_beyond_the_largest_bucket_is_named_with_size_and_limit(
    prompts: list, buckets: Buckets
) -> None:
    with pytest.raises(PromptTooLargeError, match=r"sample 7 has \d+ (tokens|frames|patches).* limit is \d+"):
        collate(prompts, buckets, 2, names=["sample 7"] * 3)
    with pytest.raises(PromptTooLargeError, match="sample 7"):
        padded_sizes(prompts[:1], buckets, ["sample 7"])


def test_buckets_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="ascending"):
        Buckets(tokens=(64, 32))


@pytest.mark.parametrize("buckets", [Buckets(patches=(30,)), Buckets(patch_multiple=15)])
def test_patches_that_make_no_whole_tokens_are_told_as_the_setting_that_they_are(buckets: Buckets) -> None:
    with pytest.raises(ConfigError, match=r"30 patches, no multiple of 4.*data\.buckets\.patch_multiple"):
        collate([CASES["image"].encode()], buckets, 2)
