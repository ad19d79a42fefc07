"""The tiny policy's prompts, laid out once, are those that the processor makes of every picture."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from vcap_jax.models.buckets import Buckets
from vcap_jax.models.message import ImagePart, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.world.dataset import render, sample_scene
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tiny_policy import Prompts, new_policy, new_processor, visual_tokens
from vcap_jax.world.tokenizer import train_tokenizer
from vcap_jax.world.vocabulary import VIDEO_FPS

MODALITIES: tuple[Modality, ...] = ("image", "video")


@pytest.fixture(scope="module")
def processor() -> Processor:
    return new_processor(train_tokenizer(["Describe the image."] * 50))


def encoded(processor: Processor, pixels: np.ndarray, request: str):
    seen = ImagePart(pixels)
    if pixels.ndim == 4:
        seen = VideoPart(pixels, [frame / VIDEO_FPS for frame in range(len(pixels))])
    return processor.encode([seen, TextPart(request)])


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_whole_prompt_is_the_processors(processor: Processor, modality: Modality) -> None:
    prompts = Prompts(processor, modality)
    pictures = [render(sample_scene(modality, 0, index, "test")) for index in range(3)]
    batch = prompts.whole(np.stack([prompts.patches(picture) for picture in pictures]))
    made = [encoded(processor, picture, prompts.request) for picture in pictures]
    length, patches = len(made[0].tokens), len(made[0].frames[0])
    exact = Buckets(tokens=(length,), frames=(len(made[0].frames),), patches=(patches,))
    expected = processor.collate(made, exact)
    jax.tree.map(np.testing.assert_array_equal, batch, expected)
    jax.tree.map(np.testing.assert_array_equal, prompts.requests(3), expected.without_vision())


@pytest.mark.parametrize(("modality", "tokens"), [("image", 16), ("video", 54)])
def test_an_opening_ends_after_the_visual_tokens(
    processor: Processor, modality: Modality, tokens: int
) -> None:
    prompts = Prompts(processor, modality)
    opening, request = prompts.openings(2), prompts.requests(2)
    assert opening.vision is None
    assert request.vision is None
    length = int(opening.lengths[0])
    assert opening.tokens.shape == (2, length)
    assert (opening.tokens[:, -1] == processor.vision_end_token_id).all()
    assert (opening.tokens == request.tokens[:, :length]).all()
    visual = processor.image_token_id if modality == "image" else processor.video_token_id
    assert (opening.tokens[0] == visual).sum() == tokens
    assert prompts.grid[0] * prompts.grid[1] * prompts.grid[2] == tokens


def test_the_policy_sees_every_token_of_every_picture(processor: Processor) -> None:
    policy = new_policy(processor, seed=0)
    prompts = Prompts(processor, "image")
    patches = np.stack(
        [prompts.patches(render(sample_scene("image", 0, index, "test"))) for index in range(2)]
    )
    whole = prompts.whole(patches)
    tokens = np.asarray(jax.jit(lambda vision: visual_tokens(policy.encode_vision(vision)))(whole.vision))
    assert tokens.shape == (2, 16, 96)
    assert np.abs(tokens[0] - tokens[1]).max() > 0
