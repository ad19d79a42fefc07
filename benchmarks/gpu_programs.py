"""The programs that benchmarks/gpu.py measures: the run's own, at the width of Qwen3-VL-8B, on one device.

The same lowering serves a GPU that is here and one that is only described (``vcap_jax.plan.targets``): programs are
lowered for shapes with a placement, and compiled. How many layers fit is asked of the compiler, not guessed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import DTypeLike

from benchmarks.gpu import GROUPS
from benchmarks.shared_prompt import forward_flops
from vcap_jax.grpo.objective import ObjectiveConfig, StepTotals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.kernels import attention
from vcap_jax.models import family
from vcap_jax.models.policy import attention_kernel, split_model
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.family import Qwen3VLFamily
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisualFeatures
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.plan.abstract import placed, placed_batch
from vcap_jax.plan.costs import Cost, Counter
from vcap_jax.plan.hlo import parse
from vcap_jax.rollout.decode_state import DATA_AXIS
from vcap_jax.rollout.placement import local_mesh
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig

DTYPE = jnp.bfloat16
CHUNK = 64
"""Tokens per device call when decoding."""
LOGPROB_CHUNK = 512
PROBES = (3, 6)
"""Layers at which memory is asked for; it grows by about equal amounts from there."""
TEXT_TOKENS = 128
"""Of a prompt; the rest are visual tokens."""


class DoesNotFit(ValueError):
    """Not even the fewest layers fit the device; the message says what is needed."""


def failure(error: Exception) -> str:
    """What a table says of it, in one line."""
    if isinstance(error, DoesNotFit):
        return str(error)
    text = str(error)
    kind = "out of memory" if "RESOURCE_EXHAUSTED" in text else type(error).__name__
    return f"{kind}: {text.splitlines()[0] if text else 'no message'}"


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens, padded; groups side by side. modality: of the paper's run it stands for."""

    modality: str
    prompt: int
    caption: int
    groups: int = 1
    captions: int = 8

    @property
    def name(self) -> str:
        """As tables print it."""
        rows = f"{self.prompt:,} + {self.captions} x {self.caption:,}"
        return rows if self.groups == 1 else f"{self.groups} x ({rows})"


DECODING = tuple(
    Shape(modality, prompt, caption, groups)
    for modality, prompt, caption in (("image", 8192, 1536), ("video", 26624, 2048))
    for groups in GROUPS
)
UPDATES = (
    Shape("image", 8192, 1536),
    Shape("image, longest", 14336, 4096),
    Shape("video", 26624, 2048),
    Shape("video, longest", 32768, 6300),
)


LAYERS = Qwen3VLFamily().published("8B").text.num_hidden_layers


def width_8b(layers: int) -> Qwen3VLConfig:
    """Qwen3-VL-8B with that many decoder layers; everything else as published."""
    config = Qwen3VLFamily().published("8B")
    return dataclasses.replace(config, text=dataclasses.replace(config.text, num_hidden_layers=layers))


@dataclass(frozen=True)
class Model:
    """A model as shapes, all parameters in bfloat16. trainable, frozen: placed on the device."""

    config: Qwen3VLConfig
    kernel: attention.Kernel
    graphdef: Any
    trainable: Any
    frozen: Any


def abstract_model(config: Qwen3VLConfig, placement: Placement, remat: str) -> Model:
    """``config`` with cuDNN's attention, and for new tokens the GPU's own. Raises UnsupportedAttention where cuDNN
    cannot compute it."""
    kernel = attention_kernel("cudnn", config, DTYPE, placement.mesh.devices.flat[0])
    whole = nnx.eval_shape(
        lambda: Qwen3VL(config, rngs=nnx.Rngs(0), dtype=DTYPE, param_dtype=DTYPE, remat=remat, kernel=kernel)
    )
    graphdef, trainable, frozen = split_model(cast(family.CaptionModel, whole), ("visual",))
    return Model(config, kernel, graphdef, placement.abstract(trainable), placement.abstract(frozen))


def one_device(device: Any) -> Placement:
    """Everything on that device."""
    return Placement.build(MeshConfig(), [device])


@dataclass(frozen=True)
class Program:
    """A compiled program. arguments: what it is called with, as shapes. cost: of one run; of decoding, a token.

    argument_bytes, result_bytes (beyond those written in place of arguments), temporary_bytes: on the device.
    """

    executable: Any
    arguments: tuple[Any, ...]
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    cost: Cost

    @property
    def bytes(self) -> int:
        """In memory while it runs."""
        return self.argument_bytes + self.result_bytes + self.temporary_bytes


