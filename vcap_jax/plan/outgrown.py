"""The host memory of groups whose captions outgrow the short caches (``rollout.short_groups``), counted from shapes."""

from __future__ import annotations

import dataclasses

import jax
from jax.sharding import NamedSharding, PartitionSpec

from vcap_jax.plan.abstract import (
    Model,
    abstract_prompt,
    bytes_per_device,
    largest_sizes,
    parameters_anywhere,
    placed,
)
from vcap_jax.rollout.decode_state import DATA_AXIS
from vcap_jax.rollout.placement import local_mesh, own_types
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.run.config import RunConfig

_SLOTS = 2
"""Short caches are of more groups than long ones, so at least of two."""


def outgrown_bytes(config: RunConfig, model: Model) -> int:
    """Bytes of a process's memory while every one of its groups of a step waits, each with the largest prompt; 0
    without short caches.

    A group waits with all that a slot of the sampler's state has: its prompt, its captions in short caches, where its
    draws stand (``rollout.parking``). Nothing is put on a device. Raises PlanningError if no largest prompt is set.
    """
    if not config.rollout.short_groups:
        return 0
    policy = parameters_anywhere(config, model)
    mesh = local_mesh(1, jax.local_devices(backend="cpu")[:1])
    trained = (policy.trainable, policy.frozen)
    types = tuple(own_types(policy.graphdef, tree, config.model.dtype) for tree in trained)
    narrow = jax.tree.map(lambda x, dtype: jax.ShapeDtypeStruct(x.shape, dtype), trained, types)
    params, frozen = placed(narrow, NamedSharding(mesh, PartitionSpec()))
    sizes = largest_sizes(config, model)
    prompt = placed(abstract_prompt(config, model, sizes, 1), NamedSharding(mesh, PartitionSpec(DATA_AXIS)))
    sampler = GroupSampler(
        policy.graphdef,
        dataclasses.replace(config.rollout, groups_per_batch=1, short_groups=_SLOTS),
        end_ids=(model.spec.end_token_id or 0,),
        banned_ids=model.spec.special_token_ids,
        mesh=mesh,
    )
    state = sampler.abstract_calls(params, frozen, prompt, None, short=True).state
    groups = -(-config.grpo.groups_per_step // (config.distributed.processes or 1))
    return groups * bytes_per_device(state) // _SLOTS
