"""Names of hardware, and what they stand for."""

from __future__ import annotations

import pytest

from vcap_jax.kernels.attention import OWN, OWN_DECODING
from vcap_jax.system.hardware import CHIPS, Chip, UnknownHardware, chip_of, hardware, known_names, larger


def test_a_node_of_gpus() -> None:
    node = hardware("h800x8")
    assert (node.devices, node.hosts, node.per_host, node.topology) == (8, 1, 8, "1x1x8")
    assert node.link == CHIPS["h800"].link < hardware("h100x8").link


def test_nodes_talk_over_the_network() -> None:
    two = hardware("h100x16")
    assert (two.hosts, two.topology, two.host_topology) == (2, "1x2x8", "1x1x8")
    assert two.link == CHIPS["h100"].network


def test_slices_count_cores_or_chips_as_the_cloud_does() -> None:
    assert hardware("v5p-16").devices == 8
    assert hardware("v5p-16").host_topology == "v5p:2x2x1"
    assert hardware("v5e-16").devices == 16
    assert (hardware("v6e-8").hosts, hardware("v6e-16").hosts) == (1, 4)


@pytest.mark.parametrize("name", ["h800", "h800x12", "h800x0", "v5p-7", "v9-8", "nonex8", ""])
def test_what_is_not_known_is_named_with_what_is(name: str) -> None:
    with pytest.raises(ValueError, match=rf"known: {', '.join(known_names())}$|whole nodes"):
        hardware(name)


def test_every_listed_name_is_taken_and_fits_sixteen_chips() -> None:
    machines = [hardware(name.replace("xN", "x8")) for name in known_names()]
    assert all(machine.devices <= 16 and machine.devices % machine.hosts == 0 for machine in machines)


def test_larger_hardware_is_of_the_same_chip_and_ends() -> None:
    machine, seen = hardware("v5p-8"), []
    while machine is not None:
        seen.append(machine.devices)
        assert machine.chip.name == "v5p"
        machine = larger(machine)
    assert seen == [4, 8, 16]
    assert larger(hardware("h100x4")).devices == 8


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA L4", None),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v4", None),
        ("cpu", None),
    ],
)
def test_devices_by_what_jax_calls_them(kind: str, name: str | None) -> None:
    assert chip_of(kind) == (None if name is None else CHIPS[name])


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_every_entry_is_whole(chip: Chip) -> None:
    assert set(chip.kernels) <= {OWN[chip.platform]}
    assert set(chip.decode_kernels) <= {OWN_DECODING[chip.platform]}
    assert chip.peak("bfloat16") >= chip.peak("float32") > 0
    with pytest.raises(UnknownHardware, match="bfloat16, float32, not in int4"):
        chip.peak("int4")
    assert 0.5 < chip.usable <= 1
    if chip.platform == "cuda":
        assert chip.processor is not None
        assert 0 < chip.judges < chip.per_host
    else:
        assert chip.kinds
        assert {s.chips_per_host for s in chip.slices.values()} <= {s.chips for s in chip.slices.values()}
