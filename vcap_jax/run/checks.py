"""What a training needs of its settings, processes and devices, told before any work is done."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Mapping

import jax

from vcap_jax.configuration import ConfigError
from vcap_jax.kernels.attention import OWN, OWN_DECODING, UnsupportedAttention, check_tensor
from vcap_jax.parallel.host_memory import HOST, has_host_memory
from vcap_jax.parallel.processes import Processes
from vcap_jax.parallel.sharding import GROUP_AXES, MeshConfig, Placement
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Chip, chip_of

logger = logging.getLogger(__name__)

_FIXED_ORDER = ("--xla_gpu_deterministic_ops", "--xla_gpu_exclude_nondeterministic_ops")
"""Either of XLA's flags has it add in one order, whatever that costs."""


def check_run(config: RunConfig, processes: Processes) -> None:
    """Raises ConfigError for settings that GRPO cannot be done with by these processes, on their devices."""
    check_settings(config)
    check_processes(config, processes.count)
    placement = mesh_placement(config.mesh)
    check_offload(config, placement.mesh.local_devices[0])
    if (chip := chip_of(placement.mesh.devices.flat[0].device_kind)) is not None:
        check_target(config, chip)
    check_equal_shares(config.groups_at_once, processes, placement, embedded=config.data.manifest is None)


def repeats_exactly(platform: str, xla_flags: str) -> bool:
    """Whether programs give the same bits each time they run, as far as JAX's platform and XLA's flags tell."""
    # The last of several counts; a bare one is true.
    given = dict(flag.partition("=")[::2] for flag in xla_flags.split())
    return platform != "gpu" or any(
        given.get(flag, "0").lower() in ("", "1", "true") for flag in _FIXED_ORDER
    )


def check_offload(config: RunConfig, device: jax.Device) -> None:
    """Raises ConfigError if ``rollout.offload`` asks for memory that devices such as this cannot reach."""
    if config.rollout.offload and not has_host_memory(device):
        kinds = ", ".join(memory.kind for memory in device.addressable_memories()) or "none that it names"
        raise ConfigError(
            f"rollout.offload is {list(config.rollout.offload)}, but {device.device_kind} has no memory of the "
            f"kind {HOST}: it has {kinds}. Set rollout.offload=[]"
        )


def check_target(config: RunConfig, chip: Chip) -> None:
    """Raises ConfigError for attention kernels that do not run on the chip, by the table of hardware, or not
    on this mesh."""
    decoding = config.model.decode_attention
    if decoding in OWN_DECODING.values() and decoding not in chip.decode_kernels:
        others = " or ".join((*chip.decode_kernels, "auto"))
        raise ConfigError(
            f"model.decode_attention is {decoding}, which does not run on {chip.name}; set {others}"
        )
    name = config.model.attention
    kernel = OWN[chip.platform] if name == "auto" else name
    if kernel in OWN.values() and kernel not in chip.kernels:
        meant = f"{name}, here {kernel}" if name == "auto" else name
        others = ", ".join((*chip.kernels, "chunked"))
        raise ConfigError(
            f"model.attention is {meant}, which does not run on {chip.name}; set one of {others}"
        )
    if name == "auto" and config.model.dtype == "float32":
        return  # which takes the chunked one
    try:
        check_tensor(kernel, config.mesh.tensor)
    except UnsupportedAttention as error:
        raise ConfigError(str(error)) from None


def check_settings(config: RunConfig) -> None:
    """Raises ConfigError for settings that GRPO cannot be done with, whoever does it."""
    grpo = config.grpo
    if config.rollout.group_size < 2:
        raise ConfigError(
            f"rollout.group_size is {config.rollout.group_size}: GRPO compares the captions of a group with "
            "each other, so it takes at least 2 (paper: 8)"
        )
    # The gradient of the tower would be zero, and only weight decay would move it.
    if "visual" not in config.model.frozen:
        raise ConfigError(
            f"model.frozen is {list(config.model.frozen)}: reinforcement learning computes visual features once per "
            "group, outside of the gradient, and cannot train what is under visual; keep visual in model.frozen, or "
            "train the tower by supervised learning first (launch/sft.py)"
        )
    if "reference" in config.rollout.offload and grpo.objective.beta == 0:
        raise ConfigError(
            f"rollout.offload is {list(config.rollout.offload)}, but grpo.objective.beta is 0: there is no "
            "reference policy that could wait in the host's memory; leave reference out"
        )
    _check_gradient_type("grpo", config.model.param_dtype, grpo.groups_per_step, grpo.groups_per_micro_batch)


