"""What the chips can do: memory, arithmetic and links, as their makers publish them.

A name is a chip and a count: ``h800x8`` is a node of eight GPUs (beyond eight: several such nodes), ``v5p-16`` is
the cloud's name of a TPU slice, which counts cores on v5p (two to a chip) and chips on v5e and v6e.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vcap_jax.plan.errors import PlanningError

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator.

    memory: bytes that programs may use in the best case (what the driver or the TPU runtime leaves of the card).
    flops: dense bfloat16 operations per second. bandwidth: bytes per second between memory and cores.
    link: bytes per second that one chip sends to its neighbours in a node or slice, all its links together, one
    way. network: bytes per second and chip between nodes (GPUs; a slice has links throughout). host_link: bytes per
    second and chip to the host's memory, one way (PCIe; see ``host_link_estimated``).
    """

    name: str
    platform: Literal["cuda", "tpu"]
    memory: int
    flops: float
    bandwidth: float
    link: float
    network: float
    per_host: int
    host_link: float

    @property
    def host_link_estimated(self) -> bool:
        """A TPU's is: its maker gives none."""
        return self.platform == "tpu"


_GPU_NETWORK = 50e9  # one 400 Gb/s adapter per GPU

CHIPS = {
    chip.name: chip
    for chip in (
        # The SXM card of 80 GB; its nodes have adapters of 200 Gb/s and PCIe of the fourth generation.
        Chip(
            name="a100",
            platform="cuda",
            memory=85_100_068_864,
            flops=312e12,
            bandwidth=2.039e12,
            link=300e9,
            network=25e9,
            per_host=8,
            host_link=26e9,
        ),
        Chip(
            name="h100",
            platform="cuda",
            memory=84_942_979_072,
            flops=989e12,
            bandwidth=3.35e12,
            link=450e9,
            network=_GPU_NETWORK,
            per_host=8,
            host_link=55e9,
        ),
        # An H100 with fewer links.
        Chip(
            name="h800",
            platform="cuda",
            memory=84_942_979_072,
            flops=989e12,
            bandwidth=3.35e12,
            link=200e9,
            network=_GPU_NETWORK,
            per_host=8,
            host_link=55e9,
        ),
        Chip(
            name="h200",
            platform="cuda",
            memory=150_754_820_096,
            flops=989e12,
            bandwidth=4.8e12,
            link=450e9,
            network=_GPU_NETWORK,
            per_host=8,
            host_link=55e9,
        ),
        Chip(
            name="v5e",
            platform="tpu",
            memory=int(15.75 * GIB),
            flops=197e12,
            bandwidth=0.819e12,
            link=200e9,
            network=0.0,
            per_host=4,
            host_link=25e9,
        ),
        Chip(
            name="v5p",
            platform="tpu",
            memory=int(95.74 * GIB),
            flops=459e12,
            bandwidth=2.765e12,
            link=600e9,
            network=0.0,
            per_host=4,
            host_link=25e9,
        ),
        Chip(
            name="v6e",
            platform="tpu",
            memory=int(31.25 * GIB),
            flops=918e12,
            bandwidth=1.64e12,
            link=448e9,
            network=0.0,
            per_host=4,
            host_link=25e9,
        ),
    )
}

# Slices the cloud offers up to sixteen chips: shape of the chips, and chips per host.
_SLICES: dict[str, dict[int, tuple[str, int]]] = {
    "v5e": {1: ("1x1", 1), 4: ("2x2", 4), 8: ("2x4", 8), 16: ("4x4", 4)},
    "v6e": {1: ("1x1", 1), 4: ("2x2", 4), 8: ("2x4", 8), 16: ("4x4", 4)},
    "v5p": {8: ("2x2x1", 4), 16: ("2x2x2", 4), 32: ("2x2x4", 4)},
}
_CORES_PER_CHIP = {"v5p": 2}


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A node, several nodes, or a slice.

    name: as given. devices: how many JAX sees. hosts: processes, ``devices / hosts`` devices each.
    topology: of all devices; host_topology: of one host's, both as JAX's topology descriptions take them.
    """

    name: str
    chip: Chip
    devices: int
    hosts: int
    topology: str
    host_topology: str

    @property
    def per_host(self) -> int:
        return self.devices // self.hosts

    @property
    def link(self) -> float:
        """Bytes per second and chip at which collectives over all devices can run."""
        spans_nodes = self.chip.platform == "cuda" and self.hosts > 1
        return self.chip.network if spans_nodes else self.chip.link


def hardware(name: str) -> Hardware:
    """The hardware a name stands for. Raises PlanningError, with the names there are, for one that is not known."""
    gpu = re.fullmatch(r"([ah]\d+)x(\d+)", name)
    if gpu and gpu[1] in CHIPS:
        return gpus(CHIPS[gpu[1]], int(gpu[2]))
    tpu = re.fullmatch(r"(v\d+[a-z]+)-(\d+)", name)
    if tpu and int(tpu[2]) in _SLICES.get(tpu[1], {}):
        return _slice(tpu[1], int(tpu[2]))
    raise PlanningError(f"unknown hardware {name!r}; known: {', '.join(known_names())}")


def known_names() -> list[str]:
    """Every kind of name ``hardware`` takes."""
    names = [f"{chip.name}xN" for chip in CHIPS.values() if chip.platform == "cuda"]
    return names + [f"{chip}-{size}" for chip, sizes in _SLICES.items() for size in sizes]


def gpus(chip: Chip, count: int) -> Hardware:
    """``count`` GPUs: one node, or whole nodes. Raises PlanningError for a count that fills no whole nodes."""
    hosts = -(-count // chip.per_host)
    if count < 1 or count % hosts or (hosts > 1 and count % chip.per_host):
        raise PlanningError(
            f"{chip.name}x{count}: give 1 to {chip.per_host} GPUs, or whole nodes of {chip.per_host}"
        )
    return Hardware(
        name=f"{chip.name}x{count}",
        chip=chip,
        devices=count,
        hosts=hosts,
        topology=f"1x{hosts}x{count // hosts}",
        host_topology=f"1x1x{count // hosts}",
    )


def _slice(chip: str, size: int) -> Hardware:
    shape, per_host = _SLICES[chip][size]
    devices = size // _CORES_PER_CHIP.get(chip, 1)
    one_host = next(s for n, (s, _) in _SLICES[chip].items() if n // _CORES_PER_CHIP.get(chip, 1) == per_host)
    return Hardware(
        name=f"{chip}-{size}",
        chip=CHIPS[chip],
        devices=devices,
        hosts=devices // per_host,
        topology=f"{chip}:{shape}",
        host_topology=f"{chip}:{one_host}",
    )


def larger(machine: Hardware) -> Hardware | None:
    """The next larger hardware of the same chip, or None beyond sixteen chips."""
    if machine.chip.platform == "cuda":
        count = next((n for n in (2, 4, 8, 16) if n > machine.devices), None)
        return None if count is None else gpus(machine.chip, count)
    size = next(
        (n for n in _SLICES[machine.chip.name] if _slice(machine.chip.name, n).devices > machine.devices),
        None,
    )
    return None if size is None else _slice(machine.chip.name, size)
