"""The tiny Qwen3-VL before it has learned anything, and its prompts, which differ in pixels alone.

All pictures of a modality have one size. So their prompts are laid out once, and filled with the patches of any number
of pictures. The opening of a prompt ends right after the visual tokens, inside the user's turn: whatever a user may ask
about the picture can follow it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vcap_jax.kernels import attention
from vcap_jax.models import family
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.message import ImagePart, Part, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch, VisualFeatures
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.processing import Processor, collate
from vcap_jax.models.qwen3_vl.processing.pixels import image_patches, video_patches
from vcap_jax.system.errors import VCapError
from vcap_jax.world.backbone import IMAGE_SETTINGS, VIDEO_SETTINGS, backbone_config
from vcap_jax.world.image_grammar import IMAGE_PROMPT
from vcap_jax.world.scenes import IMAGE_EDGE, VIDEO_EDGE, Modality
from vcap_jax.world.video_grammar import VIDEO_PROMPT
from vcap_jax.world.vocabulary import VIDEO_FPS, VIDEO_FRAMES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def new_processor(tokenizer: PreTrainedTokenizerBase) -> Processor:
    """The input side of the tiny policy around a tokenizer made by ``vcap_jax.world.tokenizer``."""
    return Processor(tokenizer, image=IMAGE_SETTINGS, video=VIDEO_SETTINGS)


def new_policy(processor: Processor, seed: int) -> family.CaptionModel:
    """The tiny policy with random weights, in float32, its attention as it is quickest at this size."""
    config = Qwen3VLConfig.from_dict(backbone_config(processor.tokenizer))
    kernel = attention.kernel("dense")
    return cast(family.CaptionModel, Qwen3VL(config, rngs=nnx.Rngs(seed), dtype=jnp.float32, kernel=kernel))


class PolicyError(VCapError, ValueError):
    """A policy that is not of the kind that the embedded world teaches."""


class Prompts:
    """The prompts of one modality, for any Qwen3-VL whose processor leaves the world's pictures as they are.

    request: the text that a caption answers (``IMAGE_PROMPT`` or ``VIDEO_PROMPT``).
    grid: (frames, rows, columns) of the visual tokens of a picture.
    """

    def __init__(self, processor: Processor | family.Processor, modality: Modality) -> None:
        """Raises PolicyError for the processor of another family."""
        if not isinstance(processor, Processor):
            raise PolicyError(
                f"{type(processor).__name__} is no processor of Qwen3-VL: the embedded world's policy is one"
            )
        self.modality: Modality = modality
        self.request = IMAGE_PROMPT if modality == "image" else VIDEO_PROMPT
        self._processor = processor
        still = (IMAGE_EDGE, IMAGE_EDGE, 3)
        shape = still if modality == "image" else (VIDEO_FRAMES, VIDEO_EDGE, VIDEO_EDGE, 3)
        self._whole = self._encode(np.zeros(shape, np.uint8))
        merged = self._whole.grids // processor.merge_size
        self.grid: tuple[int, int, int] = (len(merged), int(merged[0, 0]), int(merged[0, 1]))
        end = np.flatnonzero(self._whole.tokens == processor.vision_end_token_id)
        self._opened = int(end[-1]) + 1

    def patches(self, pixels: np.ndarray) -> np.ndarray:
        """The patches of a picture or clip, uint8 [frames, patches, numbers], as the vision tower takes them."""
        if self.modality == "image":
            return image_patches(pixels, self._processor.image)[0][None]
        return np.stack(video_patches(pixels, self._processor.video)[0])

    def whole(self, patches: np.ndarray) -> family.PromptBatch:
        """Prompts for captions of B pictures. patches: [B, frames, patches, numbers]."""
        batch = self._batch(len(patches), len(self._whole.tokens))
        assert batch.vision is not None
        vision = replace(batch.vision, patches=np.asarray(patches))
        return cast(family.PromptBatch, replace(batch, vision=vision))

    def requests(self, count: int) -> family.PromptBatch:
        """``whole`` prompts of pictures that have been looked at."""
        return cast(family.PromptBatch, self._batch(count, len(self._whole.tokens)).without_vision())

    def openings(self, count: int) -> family.PromptBatch:
        """The openings of so many prompts, without what is asked, of pictures that have been looked at."""
        return cast(family.PromptBatch, self._batch(count, self._opened).without_vision())

    def _batch(self, count: int, length: int) -> PromptBatch:
        """So many prompts, cut to that many tokens, all of the blank picture."""
        one = self._whole
        cut = replace(
            one,
            tokens=one.tokens[:length],
            positions=one.positions[:, :length],
            is_visual=one.is_visual[:length],
        )
        exact = Buckets(tokens=(length,), frames=(len(one.frames),), patches=(len(one.frames[0]),))
        return collate([cut] * count, exact, self._processor.merge_size)

    def _encode(self, pixels: np.ndarray) -> EncodedPrompt:
        seen: Part = ImagePart(pixels)
        if self.modality == "video":
            seen = VideoPart(pixels, [frame / VIDEO_FPS for frame in range(len(pixels))])
        return self._processor.encode([seen, TextPart(self.request)])


def visual_tokens(features: family.Features) -> jax.Array:
    """The merged visual tokens [B, V, D] among the features of B prompts."""
    return cast(VisualFeatures, features).embeddings
