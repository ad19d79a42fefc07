"""The programs of a training step, lowered for devices that are not here.

They are the run's own: ``UpdatePrograms``, ``GroupSampler`` and the vision encoder, given shapes where a run gives
arrays. Nothing is written twice, so what a plan compiles is what a run will run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from vcap_jax.grpo.objective import StepTotals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.models.family import Params
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
from vcap_jax.plan.offload import named, sending
from vcap_jax.plan.rollout_programs import decoder_bytes, rollout_programs
from vcap_jax.plan.work import FORWARD, Step, Work
from vcap_jax.run.config import RunConfig
from vcap_jax.training.optimizer import TrainState, build_optimizer


def step_programs(
    config: RunConfig,
    model: Model,
    policy: AbstractPolicy,
    sizes: Sizes,
    decoded: int,
    *,
    devices: Sequence[jax.Device],
    host_devices: Sequence[jax.Device],
    hosts: int,
) -> Step:
    """The programs of one step of ``config`` on ``devices``, with rollout on each host's own.

    sizes: of the largest prompt and captions. decoded: tokens that the longest captions are decoded to.
    """
    rules = model.family.partition_rules
    placement = Placement.build(config.mesh, devices, rules=rules)
    params = placement.abstract(policy.trainable)
    frozen = placement.abstract(policy.frozen)
    reference = None if policy.reference is None else placement.abstract(policy.reference)
    lora = config.model.lora is not None
    update = _update(config, policy, placement, params, frozen, reference, model, sizes)
    own = placement
    if hosts > 1:
        host_mesh = MeshConfig(data=-1, fsdp=1, tensor=config.mesh.tensor)
        own = Placement.build(host_mesh, host_devices, rules=rules)
    rollout = rollout_programs(config, model, policy, sizes, decoded, placement, own, host_devices, hosts)
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
            # What is not trained stays on each host from its first caption on, the rest until it is copied.
            | {"parameters of this host": rollout.own_frozen, "rollout copy": rollout.copy},
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
    sizes: Sizes,
) -> _Update:
    grpo = config.grpo
    micro = grpo.groups_per_micro_batch
    micro_batches = -(-grpo.groups_per_step // micro)
    optimizer = build_optimizer(config.optimizer, 1000)
    programs = UpdatePrograms(
        policy.graphdef,
        config.objective,
        optimizer,
        temperature=config.rollout.sampling.temperature,
        logprob_chunk=grpo.logprob_chunk,
    )
    prompt = abstract_prompt(config, model, sizes, micro)
    features = placed_batch(features_of(policy, prompt), placement)
    # Without its pixels, as ``Collector`` keeps it.
    prompt = placed_batch(prompt.without_vision(), placement)
    lead = (micro, sizes.captions)
    captions = placed_batch(
        CaptionBatch(
            tokens=jax.ShapeDtypeStruct((*lead, sizes.caption_tokens), jnp.int32),
            lengths=jax.ShapeDtypeStruct(lead, jnp.int32),
            advantages=jax.ShapeDtypeStruct(lead, jnp.float32),
            contributes=jax.ShapeDtypeStruct(lead, jnp.bool_),
            sampler_logprobs=jax.ShapeDtypeStruct((*lead, sizes.caption_tokens), jnp.float32),
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
    own, everything = bytes_per_device(params), decoder_bytes(config, policy)
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
            count=micro_batches * grpo.num_iterations,
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
                count=micro_batches * passes,
                arguments=part,
                attention=True,
                moved=part + everything,
            ),
        )
    # Those of a step that is drawn ahead are there as well.
    return _Update(tuple(work), moments, part * micro_batches * (1 + config.rollout.ahead))
