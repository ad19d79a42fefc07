"""A family: what reads its checkpoints, makes its prompts, and gives its model and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

from flax import nnx
from flax.nnx.graphlib import NodeDef
from jax.typing import DTypeLike
from typing_extensions import TypeVar

from vcap_jax.models.buckets import Buckets
from vcap_jax.models.family.decoding import DecodeParams, Decoder
from vcap_jax.models.family.model import CaptionModel, GraphDef, ModelSettings, ModelSpec, Params
from vcap_jax.models.family.prompts import BatchT_co, EncodedT, Processor, VisualBudget
from vcap_jax.models.weights import Sharding
from vcap_jax.parallel.sharding import Rule


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


LayersT = TypeVar("LayersT", default=object)
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
class VllmFamily(
    ModelFamily[SpecT, EncodedT, BatchT_co, ModelT, LayersT, DecoderT_co],
    Protocol[SpecT, EncodedT, BatchT_co, ModelT, LayersT, DecoderT_co],
):
    """A family whose captions ``rollout.engine: vllm`` can draw; its processors are ``VllmProcessor``."""

    vllm_cpu_options: Sequence[str]
    """What a server's CPU build must be started with for it."""

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
