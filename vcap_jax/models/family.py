"""The boundary around a model family: all that the rest of the project knows of any model.

A family is a folder behind ``ModelFamily``. It reads a checkpoint, makes prompts of messages, looks at
pictures, and gives the captions' hidden states for training and a decoder for rollout. The registry
(``vcap_jax.models.registry``) finds the family of a checkpoint; everything else asks for the members below
and names no family.

Letters in shapes: B groups, P prompt tokens (right-padded), G captions of a group, T caption tokens, D width,
V words of the vocabulary.

What only the family reads is a type variable here, such as ``FeaturesT``. A family's classes have its own types there;
for the rest of the project each stands at its default, a type that can be handed on and given to pytree functions, and
nothing else. ``opaque`` leads from the one to the other. Such values are pytrees of arrays with groups on the first
axis, unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, cast, final, runtime_checkable

import jax
import numpy as np
from flax import nnx
from flax.nnx.graphlib import NodeDef
from jax.typing import DTypeLike
from typing_extensions import TypeVar

from vcap_jax.kernels.attention import Kernel
from vcap_jax.models.buckets import Buckets, PaddedSizes
from vcap_jax.models.message import Part
from vcap_jax.models.weight_map import Mapped
from vcap_jax.models.weights import Sharding
from vcap_jax.parallel.arrays import AnyArray
from vcap_jax.parallel.sharding import Rule
from vcap_jax.system.json_values import JsonObject

Array = jax.Array
Params: TypeAlias = nnx.State[str | int, object]
"""A tree of parameters, or of what belongs to each: gradients, types, shardings."""


# -- what the rooms hand on ------------------------------------------------------------------------------------


@final
class Vision:
    """The pictures of a batch of prompts, as ``CaptionModel.encode_vision`` takes them."""


@final
class Features:
    """What the vision side makes of a batch of prompts."""


@final
class PromptState:
    """What decoding needs of the prompts: keys and values, a recurrent state, whatever the family reads."""


VisionT_co = TypeVar("VisionT_co", default=Vision, covariant=True)
VisionT_contra = TypeVar("VisionT_contra", default=Vision, contravariant=True)
FeaturesT = TypeVar("FeaturesT", default=Features)
FeaturesT_contra = TypeVar("FeaturesT_contra", default=Features, contravariant=True)
StateT = TypeVar("StateT", default=PromptState)
ColumnsT_co = TypeVar("ColumnsT_co", default=object, covariant=True)
ColumnsT = TypeVar("ColumnsT", default=object)
CarriedT_co = TypeVar("CarriedT_co", default=object, covariant=True)
CarriedT = TypeVar("CarriedT", default=object)
AtT = TypeVar("AtT", default=object)
FixedT = TypeVar("FixedT", default=object)
LayersT_co = TypeVar("LayersT_co", default=object, covariant=True)
LayersT = TypeVar("LayersT", default=object)


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


class PromptBatch(Protocol[VisionT_co]):
    """B prompts, padded alike: a pytree with groups on the first axis, NumPy on the host or on the devices."""

    @property
    def tokens(self) -> AnyArray:
        """[B, P] int32."""
        ...

    @property
    def lengths(self) -> AnyArray:
        """[B] int32, real tokens of each prompt; 0 marks a padding group."""
        ...

    @property
    def vision(self) -> VisionT_co | None:
        """The pictures; None for text only."""
        ...

    def without_vision(self) -> Self:
        """The same prompts once their pictures have been looked at."""
        ...


class FrameSampling(Protocol):
    """Which frames of a video are looked at."""

    def sample_indices(self, total_frames: int, source_fps: float) -> np.ndarray:
        """Indices of the frames, int64 [n], increasing. Raises InputError for a video of no frames or no rate."""
        ...


class Tokenizer(Protocol):
    """What is asked of a tokenizer of the ``transformers`` package."""

    def decode(self, token_ids: Sequence[int] | np.ndarray, *, skip_special_tokens: bool) -> str: ...

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Sequence[int]]:
        """The token ids of a text, under "input_ids"."""
        ...


EncodedT = TypeVar("EncodedT", bound=EncodedPrompt, default=EncodedPrompt)
BatchT_co = TypeVar("BatchT_co", bound=PromptBatch[object], default=PromptBatch, covariant=True)
BatchT_contra = TypeVar("BatchT_contra", bound=PromptBatch[object], default=PromptBatch, contravariant=True)


class Processor(Protocol[EncodedT, BatchT_co]):
    """The input side of one checkpoint: tokenizer, chat template and pixels."""

    @property
    def tokenizer(self) -> Tokenizer: ...

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

    def encode(self, content: Sequence[Part]) -> EncodedT:
        """One user message and the opening of the answer. Raises InputError for what cannot become a prompt."""
        ...

    def video_frame_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """Height and width to which that many frames of that size are brought. Raises InputError."""
        ...

    def resize(self, picture: np.ndarray, height: int, width: int) -> np.ndarray:
        """A uint8 [H, W, 3] frame as uint8 [height, width, 3]."""
        ...

    def padded_sizes(
        self, prompts: Sequence[EncodedT], buckets: Buckets, names: Sequence[str] | None = None
    ) -> PaddedSizes:
        """The smallest buckets that hold all prompts. names: what to call each in an error.

        Raises PromptTooLargeError for one beyond the largest bucket, by name.
        """
        ...

    def collate(
        self,
        prompts: Sequence[EncodedT],
        buckets: Buckets,
        *,
        batch_size: int | None = None,
        names: Sequence[str] | None = None,
        sizes: PaddedSizes | None = None,
    ) -> BatchT_co:
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


# -- decoding --------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeParams(Generic[LayersT_co]):
    """Parameters as captions are decoded with them. layers: what is laid out anew for it. rest: what lies as it did,
    if perhaps in another type."""

    layers: LayersT_co
    rest: Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CaptionState(Generic[ColumnsT_co, CarriedT_co]):
    """What decoding keeps of the captions.

    columns: arrays [B G n, ...] with an axis of one column per token (``Decoder.token_axes``), such as keys and values.
        A token's column is written once, and read where ``visible`` says so. n rows of a caption lie together.
    carried: arrays [B, G, ...] that each token replaces, such as a recurrent state.
    Either may be empty.
    """

    columns: ColumnsT_co
    carried: CarriedT_co


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
        """
        ...

    def begin(self, prompt: StateT, captions: int) -> CarriedT:
        """``CaptionState.carried`` of that many captions of each prompt before their first token."""
        ...

    def ahead(self, steps: Array, prompt: StateT) -> tuple[AtT, FixedT]:
        """What a loop over tokens had better be given than compute in every round.

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
        visible: Array,
        prompt: StateT,
        captions: CaptionState[ColumnsT, CarriedT],
    ) -> tuple[Array, CaptionState[ColumnsT, CarriedT]]:
        """Feeds one token of every caption.

        tokens: [B, G] int32. at, fixed: of ``ahead``. column: int32 scalar, where the token's columns go. visible:
        [B, T] bool, the columns that are seen, ``column`` among them.
        Returns hidden states [B, G, D], which predict the next token, and the state with the token in it.
        """
        ...

    def logits(self, hidden: Array) -> Array:
        """[..., D] -> float32 [..., V]."""
        ...

    def token_axes(self, columns: ColumnsT) -> object:
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


SpecT = TypeVar("SpecT", bound=ModelSpec, default=ModelSpec)
# What a bound leaves open is bound by the family's own methods.
ModelT = TypeVar("ModelT", bound=CaptionModel[Any, Any, Any], default=CaptionModel)
DecoderT_co = TypeVar(
    "DecoderT_co", bound=Decoder[Any, Any, Any, Any, Any, Any, Any], default=Decoder, covariant=True
)


class ModelFamily(Protocol[SpecT, EncodedT, BatchT_co, ModelT, LayersT, DecoderT_co]):
    """A family: a class without arguments, of which one object is made."""

    name: str
    """As people write it."""
    model_type: str
    """Of config.json."""

    @property
    def published_sizes(self) -> Sequence[str]:
        """Sizes that ``published`` knows."""
        ...

    @property
    def partition_rules(self) -> Sequence[Rule]:
        """How parameters are split over devices."""
        ...

    def read_spec(self, folder: Path) -> SpecT:
        """What is in ``folder``/config.json. Raises CheckpointError, FileNotFoundError."""
        ...

    def published(self, size: str) -> SpecT:
        """The spec of a published size, without any file."""
        ...

    def processor(self, folder: Path, budget: VisualBudget) -> Processor[EncodedT, BatchT_co]:
        """The input side of a checkpoint folder. Raises CheckpointError, FileNotFoundError."""
        ...

    def abstract_model(self, spec: SpecT, settings: ModelSettings) -> ModelT:
        """The model with shapes in place of arrays."""
        ...

    def load(self, folder: Path, settings: ModelSettings, sharding: Sharding | None) -> ModelT:
        """A checkpoint folder's model. sharding: (dotted path, shape) of a parameter -> where it goes.

        Raises CheckpointError, FileNotFoundError.
        """
        ...

    def save(self, model: ModelT, folder: Path, *, dtype: DTypeLike | None) -> float | None:
        """Writes config.json and safetensors, adapters merged; returns the share of them that rounding has left
        (``lora.Additions.kept``), None without adapters. Raises FileExistsError for weight files of another export."""
        ...

    def apart(
        self, graphdef: nnx.GraphDef[ModelT], trainable: Params, frozen: Params
    ) -> tuple[Params, Params]:
        """The parameters of a model: those that ``lay_out`` lays out anew, and the rest. Nothing is computed."""
        ...

    def lay_out(self, graphdef: nnx.GraphDef[ModelT], layers: Params, rest: Params) -> DecodeParams[LayersT]:
        """Both results of ``apart`` for decoding, in the types of ``decoded_types``; pure, to be traced.

        ``DecodeParams.rest`` has the leaves of ``rest``, in their order.
        """
        ...

    def decoded_types(self, params: Params, dtype: DTypeLike) -> Params:
        """The types that decoding uses parameters in, a tree like ``params`` (arrays or abstract).

        dtype: of products.
        """
        ...

    def decoder(self, graphdef: nnx.GraphDef[ModelT], params: DecodeParams[LayersT]) -> DecoderT_co: ...

    def largest_prompt(
        self, spec: SpecT, modality: Literal["image", "video"], budget: VisualBudget
    ) -> LargestPrompt:
        """The largest prompt that ``budget`` lets in: it names max_pixels for images, max_frames and max_frame_tokens
        for videos."""
        ...

    def abstract_prompt(
        self, spec: SpecT, largest: LargestPrompt, groups: int, buckets: Buckets
    ) -> BatchT_co:
        """So many prompts of that size, padded by ``buckets``, as ``jax.ShapeDtypeStruct``.

        Raises PromptTooLargeError if the buckets have no room for it.
        """
        ...


@runtime_checkable
class VllmProcessor(Processor[EncodedT, BatchT_co], Protocol[EncodedT, BatchT_co]):
    """The input side of a family that vLLM serves."""

    def picture_parts(self, prompt: EncodedT) -> tuple[list[JsonObject], JsonObject | None]:
        """The pictures of an encoded prompt as content parts of a chat request to vLLM, and the request's
        ``media_io_kwargs`` (None without). Raises InputError for a prompt that cannot be sent so."""
        ...


@runtime_checkable
class VllmFamily(
    ModelFamily[SpecT, EncodedT, BatchT_co, ModelT, LayersT, DecoderT_co],
    Protocol[SpecT, EncodedT, BatchT_co, ModelT, LayersT, DecoderT_co],
):
    """A family whose captions ``rollout.engine: vllm`` can draw; its processors are ``VllmProcessor``."""

    def save_for_vllm(self, model: ModelT, folder: Path, *, dtype: DTypeLike | None) -> float | None:
        """As ``save``, as a vLLM server reads a step's weights."""
        ...


def opaque(family: ModelFamily[SpecT, EncodedT, BatchT_co, ModelT, LayersT, DecoderT_co]) -> ModelFamily:
    """``family`` as the rest of the project sees it: its own types go from one of its methods to another, unread.

    A type checker that accepts the argument has found that it is a family.
    """
    return cast(ModelFamily, family)  # what "some types, the same throughout" is to a type system without it


def family_of(graphdef: GraphDef) -> ModelFamily:
    """The family of a model definition."""
    root = graphdef.nodes[0]
    assert isinstance(root, NodeDef)
    model: type[CaptionModel] = root.type
    return model.family()
