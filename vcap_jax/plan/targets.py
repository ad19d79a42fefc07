"""Devices that are not here, for JAX's ahead-of-time compilation.

TPUs come as a topology of libtpu; GPUs as a description of the card, from which XLA's CUDA backend compiles
without one. Both live in the ``plan`` extra of the package.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from vcap_jax.plan.hardware import Chip
from vcap_jax.system.errors import VCapError


class MissingPlugin(VCapError, RuntimeError):
    """The compiler for this hardware is not installed; the message names the extra that brings it."""


# XLA's device descriptions in text form. An H100, and the H800 and H200 made of the same processor; an A100.
_HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: {bandwidth} l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: {memory} shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: 9 }} registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_AMPERE = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 167936
  threads_per_core_limit: 2048 core_count: 108 fpus_per_core: 64 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: {bandwidth} l2_cache_size: 41943040
  clock_rate_ghz: 1.41 device_memory_size: {memory} shared_memory_per_block_optin: 166912
  cuda_compute_capability {{ major: 8 }} registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "NVIDIA A100-SXM4-80GB"
"""


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


def devices(chip: Chip, topology: str) -> list[Any]:
    """The devices of a topology (see ``hardware.Hardware``), to build a mesh over.

    Raises MissingPlugin if the compiler for the chip is not installed.
    """
    from jax.experimental import topologies

    if chip.platform == "tpu":
        _require("libtpu", "TPUs")
        return list(topologies.get_topology_desc(topology_name=topology, platform="tpu").devices)
    _require("jax_cuda12_plugin", "GPUs")
    description = _AMPERE if chip.name.startswith("a") else _HOPPER
    target = description.format(bandwidth=int(chip.bandwidth), memory=chip.memory)
    topology_description = topologies.get_topology_desc(
        platform="cuda", topology_name=chip.name.upper(), topology=topology, target_config=target
    )
    return list(topology_description.devices)


def _require(module: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingPlugin(
            f"planning for {what} needs the package {module}, which is not installed; "
            "give it an environment of its own, since its CUDA 12 does not go with other extras: "
            'python3 -m venv .venv-plan && .venv-plan/bin/pip install -e ".[plan]"'
        )
