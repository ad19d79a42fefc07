"""The programs of a training step, lowered for devices that are not here.

They are the run's own: ``UpdatePrograms``, ``GroupSampler`` and the vision encoder, given shapes where a run gives
arrays. Nothing is written twice, so what a plan compiles is what a run will run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Lowered
from jax.typing import DTypeLike

from vcap_jax.grpo.objective import StepTotals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.models.family import Params, family_of
from vcap_jax.models.policy import vision_encoder
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.plan.abstract import (
    AbstractPolicy,
    Model,
    Sizes,
    abstract_prompt,
    bytes_per_device,
    features_of,
    placed,
    placed_batch,
)
from vcap_jax.plan.lengths import Decoding
from vcap_jax.plan.offload import named, sending
from vcap_jax.rollout.decoding import DATA_AXIS
from vcap_jax.rollout.placement import local_mesh, own_types
from vcap_jax.rollout.sampler import GroupSampler, Offloaded
from vcap_jax.run.config import RunConfig
from vcap_jax.training.optimizer import TrainState, build_optimizer

FORWARD = "log-probabilities"
"""The program that is one forward pass of a micro-batch's tokens."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One program of a step.

    phase: what else is in memory, "rollout" or "update". lower: gives the lowered program. count: how often a step
    runs it; for decoding, a token of all captions of a batch. arguments: bytes per device that only this program is
    given. kept: whether its results are among what stays in memory. attention: whether an attention kernel belongs in
    it; decoding: whether that for new tokens does. rounds: of one call's loop; where there are several, ``count``
    counts rounds. seen: see ``Counter``. moved: bytes per device that must move in one run (one round) however it is
    done: what is read is read once, what is written is written once, and nothing in between leaves the chip. forwards:
    where that is known, the forward passes of the same tokens (``FORWARD``) whose operations it takes at the least.
    """

    name: str
    phase: str
    lower: Callable[[], Lowered]
    count: float
    arguments: int = 0
    kept: bool = False
    attention: bool = False
    decoding: bool = False
    rounds: int = 1
    seen: float = 1.0
    moved: int = 0
    forwards: int | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step's programs, how its captions are decoded, and the bytes per device that stay in memory through each phase,
    by what they are. waiting: those that lie in the host's memory through the rollout instead; send: lowers a program
    that takes them there."""

    work: tuple[Work, ...]
    decoding: Decoding
    resident: Mapping[str, Mapping[str, int]]
    waiting: Mapping[Offloaded, int]
    send: Callable[[], Lowered]


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """How a step is cut. groups: of a step. batch: those that decode side by side, of all hosts. micro: of a
    micro-batch. decoded: tokens that the longest captions are decoded to."""

    sizes: Sizes
    groups: int
    batch: int
    micro: int
    decoded: int

    @property
    def rounds(self) -> int:
        """How often all slots are filled in a step, the last time perhaps not all of them."""
        return -(-self.groups // self.batch)

    @property
    def micro_batches(self) -> int:
        """Of a step; the last may be short, and is padded."""
        return -(-self.groups // self.micro)


def step_programs(
    config: RunConfig,
    model: Model,
    policy: AbstractPolicy,
    shapes: Shapes,
    *,
    devices: Sequence[jax.Device],
    host_devices: Sequence[jax.Device],
    hosts: int,
) -> Step:
    """The programs of one step of ``config`` on ``devices``, with rollout on each host's own."""
    rules = model.family.partition_rules
    placement = Placement.build(config.mesh, devices, rules=rules)
    params = placement.abstract(policy.trainable)
    frozen = placement.abstract(policy.frozen)
    reference = None if policy.reference is None else placement.abstract(policy.reference)
    lora = config.model.lora is not None
    update = _update(config, policy, placement, params, frozen, reference, model, shapes)
    own = placement
    if hosts > 1:
        host_mesh = MeshConfig(data=-1, fsdp=1, tensor=config.mesh.tensor)
        own = Placement.build(host_mesh, host_devices, rules=rules)
    rollout = _rollout(config, model, policy, shapes, placement, own, host_devices, hosts)
    trees = named(config.rollout.offload, params, update.optimizer, reference)
    waiting = {name: bytes_per_device(tree) for name, tree in trees.items()}
    state = {
        "parameters": bytes_per_device(params),
        "optimizer": bytes_per_device(update.optimizer),
        "frozen": bytes_per_device(frozen),
        "reference": 0 if reference is None or lora else bytes_per_device(reference),
        "prompts and features": update.kept,
    }
    return Step(
        work=(*rollout.work, *update.work),
        decoding=rollout.decoding,
        resident={
            "rollout": state
            | dict.fromkeys(waiting, 0)
            | {"parameters of this host": rollout.own, "rollout copy": rollout.copy},
            # What is not trained stays on each host from its first caption on.
            "update": state
            | {"gradients": bytes_per_device(params), "frozen of this host": rollout.own_frozen},
        },
        waiting=waiting,
        send=partial(sending, trees),
    )


@dataclass(frozen=True)
class _Update:
    work: tuple[Work, ...]
    optimizer: optax.OptState
    kept: int


def _update(
    config: RunConfig,
    policy: AbstractPolicy,
    placement: Placement,
    params: Params,
    frozen: Params,
    reference: Params | None,
    model: Model,
    shapes: Shapes,
) -> _Update:
    sizes, grpo = shapes.sizes, config.grpo
    optimizer = build_optimizer(config.optimizer, 1000)
    programs = UpdatePrograms(
        policy.graphdef,
        config.objective,
        optimizer,
        temperature=config.rollout.sampling.temperature,
        logprob_chunk=grpo.logprob_chunk,
    )
    prompt = abstract_prompt(config, model, sizes, shapes.micro)
    features = placed_batch(features_of(policy, prompt), placement)
    # Without its pixels, as ``Collector`` keeps it.
    prompt = placed_batch(prompt.without_vision(), placement)
    lead = (shapes.micro, sizes.captions)
    captions = placed_batch(
        CaptionBatch(
            tokens=jax.ShapeDtypeStruct((*lead, sizes.caption_tokens), jnp.int32),
            lengths=jax.ShapeDtypeStruct(lead, jnp.int32),
            advantages=jax.ShapeDtypeStruct(lead, jnp.float32),
            contributes=jax.ShapeDtypeStruct(lead, jnp.bool_),
        ),
        placement,
    )
    logprobs = placed_batch(jax.ShapeDtypeStruct((*lead, sizes.caption_tokens), jnp.float32), placement)
    whole = NamedSharding(placement.mesh, PartitionSpec())

    def number(dtype: DTypeLike) -> jax.Array:
        return placed(jax.eval_shape(lambda: jnp.zeros((), dtype)), whole)

    total = number(jnp.float32)
    totals = StepTotals(sequences=total, tokens=total, micro_batches=total)
    moments = placement.abstract(jax.eval_shape(optimizer.init, policy.trainable))
    state = TrainState(number(jnp.int32), params, moments)
    part = bytes_per_device((prompt, features))
    own, everything = bytes_per_device(params), _decoder_bytes(config, policy)
    anchor = None if reference is None else logprobs
    # Of the policy that drew, where updates lie between it and this one.
    keeps_old = grpo.num_iterations > 1 or config.rollout.ahead > 0
    old = logprobs if keeps_old else None
    work = [
        Work(
            name="gradient",
            phase="update",
            lower=lambda: programs.accumulate.lower(
                params, frozen, params, prompt, features, captions, totals, old, anchor, None
            ),
            count=shapes.micro_batches * grpo.num_iterations,
            arguments=part + bytes_per_device(captions),
            attention=True,
            # All parameters for each direction; the gradients are added to what there is.
            moved=part + 2 * everything + 2 * own,
            # Those of activations and of parameters are a forward pass each.
            forwards=3,
        ),
        Work(
            name="optimizer",
            phase="update",
            lower=lambda: programs.apply.lower(state, params),
            count=grpo.num_iterations,
            moved=own + 2 * bytes_per_device(state),
        ),
    ]
    passes = (reference is not None) + keeps_old
    if passes:
        anchor_params = params if reference is None else reference
        work.insert(
            0,
            Work(
                name=FORWARD,
                phase="update",
                lower=lambda: programs.logprobs.lower(
                    anchor_params, frozen, prompt, features, captions.tokens
                ),
                count=shapes.micro_batches * passes,
                arguments=part,
                attention=True,
                moved=part + everything,
            ),
        )
    # Those of a step that is drawn ahead are there as well.
    return _Update(tuple(work), moments, part * shapes.micro_batches * (1 + config.rollout.ahead))


@dataclass(frozen=True)
class _Rollout:
    """own: bytes of this host's own parameters, own_frozen of those among them that are not trained (0 on one host);
    copy: of the copy that decodes."""

    work: tuple[Work, ...]
    decoding: Decoding
    own: int
    own_frozen: int
    copy: int


def _rollout(
    config: RunConfig,
    model: Model,
    policy: AbstractPolicy,
    shapes: Shapes,
    everywhere: Placement,
    own: Placement,
    devices: Sequence[jax.Device],
    hosts: int,
) -> _Rollout:
    """Each host decodes its share of the groups with a copy of the parameters in the computation's type.

    everywhere: of all hosts, where parameters lie for training. own: where this host's prompts are encoded. One of
    several hosts has the parameters whole for that, see ``RunContext.own_params``.
    """
    mesh = local_mesh(config.mesh.tensor, devices)
    whole = NamedSharding(mesh, PartitionSpec())
    trained = (policy.trainable, policy.frozen)
    types = tuple(own_types(policy.graphdef, tree, config.model.dtype) for tree in trained)
    narrow = jax.tree.map(lambda x, dtype: jax.ShapeDtypeStruct(x.shape, dtype), trained, types)
    params, frozen = placed(narrow, whole)
    groups = shapes.micro // hosts
    encoders = own.abstract(trained if hosts == 1 else narrow)

    empty = abstract_prompt(config, model, shapes.sizes, groups)
    by_replica = NamedSharding(mesh, PartitionSpec(DATA_AXIS))
    prompt = placed(empty, by_replica)
    features = placed(features_of(policy, empty), by_replica)
    seen = placed_batch(empty, own)
    sampler = GroupSampler(
        policy.graphdef,
        config.rollout.share(hosts),
        end_ids=(model.spec.end_token_id or 0,),
        banned_ids=model.spec.special_token_ids,
        mesh=mesh,
    )
    calls = sampler.abstract_calls(params, frozen, prompt, features)
    part, everything = bytes_per_device((prompt, features)), _decoder_bytes(config, policy)
    slots, stored = calls.state.done.shape[0], calls.state.tokens.shape[-1]
    # Without the columns behind them for new tokens.
    captions = bytes_per_device(calls.state.captions) * shapes.sizes.caption_tokens // stored
    encode = vision_encoder(policy.graphdef)
    # Parameters that wait through the rollout leave when they are copied.
    leaves = "parameters" in config.rollout.offload
    copied_from = bytes_per_device(everywhere.abstract(policy.trainable)) if leaves else 0
    gathered = Work(
        name="parameters of this host",
        phase="rollout",
        # What is not trained is gathered once, at the start.
        lower=lambda: everywhere.gathering(policy.trainable, types[0], own).lower(
            everywhere.abstract(policy.trainable)
        ),
        count=1,
        arguments=copied_from,
        kept=True,
    )
    work = (
        *([] if hosts == 1 else [gathered]),
        Work(
            name="copy for rollout",
            phase="rollout",
            lower=lambda: sampler.placement(params).lower(*encoders),
            count=1,
            arguments=copied_from,
            kept=True,
            moved=bytes_per_device(encoders) + bytes_per_device(calls.params),
        ),
        Work(
            name="vision",
            phase="rollout",
            lower=lambda: encode.lower(*encoders, seen),
            count=shapes.micro_batches,
            # Prompts are looked at while others decode.
            arguments=part + bytes_per_device(calls.state),
            kept=True,
            attention="vision" in model.spec.head_sizes,
            moved=bytes_per_device((seen, features)),
        ),
        Work(
            name="prefill",
            phase="rollout",
            lower=calls.fill,
            count=-(-shapes.groups // (hosts * calls.groups_per_fill)),
            arguments=part + bytes_per_device(calls.state),
            attention=True,
            seen=_seen_before(shapes.sizes.tokens, config.rollout.prefill_chunk),
            moved=everything + calls.groups_per_fill * bytes_per_device(calls.state.prompt) // slots,
        ),
        Work(
            name=f"decode ({columns_for(config.rollout.max_completion_length)} columns)",
            phase="rollout",
            lower=calls.decode,
            count=shapes.rounds * shapes.decoded,
            arguments=part + bytes_per_device(calls.state),
            decoding=True,
            rounds=min(config.rollout.decode_steps_per_call, config.rollout.max_completion_length),
            # Parameters once, every prompt once for its group, every caption.
            moved=everything + bytes_per_device(calls.state.prompt) + captions,
        ),
    )
    own_bytes = (0, 0) if hosts == 1 else (bytes_per_device(encoders), bytes_per_device(encoders[1]))
    replicas = mesh.shape[DATA_AXIS]
    decoding = Decoding(
        buckets=sampler.buckets(replicas),
        replicas=replicas,
        groups=-(-shapes.groups // hosts),
        captions=shapes.sizes.captions,
        chunk=min(config.rollout.decode_steps_per_call, config.rollout.max_completion_length),
        parameters=everything,
        prompt=bytes_per_device(calls.state.prompt) * replicas // slots,
        column=bytes_per_device(calls.state.captions) * replicas / (slots * shapes.sizes.captions * stored),
        block=policy.kernel.range_block,
    )
    return _Rollout(work, decoding, *own_bytes, bytes_per_device(calls.params))


def _decoder_bytes(config: RunConfig, policy: AbstractPolicy) -> int:
    """What every token goes through: the layers and the output matrix as products take them, cut by ``tensor``. At the
    least: of the parameters only those that a family lays out anew for decoding are known to be layers."""

    def read(trainable: Params, frozen: Params) -> tuple[Params, jax.Array]:
        layers, _ = family_of(policy.graphdef).apart(policy.graphdef, trainable, frozen)
        return layers, nnx.merge(policy.graphdef, trainable, frozen).head()

    numbers = sum(
        leaf.size for leaf in jax.tree.leaves(jax.eval_shape(read, policy.trainable, policy.frozen))
    )
    return numbers * jnp.dtype(config.model.dtype).itemsize // config.mesh.tensor


def _seen_before(tokens: int, chunk: int) -> float:
    """Which share of a prompt's keys lies before a chunk of it, on average: what comes before is all that a chunk's
    queries see beside the chunk. 1 for a prompt that is computed whole."""
    chunks = -(-tokens // chunk)
    return 1.0 if chunks == 1 else (chunks - 1) / (2 * chunks)
