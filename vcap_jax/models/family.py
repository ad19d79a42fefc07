"""The boundary around a model family: all that the rest of the project knows of any model.

A family is a folder behind ``ModelFamily``. It reads a checkpoint, makes prompts of messages, looks at
pictures, and gives the captions' hidden states for training and a decoder for rollout. The registry
(``vcap_jax.models.registry``) finds the family of a checkpoint; everything else asks for the members below
and names no family.

Letters in shapes: B groups, P prompt tokens (right-padded), G captions of a group, T caption tokens, D width,
V words of the vocabulary. What is called opaque is a pytree of arrays with groups on the first axis, whose
content is the family's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

import jax
import numpy as np

from vcap_jax.kernels.attention import Kernel
from vcap_jax.models.buckets import Buckets, PaddedSizes
from vcap_jax.models.message import Part
from vcap_jax.models.weight_map import Mapped
from vcap_jax.models.weights import Sharding
from vcap_jax.parallel.sharding import Rule

Array = jax.Array
Params = Any  # nnx.State, a pytree of arrays
Features = Any
"""What the vision side makes of a batch of prompts, opaque."""
PromptState = Any
"""What decoding needs of the prompts: keys and values, a recurrent state, whatever the family reads; opaque."""


# -- input -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class VisualBudget:
    """What replaces a checkpoint's own limits on pictures; None keeps the checkpoint's.

    max_pixels: height x width of an image. max_frames, max_frame_tokens: of a video. fps: frames sampled per second.
    """

    max_pixels: int | None = None
    max_frames: int | None = None
    max_frame_tokens: int | None = None
    fps: float | None = None


class EncodedPrompt(Protocol):
    """One prompt on the host, unpadded."""

    @property
    def tokens(self) -> np.ndarray:
        """[P] int32, places of visual features included."""
        ...


class PromptBatch(Protocol):
    """B prompts, padded alike: a pytree with groups on the first axis, NumPy on the host or on the devices."""

    @property
    def tokens(self) -> Any:
        """[B, P] int32."""
        ...

    @property
    def lengths(self) -> Any:
        """[B] int32, real tokens of each prompt; 0 marks a padding group."""
        ...

    @property
    def vision(self) -> Any:
        """The pictures as ``CaptionModel.encode_vision`` takes them, opaque; None for text only."""
        ...

    def without_vision(self) -> Self:
        """The same prompts once their pictures have been looked at."""
        ...


class FrameSampling(Protocol):
    """Which frames of a video are looked at."""

    def sample_indices(self, total_frames: int, source_fps: float) -> np.ndarray:
        """Indices of the frames, int64 [n], increasing. Raises InputError for a video of no frames or no rate."""
        ...


class Processor(Protocol):
    """The input side of one checkpoint: tokenizer, chat template and pixels."""

    @property
    def tokenizer(self) -> Any:
        """A tokenizer of the ``transformers`` package, or what has its ``decode`` and ``__call__``."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """A caption ends with any of these; the first is the one that is learned. Not empty."""
        ...

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Tokens that a caption may never contain."""
        ...

    @property
    def pad_token_id(self) -> int: ...

    @property
    def video(self) -> FrameSampling: ...

    def encode(self, content: Sequence[Part]) -> EncodedPrompt:
        """One user message and the opening of the answer. Raises InputError for what cannot become a prompt."""
        ...

    def video_frame_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """Height and width to which that many frames of that size are brought. Raises InputError."""
        ...

    def resize(self, picture: np.ndarray, height: int, width: int) -> np.ndarray:
        """A uint8 [H, W, 3] frame as uint8 [height, width, 3]."""
        ...

    def padded_sizes(
        self, prompts: Sequence[Any], buckets: Buckets, names: Sequence[str] | None = None
    ) -> PaddedSizes:
        """The smallest buckets that hold all prompts. names: what to call each in an error.

        Raises PromptTooLargeError for one beyond the largest bucket, by name.
        """
        ...

    def collate(
        self,
        prompts: Sequence[Any],
        buckets: Buckets,
        *,
        batch_size: int | None = None,
        names: Sequence[str] | None = None,
        sizes: PaddedSizes | None = None,
    ) -> PromptBatch:
        """Pads encoded prompts to the smallest buckets that hold them all, or to ``sizes``, which must.

        batch_size: B; missing rows become padding groups (default: none). names: of the prompts, for errors.
        Raises PromptTooLargeError, and ValueError for prompts that cannot share a batch.
        """
        ...

    def save_pretrained(self, path: str | Path) -> None:
        """Writes tokenizer, chat template and preprocessor files into a folder."""
        ...