def compiled(
    lowered: Any,
    arguments: tuple[Any, ...],
    kernel: attention.Kernel | None,
    tune: bool,
    rounds: int = 1,
    looks: int = 1,
) -> Program:
    """Compiles.

    kernel: the attention kernel that must be in the program; raises UnsupportedAttention if it is not. tune: whether
    XLA tries out products on the device, which takes most of the time and nothing for a question of memory.
    rounds: of a loop whose length the data decide, which is seen ``looks`` times; the cost is then that of one round,
    with its share of the rest.
    """
    options = {} if tune else {"xla_gpu_autotune_level": 0}
    executable = lowered.compile(compiler_options=options)
    text = executable.as_text()
    if kernel is not None:
        attention.require_kernel(kernel, text)
    memory = executable.memory_analysis()
    return Program(
        executable=executable,
        arguments=arguments,
        argument_bytes=memory.argument_size_in_bytes,
        result_bytes=max(0, memory.output_size_in_bytes - memory.alias_size_in_bytes),
        temporary_bytes=memory.temp_size_in_bytes,
        cost=Counter(parse(text), looks).total().times(1 / rounds),
    )


@dataclass(frozen=True)
class Fitted:
    """A model of as many layers as fit, and its programs."""

    model: Model
    programs: tuple[Program, ...]

    @property
    def layers(self) -> int:
        return self.model.config.text.num_hidden_layers

    @property
    def bytes(self) -> int:
        return max(program.bytes for program in self.programs)


Build = Callable[[Model, bool], tuple[Program, ...]]
"""The programs of a model; the second argument is ``compiled``'s ``tune``."""


def fit(
    build: Build,
    model_of: Callable[[int], Model],
    budget: int,
    most: int = LAYERS,
    exactly: int | None = None,
) -> Fitted:
    """As many layers, up to ``most``, as ``budget`` bytes hold; every program must fit by itself.

    exactly: so many instead, which compiles each program once and not three times. Raises DoesNotFit.
    """
    if exactly is not None:
        found = Fitted(model := model_of(exactly), build(model, True))
        if found.bytes > budget:
            raise DoesNotFit(
                f"{exactly} layers need {found.bytes / 2**30:.1f} GiB, the device has {budget / 2**30:.1f} GiB"
            )
        return found
    low, high = min(PROBES[0], most), min(PROBES[1], most)
    needs = [max(program.bytes for program in build(model_of(n), False)) for n in (low, high)]
    if needs[0] > budget:
        raise DoesNotFit(
            f"{low} layers need {needs[0] / 2**30:.1f} GiB, the device has {budget / 2**30:.1f} GiB"
        )
    layers = most
    if high > low and needs[1] > needs[0]:
        per_layer = (needs[1] - needs[0]) / (high - low)
        layers = min(most, low + int((budget - needs[0]) / per_layer))
    while True:
        model = model_of(layers)
        found = Fitted(model, build(model, True))
        if found.bytes <= budget or layers == low:
            return found
        layers -= 1


