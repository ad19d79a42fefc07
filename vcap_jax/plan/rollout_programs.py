"""The programs that draw a step's captions, lowered for devices that are not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vcap_jax.models.family import Params, family_of
from vcap_jax.models.policy import vision_encoder
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.sharding import Placement
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
from vcap_jax.plan.work import Work
from vcap_jax.rollout.decode_state import DATA_AXIS
from vcap_jax.rollout.placement import local_mesh, own_types
from vcap_jax.rollout.sampler import AbstractCalls, GroupSampler
from vcap_jax.run.config import RunConfig


@dataclass(frozen=True)
class Rollout:
    """own_frozen: bytes of this host's own parameters that are not trained (0 on one host). copy: of what the copy that
    decodes has to itself."""

    work: tuple[Work, ...]
    decoding: Decoding
    own_frozen: int
    copy: int


def rollout_programs(
    config: RunConfig,
    model: Model,
    policy: AbstractPolicy,
    sizes: Sizes,
    decoded: int,
    everywhere: Placement,
    own: Placement,
    devices: Sequence[jax.Device],
    hosts: int,
) -> Rollout:
    """Each host decodes its share of the groups with a copy of the parameters in the computation's type.

    sizes, decoded: see ``programs.step_programs``. everywhere: of all hosts, where parameters lie for training. own:
    where this host's prompts are encoded. One of several hosts has the parameters whole for that, see
    ``RunContext.own_params``.
    """
    mesh = local_mesh(config.mesh.tensor, devices)
    whole = NamedSharding(mesh, PartitionSpec())
    trained = (policy.trainable, policy.frozen)
    types = tuple(own_types(policy.graphdef, tree, config.model.dtype) for tree in trained)
    narrow = jax.tree.map(lambda x, dtype: jax.ShapeDtypeStruct(x.shape, dtype), trained, types)
    params, frozen = placed(narrow, whole)
    of_step, micro = config.grpo.groups_per_step, config.grpo.groups_per_micro_batch
    at_once, short = config.rollout.groups_per_batch, config.rollout.short_groups
    encoders = own.abstract(trained if hosts == 1 else narrow)

    empty = abstract_prompt(config, model, sizes, micro // hosts)
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
        logprobs=True,
    )
    calls = sampler.abstract_calls(params, frozen, prompt, features)
    # Prompts are looked at and computed for the caches that they come into first.
    first = sampler.abstract_calls(params, frozen, prompt, features, short=True) if short else calls
    brief = min(decoded, columns_for(config.rollout.short_length)) if short else 0
    part, everything = bytes_per_device((prompt, features)), decoder_bytes(config, policy)
    slots, stored = calls.state.done.shape[0], calls.state.tokens.shape[-1]
    encode = vision_encoder(policy.graphdef)

    def decode(calls: AbstractCalls, longest: int, count: int) -> Work:
        """Of captions of at most ``longest`` tokens, ``count`` tokens of a step."""
        columns = calls.state.tokens.shape[-1]
        # Without the columns behind them for new tokens.
        width = min(sizes.caption_tokens, columns_for(longest))
        return Work(
            name=f"decode ({columns_for(longest)} columns)",
            phase="rollout",
            lower=calls.decode,
            count=count,
            arguments=part + bytes_per_device(calls.state),
            decoding=True,
            rounds=config.rollout.chunk,
            looks=config.rollout.chunk // sampler.programs(mesh).tokens_per_look,
            # Parameters once, every prompt once for its group, every caption.
            moved=everything
            + bytes_per_device(calls.state.prompt)
            + bytes_per_device(calls.state.captions) * width // columns,
        )

    # Parameters that wait through the rollout leave when they are copied, and so do this host's own, once the first
    # prompts are looked at, before there is a cache.
    leaves = "parameters" in config.rollout.offload
    own_trained, own_frozen = (0, 0) if hosts == 1 else map(bytes_per_device, encoders)
    leaving = bytes_per_device(everywhere.abstract(policy.trainable)) if leaves else 0
    placement = sampler.placement(params)
    # On one device what already has its type is not copied: it is counted where it lies, unless it leaves from there.
    taken = placement.taken(*encoders)
    stay = {id(leaf) for leaf in jax.tree.leaves(encoders[1] if leaves else encoders)}
    shared = bytes_per_device([leaf for leaf in taken if id(leaf) in stay])
    gathered = Work(
        name="parameters of this host",
        phase="rollout",
        # What is not trained is gathered once, at the start.
        lower=lambda: everywhere.gathering(policy.trainable, types[0], own).lower(
            everywhere.abstract(policy.trainable)
        ),
        count=1,
        arguments=leaving,
        kept=True,
    )
    work = (
        *([] if hosts == 1 else [gathered]),
        Work(
            name="copy for rollout",
            phase="rollout",
            lower=lambda: placement.lower(*encoders),
            count=1,
            arguments=leaving + own_trained,
            kept=True,
            moved=bytes_per_device(encoders) + bytes_per_device(calls.params) - 2 * bytes_per_device(taken),
        ),
        Work(
            name="vision",
            phase="rollout",
            lower=lambda: encode.lower(*encoders, seen),
            count=-(-of_step // micro),
            # Prompts are looked at while others decode.
            arguments=part + max(bytes_per_device(first.state), own_trained),
            kept=True,
            attention="vision" in model.spec.head_sizes,
            moved=bytes_per_device((seen, features)),
        ),
        Work(
            name="prefill",
            phase="rollout",
            lower=first.fill,
            count=-(-of_step // (hosts * first.groups_per_fill)),
            arguments=part + bytes_per_device(first.state),
            attention=True,
            seen=_seen_before(sizes.tokens, config.rollout.prefill_chunk),
            moved=everything
            + first.groups_per_fill * bytes_per_device(first.state.prompt) // first.state.done.shape[0],
        ),
        decode(calls, config.rollout.max_completion_length, -(-of_step // at_once) * (decoded - brief)),
        *([decode(first, config.rollout.short_length, -(-of_step // short) * brief)] if short else []),
    )
    replicas = mesh.shape[DATA_AXIS]
    decoding = Decoding(
        buckets=sampler.buckets(replicas),
        short=sampler.short_buckets(replicas),
        replicas=replicas,
        groups=-(-of_step // hosts),
        captions=sizes.captions,
        chunk=config.rollout.chunk,
        parameters=everything,
        prompt=bytes_per_device(calls.state.prompt) * replicas // slots,
        column=bytes_per_device(calls.state.captions) * replicas / (slots * sizes.captions * stored),
        block=policy.kernel.range_block,
    )
    return Rollout(work, decoding, own_frozen, bytes_per_device(calls.params) - shared)


def decoder_bytes(config: RunConfig, policy: AbstractPolicy) -> int:
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
