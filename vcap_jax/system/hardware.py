"""The table of hardware targets: whatever depends on the kind of chip is read from here, and stands nowhere else.

A chip is one entry of ``CHIPS``. A target is named by chip and count: ``h800x8`` is a node of eight GPUs (beyond eight:
several such nodes), ``v5p-16`` is the cloud's name of a TPU slice, which counts cores on v5p (two to a chip) and chips
on v5e and v6e. Read by planning, by the checks before a run, by the launch scripts (launch/target.py) and by the
benchmarks; docs/add_a_hardware_target.md says how to add one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from vcap_jax.system.errors import VCapError

GIB = 2**30


class UnknownHardware(VCapError, ValueError):
    """Hardware, or a figure of it, that the table does not have; the message says what it has."""


@dataclass(frozen=True, kw_only=True)
class GpuProcessor:
    """What XLA's CUDA backend must know of a GPU to compile for one that is not here.

    Sizes are in bytes, ``clock_ghz`` in GHz. Source: the card's CUDA device properties; ``board`` is the name that the
    driver gives the card the properties were read from.
    """

    board: str
    capability: int
    cores: int
    fpus_per_core: int
    clock_ghz: float
    shared_memory_per_core: int
    shared_memory_per_block: int
    l2_cache: int


HOPPER = GpuProcessor(
    board="NVIDIA H100 80GB HBM3",
    capability=9,
    cores=132,
    fpus_per_core=128,
    clock_ghz=1.98,
    shared_memory_per_core=233472,
    shared_memory_per_block=232448,
    l2_cache=52428800,
)
AMPERE = GpuProcessor(
    board="NVIDIA A100-SXM4-80GB",
    capability=8,
    cores=108,
    fpus_per_core=64,
    clock_ghz=1.41,
    shared_memory_per_core=167936,
    shared_memory_per_block=166912,
    l2_cache=41943040,
)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A slice that the cloud offers. shape: of its chips, as JAX's topology descriptions take it."""

    shape: str
    chips: int
    chips_per_host: int


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator, as its maker publishes it (TPUs: cloud.google.com/tpu/docs, of several figures the lower).

    name: of targets, and of GPUs also the word in the driver's name for the card. kinds: what JAX calls a TPU
    (``device.device_kind``). platform: XLA's.

    memory: bytes that programs may use in the best case (what the driver or the TPU runtime leaves of the card).
    usable: share of it that a run takes; the rest is the driver's, its libraries' workspaces and fragmentation.
    flops: dense operations per second, by the type of the factors ("float32" is what JAX computes by default with
    float32 arrays: TensorFloat-32 on GPUs, one bfloat16 pass on TPUs).
    bandwidth: bytes per second between memory and cores. link: bytes per second that one chip sends to its neighbours
    in a node or slice, all its links together, one way. network: bytes per second and chip between nodes (GPUs; a slice
    has links throughout). host_link: bytes per second and chip to the host's memory, one way (PCIe; see
    ``host_link_estimated``). host_memory: bytes of the host's memory for each of its chips.

    kernels, decode_kernels: the platform's own attention kernels that run on it (``kernels.attention``), for whole
    sequences and for new tokens; "dense" and "chunked" run everywhere. per_host: chips of a whole node. judges: of
    those of a node of GPUs, how many the launch scripts give to the judge. processor: of a GPU. slices: of a TPU, by
    the number in the target's name.
    """

    name: str
    platform: Literal["cuda", "tpu"]
    memory: int
    flops: Mapping[str, float]
    bandwidth: float
    link: float
    host_link: float
    host_memory: int
    per_host: int
    kernels: tuple[str, ...]
    decode_kernels: tuple[str, ...] = ()
    network: float = 0.0
    usable: float = 1.0
    judges: int = 0
    kinds: tuple[str, ...] = ()
    processor: GpuProcessor | None = None
    slices: Mapping[int, Slice] = field(default_factory=dict)

    @property
    def host_link_estimated(self) -> bool:
        """A TPU's is: its maker gives none."""
        return self.platform == "tpu"

    def peak(self, dtype: str) -> float:
        """``flops`` of a type. Raises UnknownHardware for one that the table does not say."""
        if dtype not in self.flops:
            raise UnknownHardware(
                f"the peak of {self.name} is known in {', '.join(self.flops)}, not in {dtype}"
            )
        return self.flops[dtype]