# -- model -----------------------------------------------------------------------------------------------------


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

    dtype: Any
    param_dtype: Any
    remat: str
    kernel: Kernel


class CaptionModel(Mapped, Protocol):
    """A captioner as an ``nnx.Module``, split once into a static definition and parameter trees.

    Its parameters are ``nnx.Param``; those of the vision side, which reinforcement learning freezes, lie under
    ``visual``. Matrices that may have adapters are ``vcap_jax.models.layers.Linear``.
    """

    kernel: Kernel
    dtype: Any

    @classmethod
    def family(cls) -> ModelFamily:
        """Whose model this is."""
        ...

    def encode_vision(self, vision: Any) -> Features:
        """What the vision side makes of ``PromptBatch.vision``; computed once per group."""
        ...

    def caption_hidden(self, prompt: Any, features: Features | None, captions: Array) -> Array:
        """The training forward: hidden states that predict the captions, each prompt computed once.

        captions: [B, G, T] int32, right-padded with any token.
        Returns [B, G, T, D]; entry t predicts caption token t (entry 0 is the prompt's last real token).
        """
        ...

    def head(self) -> Array:
        """The output matrix [D, V], in the parameters' type."""
        ...


# -- decoding --------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeParams:
    """Parameters as captions are decoded with them. layers: what is laid out anew for it. rest: what lies as it did,
    if perhaps in another type."""

    layers: Any
    rest: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CaptionState:
    """What decoding keeps of the captions.

    columns: arrays [B G n, ...] with an axis of one column per token (``Decoder.token_axes``), such as keys and values.
        A token's column is written once, and read where ``visible`` says so. n rows of a caption lie together.
    carried: arrays [B, G, ...] that each token replaces, such as a recurrent state.
    Either may be empty.
    """

    columns: Any
    carried: Any


class Decoder(Protocol):
    """Prefill and decode over shared prompts; made inside a traced function, on parameters of one device or cut over an
    axis ``tensor``."""

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    def empty(
        self, *, groups: int, prompt_tokens: int, captions: int, caption_tokens: int
    ) -> tuple[PromptState, CaptionState]:
        """States of zeros: of ``groups`` prompts of that many tokens, and of so many captions of each."""
        ...

    def prefill(self, prompt: Any, features: Features | None, *, chunk: int) -> tuple[Array, PromptState]:
        """Hidden state [B, D] of each prompt's last real token, and what its captions need of it.

        chunk: prompts of more tokens are computed in chunks of that many, which bounds the memory of activations.
        """
        ...

    def begin(self, prompt: PromptState, captions: int) -> Any:
        """``CaptionState.carried`` of that many captions of each prompt before their first token."""
        ...

    def ahead(self, steps: Array, prompt: PromptState) -> tuple[Any, Any]:
        """What a loop over tokens had better be given than compute in every round.

        steps: [B, n] int32, how many caption tokens come before each of the next n.
        Returns a pytree of arrays [B, n, ...], of which ``decode`` gets the token's own [B, ...], and one that it gets
        whole.
        """
        ...

    def decode(
        self,
        tokens: Array,
        at: Any,
        fixed: Any,
        column: Array,
        visible: Array,
        prompt: PromptState,
        captions: CaptionState,
    ) -> tuple[Array, CaptionState]:
        """Feeds one token of every caption.

        tokens: [B, G] int32. at, fixed: of ``ahead``. column: int32 scalar, where the token's columns go. visible:
        [B, T] bool, the columns that are seen, ``column`` among them.
        Returns hidden states [B, G, D], which predict the next token, and the state with the token in it.
        """
        ...

    def logits(self, hidden: Array) -> Array:
        """[..., D] -> float32 [..., V]."""
        ...

    def token_axes(self, columns: Any) -> Any:
        """A pytree like ``CaptionState.columns`` (which may be empty) of int: the axis of each that is tokens."""
        ...


