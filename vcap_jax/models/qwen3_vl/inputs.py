"""What a visual prompt looks like on its way into the model.

Frames are the batch axis of the vision tower: Qwen3-VL attends within one frame (an image, or one temporal
patch of a video), never across frames, so a picture is one frame and a video of T merged frame pairs is T
frames. Frames of one prompt stay together on axis 1, so everything is sharded by prompt and a group's visual
features never leave its device.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import numpy as np

from vcap_jax.parallel.arrays import AnyArray


@dataclass(frozen=True)
class PixelScale:
    """What the vision tower makes of a grey level: ``(level * rescale_factor - mean) / std``, by channel.

    The defaults are those of the published checkpoints.
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rescale_factor: float = 1 / 255


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt on the host, unpadded (numpy).

    tokens: [P] int32, visual placeholders expanded.
    positions: [3, P] int32, M-RoPE (temporal, height, width).
    frames: one uint8 [l_f, C * depth * patch * patch] array per frame, patches in merge-block order, grey levels;
        depth is the temporal patch size, or 1 for a still image, see ``PatchEmbedding``.
    grids: [F, 2] int32, patch rows and columns of each frame.
    is_visual: [P] bool, True where a merged visual feature replaces the token embedding. Placeholders appear in
        the order of the frames, ``grids[f].prod() // merge**2`` for each.
    scale: how the grey levels are normalised.
    """

    tokens: np.ndarray
    positions: np.ndarray
    frames: tuple[np.ndarray, ...]
    grids: np.ndarray
    is_visual: np.ndarray
    scale: PixelScale = PixelScale()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class VisionInputs:
    """Padded frames of a batch of prompts, as grey levels: an eighth (image) or a quarter (video) of their bytes as
    float32, which the vision tower normalises where it uses them.

    patches: uint8 [B, F, L, C * depth * patch * patch], merge-block order; L is a multiple of merge**2. depth is the
        temporal patch size, or 1 if all frames are still images.
    grids: [B, F, 2] int32 patch rows and columns; (0, 0) marks a padding frame.
    scale: how the grey levels are normalised; part of the compiled program.
    """

    patches: AnyArray
    grids: AnyArray
    scale: PixelScale = field(default=PixelScale(), metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PromptBatch:
    """A batch of B prompts, right-padded to P tokens: the prompt side of B groups.

    tokens: [B, P] int32.
    positions: [B, 3, P] int32 M-RoPE positions (padding: any value).
    lengths: [B] int32, real tokens of each prompt; 0 marks a padding group.
    visual_index: [B, P] int32, for a visual placeholder the index of its feature among the V = F * L / merge**2
        merged features of its own prompt, -1 elsewhere.
    vision: the frames, or None for text only.

    The token after the prompt has the position ``positions[b, :, :lengths[b]].max() + 1`` on all three axes, and
    so on.
    """

    tokens: AnyArray
    positions: AnyArray
    lengths: AnyArray
    visual_index: AnyArray
    vision: VisionInputs | None

    def without_vision(self) -> PromptBatch:
        """The same prompts once their frames have been looked at."""
        return replace(self, vision=None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class VisualFeatures:
    """What the (frozen) vision tower makes of a PromptBatch: computed once per group.

    embeddings: [B, V, D] merged visual tokens in the text model's width.
    deepstack: [B, K, V, D]; [:, k] is added to the hidden states after decoder layer k, for the first K layers.
    """

    embeddings: jax.Array
    deepstack: jax.Array