def check_processes(config: RunConfig, count: int) -> None:
    """Raises ConfigError for settings that GRPO cannot be done with by ``count`` processes."""
    _check_alone(config, count, ahead=config.rollout.ahead)
    if config.grpo.groups_per_step % count:
        raise ConfigError(
            f"grpo.groups_per_step is {config.grpo.groups_per_step}, of {count} processes together; each "
            f"takes an equal share, so it must be a multiple of {count}"
        )


def check_sft_run(config: RunConfig, processes: Processes) -> None:
    """Raises ConfigError for settings that supervised fine-tuning cannot be done with by these processes, on their
    devices. A step is made of whole micro-batches, so what fits them fits it."""
    sft = config.sft
    _check_alone(config, processes.count)
    _check_gradient_type("sft", config.model.param_dtype, sft.groups_per_step, sft.groups_per_micro_batch)
    groups = {"sft.groups_per_micro_batch": sft.groups_per_micro_batch}
    embedded = config.data.manifest is None
    check_equal_shares(groups, processes, mesh_placement(config.mesh), embedded=embedded)


def mesh_placement(config: MeshConfig) -> Placement:
    """The placement on the devices of all processes. Raises ConfigError for a mesh that does not fit them."""
    try:
        placement = Placement.build(config)
        placement.local()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return placement


def check_same_attention(kernel: str, processes: Processes) -> None:
    """Raises UnsupportedAttention, in every process, unless all compute attention with the same kernel: ``auto``
    chooses by what a host has, and programs over all devices must be one and the same. All must call it together.

    kernel: this process's.
    """
    chosen = processes.all_gather_objects("attention", [kernel, socket.gethostname()])
    if len({name for name, _ in chosen}) == 1:
        return
    listed = ", ".join(f"{name} in process {index} on {host}" for index, (name, host) in enumerate(chosen))
    raise UnsupportedAttention(
        f"the processes of the run would compute attention differently: {listed}. A process that could not take its "
        "platform's own kernel has said above what its host lacks: mend that, or set model.attention=chunked for all"
    )


def check_equal_shares(
    batches: Mapping[str, int], processes: Processes, placement: Placement, *, embedded: bool = False
) -> None:
    """Raises ConfigError unless every process, and every device, can have an equal share of each batch.

    batches: setting -> groups, of all processes together. embedded: of the embedded world, whose groups are so small
        that the devices of one process may each compute all of them, as may a CPU's simulated devices.
    """
    small = embedded or placement.mesh.devices.flat[0].platform == "cpu"
    if processes.count == 1 and small:
        return
    ways = math.prod(placement.mesh.shape[axis] for axis in GROUP_AXES)
    whose = f"all {processes.count} processes together" if processes.count > 1 else "this process"
    for name, groups in batches.items():
        if groups % ways:
            raise ConfigError(
                f"{name} is {groups}, of {whose}; their {ways} devices can share it out only if it is a multiple of "
                f"{ways}"
            )


def _check_alone(config: RunConfig, count: int, *, ahead: int = 0) -> None:
    """Raises ConfigError for what is made for one process, where there are ``count``. ahead: of GRPO's rollout."""
    engine, sleeps = config.rollout.engine, config.judge.sleep_mode
    for used, what, why, instead in (
        (engine == "vllm", "rollout.engine is vllm", "none of which holds all weights", "rollout.engine=jax"),
        (
            ahead > 0,
            f"rollout.ahead is {ahead}",
            "each of which would have captions of its own to keep in a checkpoint",
            "rollout.ahead=0",
        ),
        (
            sleeps,
            "judge.sleep_mode is true",
            "each of which would have the judge sleep while others ask it",
            "judge.sleep_mode=false",
        ),
    ):
        if used and count > 1:
            raise ConfigError(
                f"{what} in a run of {count} processes, {why}; it is made for one. Set {instead}"
            )


def _check_gradient_type(section: str, param_dtype: str, step: int, micro_batch: int) -> None:
    """Gradients have the type of the parameters they are of, and so has their sum."""
    if param_dtype == "float32":
        return
    if step > micro_batch:
        raise ConfigError(
            f"model.param_dtype is {param_dtype}, in which the gradients of the {-(-step // micro_batch)} "
            f"micro-batches of a step would be added up ({section}.groups_per_step {step}, "
            f"{section}.groups_per_micro_batch {micro_batch}), and updates smaller than half of a parameter's "
            "last digit would be lost; set model.param_dtype=float32, and model.dtype=bfloat16 for the products"
        )
    logger.warning(
        "model.param_dtype is %s: an update that is smaller than half of a parameter's last digit (1/512 to 1/256 of "
        "it) is lost, which at usual learning rates are nearly all; set model.param_dtype=float32",
        param_dtype,
    )
