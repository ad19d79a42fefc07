"""What a GPU does while a program runs, from JAX's profiler: how long it is busy, with how many kernels of which kinds.

Used by ``python benchmarks/gpu.py --trace``. A program whose kernels do not fill the time between the first and the
last waits for the host to start them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from jax.profiler import ProfileData

GPU_PLANE = "/device:GPU"
STREAM = "Stream"
LARGEST = 12
"""Kinds of kernels that are named; the others are summed."""


@dataclass(frozen=True)
class Kernel:
    """One run of a kernel or a copy; nanoseconds. program: that it belongs to, where the profile says so."""

    name: str
    start: float
    duration: float
    program: str = ""


def traced(run: Callable[[], Any]) -> list[Kernel]:
    """Runs it under the profiler and returns what the GPU did. Raises ValueError as ``kernels`` does."""
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (file,) = Path(folder).rglob("*.xplane.pb")
        return kernels(ProfileData.from_file(str(file)))


def kernels(profile: ProfileData) -> list[Kernel]:
    """All that ran on the streams of GPUs. Raises ValueError if the profile knows of no GPU."""
    lines = [
        line
        for plane in profile.planes
        if plane.name.startswith(GPU_PLANE)
        for line in plane.lines
        if line.name.startswith(STREAM)
    ]
    if not lines:
        raise ValueError(
            f"the profile has no {STREAM} of a {GPU_PLANE}: nothing ran there, or CUPTI is missing"
        )
    return [
        Kernel(event.name, event.start_ns, event.duration_ns, str(dict(event.stats).get("hlo_module", "")))
        for line in lines
        for event in line.events
    ]


def of_programs(ran: Iterable[Kernel]) -> dict[str, dict[str, Any]]:
    """``summary`` of each program's kernels by themselves, the longest first."""
    own: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in ran:
        own[kernel.program or "copies, and graphs"].append(kernel)
    found = {name: summary(kernels) for name, kernels in own.items()}
    return dict(sorted(found.items(), key=lambda one: -one[1]["busy_seconds"]))


def summary(ran: Iterable[Kernel]) -> dict[str, Any]:
    """Seconds from the first to the last, of them busy, how many ran, and count and seconds of each kind."""
    ran = sorted(ran, key=lambda kernel: kernel.start)
    if not ran:
        return {"kernels": 0, "seconds": 0.0, "busy_seconds": 0.0, "kinds": []}
    busy, until = 0.0, ran[0].start
    of_kind: dict[str, list[float]] = defaultdict(list)
    for kernel in ran:
        end = kernel.start + kernel.duration
        busy += max(0.0, end - max(kernel.start, until))
        until = max(until, end)
        of_kind[kind(kernel.name)].append(kernel.duration)
    kinds = sorted(of_kind.items(), key=lambda one: -sum(one[1]))
    rows: list[dict[str, Any]] = [
        {"kind": name, "kernels": len(times), "seconds": 1e-9 * sum(times)} for name, times in kinds
    ]
    rest = rows[LARGEST:]
    if rest:
        others = {key: sum(row[key] for row in rest) for key in ("kernels", "seconds")}
        rows = [*rows[:LARGEST], {"kind": f"{len(rest)} others", **others}]
    return {
        "kernels": len(ran),
        "seconds": 1e-9 * (until - ran[0].start),
        "busy_seconds": 1e-9 * busy,
        "kinds": rows,
    }


def kind(name: str) -> str:
    """A kernel's name without what numbers it: one name for the same kernel of all layers."""
    return re.sub(r"(?<=[a-z])(?:[._]\d+)+(?=$|_)", "", name)


def table(found: dict[str, Any]) -> str:
    """For people: a line for the whole, and one for each kind."""
    if not found["kernels"]:
        return "  nothing ran on the GPU"
    whole = found["seconds"]
    lines = [
        f"  {found['kernels']:,} kernels in {1e3 * whole:.2f} ms, the GPU busy for {found['busy_seconds'] / whole:.0%}"
    ]
    lines += [
        f"  {row['seconds'] / whole:>6.1%} {row['kernels']:>7,} x {1e6 * row['seconds'] / row['kernels']:>8.1f} us  "
        f"{row['kind'][:80]}"
        for row in found["kinds"]
    ]
    return "\n".join(lines)
