"""What waits in the host's memory while captions are drawn (``rollout.offload``): its bytes, the seconds of its copies,
and the pool that XLA takes it from.

Counted from shapes and the rules that cut them, device by device. Devices of ahead-of-time compilation list no
memories, and a sharding of theirs loses its kind of memory without a word; so nothing is counted by one. What a program
of the rollout finds in memory is what is left when this is taken away. That the hardware takes it is tried with a
program that names the host's memory itself (``sending``): the compiler must have put its results there, to the last
byte. Groups whose captions outgrow the short caches wait there too (``rollout.short_groups``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Lowered

from vcap_jax.parallel.sharding import Rule, axis_sizes, dotted_path, partition
from vcap_jax.plan.abstract import (
    Model,
    abstract_prompt,
    bytes_per_device,
    largest_sizes,
    parameters_anywhere,
    placed,
)
from vcap_jax.plan.targets import PlanningError
from vcap_jax.rollout.config import Offloaded
from vcap_jax.rollout.decode_state import DATA_AXIS
from vcap_jax.rollout.placement import local_mesh, own_types
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import GIB, Hardware
from vcap_jax.training.optimizer import build_optimizer

POOL = 64 * GIB
"""Bytes of pinned host memory that XLA gives the arrays of one GPU at most, unless ``POOL_VARIABLE`` says otherwise."""
POOL_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
"""XLA's environment variable for that, in GiB; read when JAX finds the GPUs."""

_ENDLESS = 10**6
_SLOTS = 2
"""Short caches are of more groups than long ones, so at least of two."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What waits, as the plan tells it.

    parts: bytes per device by ``Offloaded``. states: bytes per device that a gradient leaves in the same pool
    (``model.remat: offload`` and those that begin so). hardware: of policy and update. host_memory: bytes of each
    host, the judge's share included.
    """

    parts: Mapping[Offloaded, int]
    states: int
    hardware: Hardware
    host_memory: int

    @property
    def together(self) -> int:
        """Bytes per device that the devices have for captions instead."""
        return sum(self.parts.values())

    @property
    def on_host(self) -> int:
        """Bytes of each host's memory."""
        return self.together * self.hardware.per_host

    @property
    def fits(self) -> bool:
        """Whether a host has as much, whatever else it holds (see ``vcap preflight``)."""
        return self.on_host <= self.host_memory

    @property
    def out_seconds(self) -> float:
        """Of the copies from a device in a step, at the link's peak. The reference never changes, and is copied once in
        a run."""
        return (self.together - self.parts.get("reference", 0)) / self.hardware.chip.host_link

    @property
    def back_seconds(self) -> float:
        """Of the copies to a device in a step, at the link's peak."""
        return self.together / self.hardware.chip.host_link

    @property
    def seconds(self) -> float:
        """Of a step's copies, if nothing of them was hidden behind other work."""
        return self.out_seconds + self.back_seconds

    @property
    def pool(self) -> int:
        """GiB that XLA's pool must be allowed for each device, 0 where its own limit will do."""
        return pool_needed(self.together + self.states) if self.hardware.chip.platform == "cuda" else 0


def pool_needed(pinned: int, limit: int = POOL) -> int:
    """GiB for ``POOL_VARIABLE`` where so many bytes of a device wait in pinned memory and the pool may have ``limit``;
    0 if that will do. A tenth more than what is known: the pool gives out whole blocks."""
    return 0 if pinned <= limit else math.ceil(1.1 * pinned / GIB)


def named(
    offload: Sequence[Offloaded], parameters: object, optimizer: object, reference: object
) -> dict[Offloaded, object]:
    """Those of the three trees that wait."""
    trees: dict[Offloaded, object] = {
        "optimizer": optimizer,
        "reference": reference,
        "parameters": parameters,
    }
    return {name: trees[name] for name in offload}


def sending(trees: object) -> Lowered:
    """A program that copies trees, abstract with shardings, to the host's memory, as the run does without a program."""
    return jax.jit(lambda tree: jax.device_put(tree, jax.memory.Space.Host)).lower(trees)


def check_sending(lowered: Lowered, expected: int, platform: str) -> None:
    """Compiles ``sending``. expected: bytes per device. platform: of its devices; compilers for CPUs do not say which
    memory is whose. Raises PlanningError if anything was left on the devices."""
    memory = lowered.compile().memory_analysis()
    assert memory is not None  # backends that are planned for give it
    require_on_host(expected if platform == "cpu" else memory.host_output_size_in_bytes, expected)


def require_on_host(found: int, expected: int) -> None:
    """Raises PlanningError if less was put into the host's memory than is to wait there. Bytes per device."""
    if found < expected:
        raise PlanningError(
            f"of the {expected:,} bytes of rollout.offload the compiler puts {found:,} into the host's memory, and the "
            "others stay on the device: this hardware cannot be planned with it. Set rollout.offload=[]"
        )


def waiting_bytes(config: RunConfig, model: Model, devices: int) -> dict[Offloaded, int]:
    """Bytes per device of what waits, on a mesh over ``devices`` of all processes, none of which need be there.

    Raises ValueError if the mesh does not fit them.
    """
    policy = parameters_anywhere(config, model)
    moments = jax.eval_shape(build_optimizer(config.optimizer, _ENDLESS).init, policy.trainable)
    sizes, rules = axis_sizes(config.mesh, devices), model.family.partition_rules
    trees = named(config.rollout.offload, policy.trainable, moments, policy.reference)
    return {name: _cut(tree, sizes, rules) for name, tree in trees.items()}


def _cut(tree: object, sizes: Mapping[str, int], rules: Sequence[Rule]) -> int:
    """Bytes of a tree on each device, cut as ``Placement`` cuts it."""
    total = 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        spec = partition(dotted_path(path), leaf.shape, sizes, rules).spec
        names = [name for entry in spec if entry for name in ((entry,) if isinstance(entry, str) else entry)]
        total += leaf.size * leaf.dtype.itemsize // math.prod(sizes[name] for name in names)
    return total


def outgrown_bytes(config: RunConfig, model: Model) -> int:
    """Bytes of a process's memory while as many groups wait as ever can, each with the largest prompt; 0 without short
    caches. These are its groups of a step, or those that it decodes side by side in short caches if they are more: so
    many begin where references or held-out captions are written.

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
        logprobs=True,
    )
    state = sampler.abstract_calls(params, frozen, prompt, None, short=True).state
    processes = config.distributed.processes or 1
    groups = max(-(-config.grpo.groups_per_step // processes), config.rollout.share(processes).short_groups)
    return groups * bytes_per_device(state) // _SLOTS
