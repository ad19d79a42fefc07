"""A stand-in for a policy: it knows what comes next, but for some tokens that it never expects."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.recipes.teaching.corpus import Packer
from vcap_jax.recipes.teaching.pupil import Pupil, Scenery
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tiny_policy import Prompts, new_processor
from vcap_jax.world.tokenizer import train_tokenizer

UNEXPECTED = 0
"""What is expected where a token comes that never is."""


@cache
def processor() -> Processor:
    """The tiny policy's."""
    return new_processor(train_tokenizer())


class Knowing(nnx.Module):
    """Expects the very next token. never: those instead of which it expects ``UNEXPECTED``; words: V."""

    def __init__(self, never: tuple[int, ...], words: int) -> None:
        self.visual = nnx.Param(jnp.zeros(()))
        self.never, self.words = never, words

    def encode_vision(self, vision: object) -> jax.Array:
        return jnp.zeros(vision.patches.shape[:1])

    def caption_hidden(self, prompt: object, features: jax.Array, captions: jax.Array) -> jax.Array:
        del prompt, features
        expected = jnp.where(jnp.isin(captions, np.array([*self.never, -1])), UNEXPECTED, captions)
        return jax.nn.one_hot(expected, self.words)

    def head(self) -> jax.Array:
        return jnp.eye(self.words)


def pupil(modality: Modality, *never: str) -> Pupil:
    """A policy that expects everything but these words."""
    packer = Packer(processor())
    tokens = tuple(token for word in never for token in packer.tokens(word))
    assert len(tokens) == len(never), "each a token"
    model = Knowing(tokens, len(processor().tokenizer))
    return Pupil.of(model, processor(), {modality: Prompts(processor(), modality)})


def scenery(modality: Modality, count: int) -> Scenery:
    """Scenes whose pictures are blank."""
    prompts = Prompts(processor(), modality)
    frames, rows, columns = prompts.grid
    patches = np.zeros((count, frames, 4 * rows * columns, 768 if modality == "image" else 1536), np.uint8)
    return Scenery([sample_scene(modality, 0, index, "test") for index in range(count)], patches)