# -- plans -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LargestPrompt:
    """The largest prompt that a visual budget lets in.

    tokens: P. frames, patches: of the prompt, and of a frame. visual: features of the prompt.
    patch_numbers: of a patch.
    """

    tokens: int
    frames: int
    patches: int
    visual: int
    patch_numbers: int


# -- family ----------------------------------------------------------------------------------------------------


class ModelFamily(Protocol):
    """A family: a class without arguments, of which one object is made."""

    name: str
    """As people write it."""
    model_type: str
    """Of config.json."""
    published_sizes: tuple[str, ...]
    """Sizes that ``published`` knows."""
    partition_rules: Sequence[Rule]
    """How parameters are split over devices."""

    def read_spec(self, folder: Path) -> Any:
        """The ``ModelSpec`` in ``folder``/config.json. Raises CheckpointError, FileNotFoundError."""
        ...

    def published(self, size: str) -> Any:
        """The ``ModelSpec`` of a published size, without any file."""
        ...

    def processor(self, folder: Path, budget: VisualBudget) -> Processor:
        """The input side of a checkpoint folder. Raises CheckpointError, FileNotFoundError."""
        ...

    def abstract_model(self, spec: Any, settings: ModelSettings) -> CaptionModel:
        """The model with shapes in place of arrays."""
        ...

    def load(self, folder: Path, settings: ModelSettings, sharding: Sharding | None) -> CaptionModel:
        """A checkpoint folder's model. sharding: (dotted path, shape) of a parameter -> where it goes.

        Raises CheckpointError, FileNotFoundError.
        """
        ...

    def save(self, model: Any, folder: Path, *, dtype: Any) -> float | None:
        """Writes config.json and safetensors, adapters merged; returns the share of them that rounding has left
        (``lora.Additions.kept``), None without adapters. Raises FileExistsError for weight files of another export."""
        ...

    def apart(self, graphdef: Any, trainable: Params, frozen: Params) -> tuple[Params, Params]:
        """The parameters of a model: those that ``lay_out`` lays out anew, and the rest. Nothing is computed."""
        ...

    def lay_out(self, graphdef: Any, layers: Params, rest: Params) -> DecodeParams:
        """Both results of ``apart`` for decoding, in the types of ``decoded_types``; pure, to be traced.

        ``DecodeParams.rest`` has the leaves of ``rest``, in their order.
        """
        ...

    def decoded_types(self, params: Params, dtype: Any) -> Any:
        """The types that decoding uses parameters in, a tree like ``params`` (arrays or abstract).

        dtype: of products.
        """
        ...

    def decoder(self, graphdef: Any, params: DecodeParams) -> Decoder: ...

    def largest_prompt(
        self, spec: Any, modality: Literal["image", "video"], budget: VisualBudget
    ) -> LargestPrompt:
        """The largest prompt that ``budget`` lets in: it names max_pixels for images, max_frames and max_frame_tokens
        for videos."""
        ...

    def abstract_prompt(
        self, spec: Any, largest: LargestPrompt, groups: int, buckets: Buckets
    ) -> PromptBatch:
        """So many prompts of that size, padded by ``buckets``, as ``jax.ShapeDtypeStruct``.

        Raises PromptTooLargeError if the buckets have no room for it.
        """
        ...


@runtime_checkable
class VllmProcessor(Processor, Protocol):
    """The input side of a family that vLLM serves."""

    def picture_parts(self, prompt: Any) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """The pictures of an encoded prompt as content parts of a chat request to vLLM, and the request's
        ``media_io_kwargs`` (None without). Raises InputError for a prompt that cannot be sent so."""
        ...


@runtime_checkable
class VllmFamily(ModelFamily, Protocol):
    """A family whose captions ``rollout.engine: vllm`` can draw; its processors are ``VllmProcessor``."""

    def save_for_vllm(self, model: Any, folder: Path, *, dtype: Any) -> float | None:
        """As ``save``, as a vLLM server reads a step's weights."""
        ...


def family_of(graphdef: Any) -> ModelFamily:
    """The family of a model definition: the first result of ``nnx.split(model)``."""
    family: ModelFamily = graphdef.nodes[0].type.family()
    return family