_A100 = Chip(
    # The SXM card of 80 GB; its nodes have adapters of 200 Gb/s and PCIe of the fourth generation.
    name="a100",
    platform="cuda",
    memory=85_100_068_864,
    usable=0.92,
    flops={"bfloat16": 312e12, "float32": 156e12},
    bandwidth=2.039e12,
    link=300e9,
    network=25e9,
    host_link=26e9,
    host_memory=256 * GIB,
    per_host=8,
    judges=2,
    kernels=("cudnn",),
    processor=AMPERE,
)
_H100 = replace(
    _A100,
    name="h100",
    memory=84_942_979_072,
    flops={"bfloat16": 989e12, "float32": 494.7e12},
    bandwidth=3.35e12,
    link=450e9,
    network=50e9,  # one 400 Gb/s adapter per GPU
    host_link=55e9,
    decode_kernels=("hopper",),
    processor=HOPPER,
)
_V5E = Chip(
    name="v5e",
    platform="tpu",
    kinds=("TPU v5 lite", "TPU v5e"),
    memory=int(15.75 * GIB),
    flops={"bfloat16": 197e12, "float32": 197e12},
    bandwidth=0.819e12,
    link=200e9,
    host_link=25e9,
    host_memory=48 * 10**9,
    per_host=4,
    kernels=("splash",),
    decode_kernels=("tpu",),
    slices={
        1: Slice(shape="1x1", chips=1, chips_per_host=1),
        4: Slice(shape="2x2", chips=4, chips_per_host=4),
        8: Slice(shape="2x4", chips=8, chips_per_host=8),
        16: Slice(shape="4x4", chips=16, chips_per_host=4),
    },
)
CHIPS = {
    chip.name: chip
    for chip in (
        _A100,
        _H100,
        replace(_H100, name="h800", link=200e9),  # an H100 with fewer links
        replace(_H100, name="h200", memory=150_754_820_096, bandwidth=4.8e12),
        _V5E,
        replace(
            _V5E,
            name="v6e",
            kinds=("TPU v6 lite", "TPU v6e"),
            memory=int(31.25 * GIB),
            flops={"bfloat16": 918e12, "float32": 918e12},
            bandwidth=1.6e12,
            link=400e9,
            host_memory=180 * 10**9,
        ),
        replace(
            _V5E,
            name="v5p",
            kinds=("TPU v5", "TPU v5p"),
            memory=int(95.74 * GIB),
            flops={"bfloat16": 459e12, "float32": 459e12},
            bandwidth=2.765e12,
            link=600e9,
            host_memory=112 * 10**9,
            slices={
                8: Slice(shape="2x2x1", chips=4, chips_per_host=4),
                16: Slice(shape="2x2x2", chips=8, chips_per_host=4),
                32: Slice(shape="2x2x4", chips=16, chips_per_host=4),
            },
        ),
    )
}
"""Every chip by its name. A new one is one more entry."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A target: a node, several nodes, or a slice.

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
    def judges(self) -> int:
        """Of a node's GPUs, how many the launch scripts give to the judge: none where they would leave no other."""
        return self.chip.judges if self.per_host > self.chip.judges else 0

    @property
    def link(self) -> float:
        """Bytes per second and chip at which collectives over all devices can run."""
        spans_nodes = self.chip.platform == "cuda" and self.hosts > 1
        return self.chip.network if spans_nodes else self.chip.link

    @property
    def host_memory(self) -> int:
        """Bytes of one host's memory."""
        return self.per_host * self.chip.host_memory


def hardware(name: str) -> Hardware:
    """The hardware a name stands for. Raises UnknownHardware, with the names there are, for one that is not known."""
    found = re.fullmatch(r"([a-z0-9]+)([x-])([0-9]+)", name)
    if found and (chip := CHIPS.get(found[1])) is not None:
        count = int(found[3])
        if found[2] == "x" and chip.platform == "cuda":
            return gpus(chip, count)
        if found[2] == "-" and count in chip.slices:
            return _slice(chip, count)
    raise UnknownHardware(f"unknown hardware {name!r}; known: {', '.join(known_names())}")


def known_names() -> list[str]:
    """Every kind of name ``hardware`` takes."""
    names = [f"{chip.name}xN" for chip in CHIPS.values() if chip.platform == "cuda"]
    return names + [f"{chip.name}-{size}" for chip in CHIPS.values() for size in chip.slices]


def chip_of(kind: str) -> Chip | None:
    """The chip of a device by what JAX calls it ("NVIDIA H100 80GB HBM3", "TPU v5 lite"); None of one not known.

    Cards of the same processor on a slower board (PCIe, NVL) have figures of their own and are not known.
    """
    words = () if re.search("PCIe|NVL", kind) else kind.split()

    def is_one(chip: Chip) -> bool:
        # Some boards are named in one word: A100-SXM4-80GB, beside which there is one of 40 GB.
        board = None if chip.processor is None else chip.processor.board
        return chip.name.upper() in words or kind in chip.kinds or kind == board

    return next(filter(is_one, CHIPS.values()), None)


def gpus(chip: Chip, count: int) -> Hardware:
    """``count`` GPUs: one node, or whole nodes. Raises UnknownHardware for a count that fills no whole nodes."""
    hosts = -(-count // chip.per_host)
    if count < 1 or count % hosts or (hosts > 1 and count % chip.per_host):
        raise UnknownHardware(
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


def _slice(chip: Chip, size: int) -> Hardware:
    whole = chip.slices[size]
    one_host = next(s.shape for s in chip.slices.values() if s.chips == whole.chips_per_host)
    return Hardware(
        name=f"{chip.name}-{size}",
        chip=chip,
        devices=whole.chips,
        hosts=whole.chips // whole.chips_per_host,
        topology=f"{chip.name}:{whole.shape}",
        host_topology=f"{chip.name}:{one_host}",
    )


def larger(machine: Hardware) -> Hardware | None:
    """The next larger hardware of the same chip, or None beyond sixteen chips."""
    chip = machine.chip
    sizes = [_slice(chip, n) for n in chip.slices] or [gpus(chip, n) for n in (2, 4, 8, 16)]
    return next((bigger for bigger in sizes if bigger.devices > machine.devices), None)
