"""The model as rollout knows it: parameters in another layout, prefill, one token of every caption."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, final

import jax
from typing_extensions import TypeVar

from vcap_jax.kernels.attention import Seen
from vcap_jax.models.family.model import BatchT_contra, Features, Params

Array = jax.Array


@final
class PromptState:
    """What decoding needs of the prompts: keys and values, a recurrent state, whatever the family reads."""


FeaturesT_contra = TypeVar("FeaturesT_contra", default=Features, contravariant=True)
StateT = TypeVar("StateT", default=PromptState)
ColumnsT = TypeVar("ColumnsT", default=object)
ColumnsT_co = TypeVar("ColumnsT_co", default=object, covariant=True)
CarriedT = TypeVar("CarriedT", default=object)
CarriedT_co = TypeVar("CarriedT_co", default=object, covariant=True)
AtT = TypeVar("AtT", default=object)
FixedT = TypeVar("FixedT", default=object)
LayersT_co = TypeVar("LayersT_co", default=object, covariant=True)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeParams(Generic[LayersT_co]):
    """Parameters for decoding. layers: those that decoding wants in another layout. rest: all others, in the layout of
    training, perhaps in another type."""

    layers: LayersT_co
    rest: Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CaptionState(Generic[ColumnsT_co, CarriedT_co]):
    """What decoding keeps of the captions.

    columns: arrays [parts B G n, ...] with an axis of one column per token (``Decoder.token_axes``), such as keys and
        values. A token's column is written once, and read where ``Seen`` says so. n rows of a caption lie together.
    carried: arrays [B, G, ...] that each token replaces, such as a recurrent state.
    parts: in how many parts columns are cut over the mesh's axis ``tensor``, all captions in each; 1 where every device
        of that axis has all of them.
    Either of columns and carried may be empty.
    """

    columns: ColumnsT_co
    carried: CarriedT_co
    parts: int = field(default=1, metadata={"static": True})


class Decoder(Protocol[BatchT_contra, FeaturesT_contra, StateT, ColumnsT, CarriedT, AtT, FixedT]):
    """Prefill and decode over shared prompts; made inside a traced function, on parameters of one device or cut over an
    axis ``tensor``."""

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    def empty(
        self, *, groups: int, prompt_tokens: int, captions: int, caption_tokens: int
    ) -> tuple[StateT, CaptionState[ColumnsT, CarriedT]]:
        """States of zeros: of ``groups`` prompts of that many tokens, and of so many captions of each."""
        ...

    def prefill(
        self, prompt: BatchT_contra, features: FeaturesT_contra | None, *, chunk: int
    ) -> tuple[Array, StateT]:
        """Hidden state [B, D] of each prompt's last real token, and what its captions need of it.

        chunk: prompts of more tokens are computed in chunks of that many, which bounds the memory of activations.
        A state of prompts that are padded to more tokens is this one with zeros at the end of its axes of tokens.
        """
        ...

    def begin(self, prompt: StateT, captions: int) -> CarriedT:
        """``CaptionState.carried`` of that many captions of each prompt before their first token."""
        ...

    def ahead(self, steps: Array, prompt: StateT) -> tuple[AtT, FixedT]:
        """What a loop over tokens is given, because computing it in every round would take longer.

        steps: [B, n] int32, how many caption tokens come before each of the next n.
        Returns a pytree of arrays [B, n, ...], of which ``decode`` gets the token's own [B, ...], and one that it gets
        whole.
        """
        ...

    def decode(
        self,
        tokens: Array,
        at: AtT,
        fixed: FixedT,
        column: Array,
        seen: Seen,
        prompt: StateT,
        captions: CaptionState[ColumnsT, CarriedT],
    ) -> tuple[Array, CaptionState[ColumnsT, CarriedT]]:
        """Feeds one token of every caption.

        tokens: [B, G] int32. at, fixed: of ``ahead``. column: int32 scalar, where the token's columns go. seen:
        the columns that are seen, ``column`` among them.
        Returns hidden states [B, G, D], which predict the next token, and the state with the token in it.
        """
        ...

    def logits(self, hidden: Array) -> Array:
        """[..., D] -> float32 [..., V]."""
        ...

    def token_axes(self, columns: ColumnsT) -> object:
        """A pytree like ``CaptionState.columns`` (which may be empty) of int: the axis of each that is tokens."""
        ...

    def tensor_axes(self, prompt: StateT) -> object:
        """A pytree like the prompts' state of int: the axis of each array that is cut over ``tensor``, -1 where every
        device of that axis has all of it."""
        ...
