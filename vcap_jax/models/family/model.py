"""The model as training knows it, and what config.json says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from typing_extensions import TypeVar

from vcap_jax.kernels.attention import Kernel
from vcap_jax.models.family.prompts import PromptBatch, Vision
from vcap_jax.models.weight_map import Mapped

if TYPE_CHECKING:
    from vcap_jax.models.family.protocol import ModelFamily

Array = jax.Array
Params: TypeAlias = nnx.State[str | int, object]
"""A tree of parameters, or of what belongs to each: gradients, types, shardings."""


@final
class Features:
    """What the vision side makes of a batch of prompts."""


BatchT_contra = TypeVar("BatchT_contra", bound=PromptBatch[object], default=PromptBatch, contravariant=True)
VisionT_contra = TypeVar("VisionT_contra", default=Vision, contravariant=True)
FeaturesT = TypeVar("FeaturesT", default=Features)


class ModelSpec(Protocol):
    """What a checkpoint's config.json says of the model, as the family reads it; hashable."""

    @property
    def head_sizes(self) -> Mapping[str, int]:
        """Numbers of an attention head, by the part of the model that attends: "text", and "vision" if it does."""
        ...

    @property
    def end_token_id(self) -> int | None:
        """The token that ends a caption, if config.json names it."""
        ...

    @property
    def special_token_ids(self) -> tuple[int, ...]:
        """Tokens that a caption may not contain, as far as config.json names them."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How a model is computed.

    dtype: of products. param_dtype: what parameters are kept in. remat: see ``vcap_jax.models.remat``. kernel:
    computes the attention of whole sequences.
    """

    dtype: DTypeLike
    param_dtype: DTypeLike
    remat: str
    kernel: Kernel


class CaptionModel(Mapped, Protocol[BatchT_contra, VisionT_contra, FeaturesT]):
    """A captioner as an ``nnx.Module``, split once into a static definition and parameter trees.

    Its parameters are ``nnx.Param``; those of the vision side, which reinforcement learning freezes, lie under
    ``visual``. Matrices that may have adapters are ``vcap_jax.models.layers.Linear``.
    """

    kernel: Kernel
    dtype: np.dtype

    @classmethod
    def family(cls) -> ModelFamily:
        """Whose model this is, ``opaque``."""
        ...

    def encode_vision(self, vision: VisionT_contra) -> FeaturesT:
        """What the vision side makes of ``PromptBatch.vision``; computed once per group."""
        ...

    def caption_hidden(self, prompt: BatchT_contra, features: FeaturesT | None, captions: Array) -> Array:
        """The training forward: hidden states that predict the captions, each prompt computed once.

        captions: [B, G, T] int32, right-padded with any token.
        Returns [B, G, T, D]; entry t predicts caption token t (entry 0 is the prompt's last real token).
        """
        ...

    def head(self) -> Array:
        """The output matrix [D, V], in the parameters' type."""
        ...


GraphDef: TypeAlias = nnx.GraphDef[CaptionModel]
"""The static definition of a captioner: the first result of ``nnx.split(model)``."""