def decode_programs(model: Model, shape: Shape, placement: Placement, tune: bool) -> tuple[Program, Program]:
    """Prefill into slots, and decoding of ``shape.groups`` groups under the paper's sampling rules with the caption
    cache in its full width: the run's own programs. Their arguments begin with parameters and state."""
    mesh = decoding_mesh(placement)
    of_replicas = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(DATA_AXIS))
    prompt = placed(prompt_shapes(shape, placement), of_replicas)
    drawing = sampler(model, shape, placement)
    calls = drawing.abstract_calls(model.trainable, model.frozen, prompt, None)
    given = (calls.params, calls.state)
    # Decoding has no whole sequences in it, so no kernel for them.
    fill, decode = calls.fill(), calls.decode()
    attention.require_decoding(model.kernel, decode.as_text())
    return (
        compiled(fill, (*given, prompt), model.kernel, tune),
        compiled(decode, given, None, tune, CHUNK, CHUNK // drawing.programs(mesh).tokens_per_look),
    )


def sampler(model: Model, shape: Shape, placement: Placement) -> GroupSampler:
    """The run's sampler. The token that ends captions is never drawn: all are of one length."""
    end = model.config.text.eos_token_id or 0
    config = RolloutConfig(
        group_size=shape.captions,
        max_completion_length=shape.caption,
        groups_per_batch=shape.groups,
        decode_steps_per_call=CHUNK,
    )
    mesh = decoding_mesh(placement)
    return GroupSampler(model.graphdef, config, end_ids=(end,), banned_ids=(end,), mesh=mesh, logprobs=True)


def decoding_mesh(placement: Placement) -> jax.sharding.Mesh:
    """Of the same devices, with the axes that the sampler has."""
    return local_mesh(1, list(placement.mesh.devices.flat))


def update_programs(model: Model, shape: Shape, placement: Placement, tune: bool) -> tuple[Program, ...]:
    """The gradient of one micro-batch of ``shape.groups`` groups, added to a sum: the run's own program."""
    config = model.config
    lead = (shape.groups, shape.captions)
    prompt = prompt_shapes(shape, placement)
    visual, taps = shape.prompt - TEXT_TOKENS, len(config.vision.deepstack_visual_indexes)
    feature = (shape.groups, visual, config.text.hidden_size)
    features = placed_batch(
        VisualFeatures(_shape(feature, DTYPE), _shape((feature[0], taps, *feature[1:]), DTYPE)), placement
    )
    captions = placed_batch(
        CaptionBatch(
            tokens=_shape((*lead, shape.caption), jnp.int32),
            lengths=_shape(lead, jnp.int32),
            advantages=_shape(lead, jnp.float32),
            contributes=_shape(lead, jnp.bool_),
        ),
        placement,
    )
    whole = jax.sharding.NamedSharding(placement.mesh, jax.sharding.PartitionSpec())
    scalar = placed(_shape((), jnp.float32), whole)
    programs = UpdatePrograms(
        model.graphdef,
        ObjectiveConfig(beta=0.0),
        optax.sgd(1.0),
        temperature=1.0,
        logprob_chunk=LOGPROB_CHUNK,
    )
    given = (
        *(model.trainable, model.frozen, model.trainable, prompt, features, captions),
        *(StepTotals(scalar, scalar, scalar), None, None, None),
    )
    return (compiled(programs.accumulate.lower(*given), given, model.kernel, tune),)


def update_flops(model: Model, shape: Shape, copies: int = 1) -> float:
    """Operations of a gradient: forward and twice as much backward; what is computed again is not counted. copies: how
    often the prompt is computed."""
    return 3 * shape.groups * forward_flops(model.config, shape, shape.captions, copies)


def _shape(sizes: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """A shape in an array's place, of the type that JAX gives it there."""
    return jax.eval_shape(lambda: jnp.zeros(sizes, dtype))


def prompt_shapes(shape: Shape, placement: Placement) -> family.PromptBatch:
    """Prompts without pictures: visual features, where there are any, come from elsewhere."""

    def numbers(*tail: int) -> jax.Array:
        return _shape((shape.groups, *tail), jnp.int32)

    tokens = shape.prompt
    batch = PromptBatch(
        tokens=numbers(tokens),
        positions=numbers(3, tokens),
        lengths=numbers(),
        visual_index=numbers(tokens),
        vision=None,
    )
    return cast(family.PromptBatch, placed_batch(batch, placement))  # as it is known outside its family


def bytes_of(leaves: Sequence[Any]) -> int:
    """Of arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def must_read(model: Model, shape: Shape, filled: int) -> dict[str, int]:
    """Bytes that a decoded token of every caption cannot do without: parameters once (of an embedding table that is
    not the head only the rows looked up), keys and values of a prompt once per group, those of a caption's
    ``filled`` tokens."""
    text, tied = model.config.text, model.config.tie_word_embeddings
    table = model.trainable["text"]["embed_tokens"]
    rows = shape.groups * shape.captions
    width = 2 * text.num_key_value_heads * text.head_dim * text.num_hidden_layers * jnp.dtype(DTYPE).itemsize
    looked_up = rows * text.hidden_size * jnp.dtype(DTYPE).itemsize
    return {
        "parameters": bytes_of(jax.tree.leaves(model.trainable))
        + (0 if tied else looked_up - bytes_of(jax.tree.leaves(table))),
        "prompts": shape.groups * shape.prompt * width,
        "captions": rows * filled * width,
    }
