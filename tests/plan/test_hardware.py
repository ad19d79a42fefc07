"""Names of hardware, and what they stand for."""

from __future__ import annotations

import pytest

from vcap_jax.plan.hardware import CHIPS, hardware, known_names, larger


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


@pytest.mark.parametrize("name", ["h800", "h800x12", "h800x0", "v5p-7", "v9-8", "b200x8", ""])
def test_what_is_not_known_is_named_with_what_is(name: str) -> None:
    with pytest.raises(ValueError, match=r"known: a100xN, h100xN|whole nodes"):
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
