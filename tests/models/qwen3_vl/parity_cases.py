"""What the parity suite runs: three small models, their weights and six kinds of prompt. NumPy only.

Weights are drawn per tensor from a seed that depends on its public name, so that both implementations build
the same model and no weights need storing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tests.models.public_arrays import public_shapes
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig, TextConfig, VisionConfig
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch, VisionInputs
from vcap_jax.models.qwen3_vl.weight_table import weight_map


class Sees(Protocol):
    """A configuration with a vision tower."""

    @property
    def vision(self) -> VisionConfig: ...


VOCABULARY = 64
IMAGE, VIDEO, VISION_START, VISION_END = 60, 61, 62, 63
TOKENS, FRAMES, PATCHES = 40, 5, 24
"""All prompts are padded to these: five frames are more than some have, and no prompt fills 40 tokens."""
NEW_TOKENS = 8

_SPECIAL = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}

MODELS: dict[str, Qwen3VLConfig] = {
    # Tied embeddings; two query heads to a key head; DeepStack from the first and the third of four blocks.
    "tied": Qwen3VLConfig(
        text=TextConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            rope_theta=5_000_000.0,
            mrope_section=(2, 1, 1),
        ),
        vision=VisionConfig(
            depth=4,
            hidden_size=16,
            intermediate_size=24,
            num_heads=2,
            patch_size=2,
            out_hidden_size=32,
            num_position_embeddings=25,
            deepstack_visual_indexes=(0, 2),
        ),
        tie_word_embeddings=True,
        **_SPECIAL,
    ),
    # Own head; head size apart from width / heads; all queries on one key head; biases; three DeepStack
    # layers.
    "untied": Qwen3VLConfig(
        text=TextConfig(
            vocab_size=VOCABULARY,
            hidden_size=40,
            intermediate_size=56,
            num_hidden_layers=4,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=24,
            mrope_section=(6, 3, 3),
            attention_bias=True,
        ),
        vision=VisionConfig(
            depth=5,
            hidden_size=24,
            intermediate_size=40,
            num_heads=3,
            hidden_act="gelu",
            patch_size=3,
            out_hidden_size=40,
            num_position_embeddings=16,
            deepstack_visual_indexes=(1, 2, 4),
        ),
        **_SPECIAL,
    ),
    # No grouping of queries; one DeepStack layer, taken after the last block; a large epsilon.
    "plain": Qwen3VLConfig(
        text=TextConfig(
            vocab_size=VOCABULARY,
            hidden_size=24,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            rope_theta=10_000.0,
            rms_norm_eps=1e-5,
            mrope_section=(4, 2, 2),
        ),
        vision=VisionConfig(
            depth=2,
            hidden_size=32,
            intermediate_size=32,
            num_heads=1,
            patch_size=4,
            out_hidden_size=24,
            num_position_embeddings=49,
            deepstack_visual_indexes=(1,),
        ),
        **_SPECIAL,
    ),
}

# ("text", tokens) | ("image", patch rows, patch columns) | ("video", frames, patch rows, patch columns)
PROMPTS: dict[str, tuple[tuple, ...]] = {
    "image": (("text", 5), ("image", 4, 4), ("text", 7)),
    "images": (("text", 2), ("image", 2, 12), ("text", 3), ("image", 8, 2), ("image", 6, 4), ("text", 4)),
    "video": (("text", 3), ("video", 5, 4, 6), ("text", 5)),
    "mixed": (("image", 2, 4), ("text", 2), ("video", 3, 2, 6), ("image", 6, 2), ("text", 3)),
    "text": (("text", 19),),
}


def weights(config: Qwen3VLConfig, seed: int) -> dict[str, np.ndarray]:
    """float32 arrays under public names."""
    return random_arrays(public_shapes(weight_map(config)), seed)


def random_arrays(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """float32 arrays of these shapes, under public names."""
    arrays = {}
    for name, shape in shapes.items():
        noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
        if name.endswith("bias"):
            noise *= 0.1
        elif len(shape) == 1:
            noise = 1 + 0.2 * noise
        elif "embed_tokens" in name:
            noise *= 0.5
        elif "pos_embed" not in name:
            noise *= np.prod(shape[1:]) ** -0.5
        arrays[name] = noise.astype(np.float32)
    return arrays


@dataclass
class RawPrompt:
    """A prompt before positions: media as the public model takes them.

    types: 0 text, 1 image, 2 video per token. images, videos: (uint8 patches [t * h * w, patch_dim], (t, h, w)).
    order: "image" or "video" for each medium as it appears.
    """

    tokens: np.ndarray
    types: np.ndarray
    images: list[tuple[np.ndarray, tuple[int, int, int]]] = field(default_factory=list)
    videos: list[tuple[np.ndarray, tuple[int, int, int]]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)


def patchify(frames: np.ndarray, config: VisionConfig) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Frames [T, C, H, W] to patches in merge-block order, the last frame repeated to fill a temporal
    patch.
    """
    depth, size, merge = config.temporal_patch_size, config.patch_size, config.spatial_merge_size
    frames = np.concatenate([frames, np.repeat(frames[-1:], -len(frames) % depth, axis=0)])
    count, channels, height, width = frames.shape
    t, h, w = count // depth, height // size, width // size
    cut = frames.reshape(t, depth, channels, h // merge, merge, size, w // merge, merge, size)
    return cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, -1), (t, h, w)


