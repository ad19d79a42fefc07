"""Devices that are not here, for JAX's ahead-of-time compilation.

TPUs come as a topology of libtpu; GPUs as a description of the card, from which XLA's CUDA backend compiles
without one. Both live in the ``plan`` extra of the package.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vcap_jax.system.errors import VCapError
from vcap_jax.system.hardware import Chip

if TYPE_CHECKING:
    import jax


GPU_COMPILERS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
"""Packages with XLA's compiler for GPUs, of which one is enough: the extras ``plan`` and ``cuda13`` bring one each."""


class PlanningError(VCapError, ValueError):
    """A plan that was asked for and cannot be made; the message names what to give instead."""


class MissingPlugin(VCapError, RuntimeError):
    """The compiler for this hardware is not installed; the message names the extra that brings it."""


_DESCRIPTION = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory_per_core} threads_per_core_limit: 2048 core_count: {cores}
  fpus_per_core: {fpus_per_core} block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {l2_cache} clock_rate_ghz: {clock_ghz} device_memory_size: {memory}
  shared_memory_per_block_optin: {shared_memory_per_block} cuda_compute_capability {{ major: {capability} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{board}"
"""


def description(chip: Chip) -> str:
    """A GPU as XLA's text form of device descriptions. Raises PlanningError for a chip without a processor."""
    if chip.processor is None:
        raise PlanningError(
            f"{chip.name} has no processor in the table of hardware: XLA cannot compile for it"
        )
    return _DESCRIPTION.format(
        bandwidth=int(chip.bandwidth), memory=chip.memory, **dataclasses.asdict(chip.processor)
    )


def prepare_environment() -> None:
    """Settings that JAX reads when it is first imported: compile for other devices, run on the CPU.

    Call it before anything imports jax.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # The CUDA plugin looks for a driver to check its versions against.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    # libtpu otherwise asks the cloud's metadata server where it runs.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # It also takes itself for the machine's only user of TPUs; here it only compiles.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # A run has it where its devices are no power of two. How many are planned for is not known yet: all plans have it.
    from vcap_jax.parallel.sharding import flag_for_odd_meshes

    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag_for_odd_meshes()}".strip()


def devices(chip: Chip, topology: str) -> list[jax.Device]:
    """The devices of a topology (see ``hardware.Hardware``), to build a mesh over.

    Raises MissingPlugin if the compiler for the chip is not installed.
    """
    from jax.experimental import topologies

    if chip.platform == "tpu":
        _require(("libtpu",), "TPUs")
        return list(topologies.get_topology_desc(topology_name=topology, platform="tpu").devices)
    _require(GPU_COMPILERS, "GPUs")
    described = topologies.get_topology_desc(
        platform="cuda", topology_name=chip.name.upper(), topology=topology, target_config=description(chip)
    )
    return list(described.devices)


def _require(modules: Sequence[str], what: str) -> None:
    if not any(map(importlib.util.find_spec, modules)):
        raise MissingPlugin(
            f"planning for {what} needs the package {' or '.join(modules)}, which is not installed; "
            "give it an environment of its own, since it does not go with other extras: "
            'python3 -m venv .venv-plan && .venv-plan/bin/pip install -e ".[plan]"'
        )
