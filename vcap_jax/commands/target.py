"""Prints what the table of hardware says of a target, one NAME=VALUE on a line, for the launch scripts and people.

    python launch/target.py h800x8
    python launch/target.py            # the names there are

Needs Python alone, none of the package's dependencies. Sizes are in bytes, peaks in operations per second.
"""

from __future__ import annotations

from collections.abc import Sequence

from vcap_jax.run.command_line import command_parser, guarded, say, tell
from vcap_jax.system.hardware import Hardware, UnknownHardware, hardware, known_names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument(
        "target", nargs="?", help="such as h800x8 or v5p-16; left out, their names are printed"
    )
    name = parser.parse_args(arguments).target
    try:
        lines = known_names() if name is None else figures(hardware(name))
    except UnknownHardware as error:
        tell(f"error: {error}")
        return 2
    return guarded(lambda: say("\n".join(lines)), goes_on=False)


def figures(target: Hardware) -> list[str]:
    """Lines that a shell can read: no value has a blank or a quote."""
    chip = target.chip
    gpus = [str(index) for index in range(target.per_host)] if chip.platform == "cuda" else []
    policy = gpus[: len(gpus) - target.judges]
    told = {
        "chip": chip.name,
        "platform": chip.platform,
        "devices": target.devices,
        "hosts": target.hosts,
        "per_host": target.per_host,
        "gpus": ",".join(gpus),
        "policy_gpus": ",".join(policy),
        "judge_gpus": ",".join(gpus[len(policy) :]),
        "usable": chip.usable,
        "memory": chip.memory,
        "host_memory": target.host_memory,
        "kernels": ",".join(chip.kernels),
        **{f"peak_{dtype}": f"{peak:.0f}" for dtype, peak in chip.flops.items()},
    }
    return [f"target_{key}={value}" for key, value in told.items()]