def normalised(levels: np.ndarray) -> np.ndarray:
    """uint8 patches as the public processor hands them to its model."""
    return ((levels / 255 - 0.5) / 0.5).astype(np.float32)


def raw_prompt(name: str, config: Sees) -> RawPrompt:
    """One of ``PROMPTS`` with random text and random pixels."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    vision = config.vision
    tokens: list[int] = []
    prompt = RawPrompt(np.empty(0), np.empty(0))
    for kind, *size in PROMPTS[name]:
        if kind == "text":
            tokens += rng.integers(0, IMAGE, size[0]).tolist()
            continue
        *count, rows, columns = size
        pixels = (
            count[0] if count else 1,
            vision.in_channels,
            rows * vision.patch_size,
            columns * vision.patch_size,
        )
        medium = patchify(rng.integers(0, 256, pixels, np.uint8), vision)
        each = rows * columns // vision.spatial_merge_size**2
        prompt.order.append(kind)
        if kind == "image":
            prompt.images.append(medium)
            tokens += [VISION_START, *[IMAGE] * each, VISION_END]
        else:
            prompt.videos.append(medium)
            for _ in range(medium[1][0]):
                stamp = rng.integers(0, IMAGE, 2).tolist()
                tokens += [*stamp, VISION_START, *[VIDEO] * each, VISION_END]
    prompt.tokens = np.array(tokens, np.int32)
    prompt.types = np.where(prompt.tokens == IMAGE, 1, np.where(prompt.tokens == VIDEO, 2, 0))
    return prompt


def encoded_prompt(raw: RawPrompt, positions: np.ndarray) -> EncodedPrompt:
    """Our form of a prompt, given its M-RoPE positions [3, P]."""
    media = {"image": iter(raw.images), "video": iter(raw.videos)}
    frames, grids = [], []
    for kind in raw.order:
        patches, (t, h, w) = next(media[kind])
        frames += np.split(patches, t)
        grids += [(h, w)] * t
    return EncodedPrompt(
        tokens=raw.tokens,
        positions=positions.astype(np.int32),
        frames=tuple(frames),
        grids=np.array(grids, np.int32).reshape(-1, 2),
        is_visual=raw.types > 0,
    )


def batch(prompts: list[EncodedPrompt], config: Sees, tokens: int = TOKENS) -> PromptBatch:
    """Pad to ``tokens``, FRAMES and PATCHES; padding holds noise, which must not matter."""
    rng = np.random.default_rng(0)
    count, unit = len(prompts), config.vision.spatial_merge_size**2
    padded = rng.integers(0, IMAGE, (count, tokens)).astype(np.int32)
    positions = rng.integers(0, 99, (count, 3, tokens)).astype(np.int32)
    visual_index = np.full((count, tokens), -1, np.int32)
    patches = rng.integers(0, 256, (count, FRAMES, PATCHES, config.vision.patch_dim), np.uint8)
    grids = np.zeros((count, FRAMES, 2), np.int32)
    for row, prompt in enumerate(prompts):
        length = len(prompt.tokens)
        padded[row, :length] = prompt.tokens
        positions[row, :, :length] = prompt.positions
        index: list[int] = []
        for f, frame in enumerate(prompt.frames):
            patches[row, f, : len(frame)] = frame
            grids[row, f] = prompt.grids[f]
            index += range(f * PATCHES // unit, f * PATCHES // unit + len(frame) // unit)
        visual_index[row, :length][prompt.is_visual] = index
    lengths = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    return PromptBatch(padded, positions, lengths, visual_index, VisionInputs(patches, grids))


SKETCH = 16


def sketch(name: str, gradient: np.ndarray) -> np.ndarray:
    """[SKETCH] random projections of a gradient with unit expected square per unit norm.

    The norm of a difference of two sketches estimates that of the gradients, without storing them.
    """
    rng = np.random.default_rng([7, zlib.crc32(name.encode())])
    signs = rng.choice([-1.0, 1.0], (SKETCH, gradient.size))
    return (signs @ gradient.reshape(-1).astype(np.float64) / SKETCH**0.5).astype(np.float32)
