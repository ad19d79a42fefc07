"""What benchmarks/gpu.py measures, compiled ahead of time for a GPU that is not here: memory, FLOPs and bytes moved.

Run through ``python benchmarks/gpu.py --compile-for h100x1 --out DIR``. Nothing is timed. The share of a roofline is
what the program would reach if it moved its bytes, or did its operations, at the full speed of the card: a bound
that only a change of the program can lift.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu_programs import (
    DTYPE,
    Fitted,
    Shape,
    abstract_model,
    decode_programs,
    failure,
    fit,
    must_read,
    one_device,
    update_flops,
    update_programs,
    width_8b,
)
from vcap_jax.plan.targets import devices
from vcap_jax.system.hardware import Chip, hardware


def compile_rows(
    name: str, parts: Sequence[str], decoding: Sequence[Shape], updates: Sequence[Shape], remat: str
) -> Iterator[dict[str, Any]]:
    """A row per program, with "failed" if it does not fit or compile. name: as ``launch/plan.py --hardware`` takes it,
    one GPU of it.

    Raises MissingPlugin without XLA's CUDA compiler, ValueError for a name that is no GPU.
    """
    machine = hardware(name)
    if machine.chip.platform != "cuda" or machine.devices != 1:
        raise ValueError(f"--compile-for {name}: give one GPU, such as h100x1 or h200x1")
    placement = one_device(devices(machine.chip, machine.topology)[0])
    budget = int(machine.chip.usable * machine.chip.memory)

    def model_of(layers: int) -> Any:
        return abstract_model(width_8b(layers), placement, remat)

    for part, shapes, programs in (
        ("decode", decoding, decode_programs),
        ("update", updates, update_programs),
    ):
        for shape in shapes if part in parts else ():

            def build(model: Any, tune: bool, shape: Shape = shape, programs: Any = programs) -> Any:
                return programs(model, shape, placement, tune)

            row: dict[str, Any] = {"part": part, "modality": shape.modality, "shape": shape.name}
            bounds = decode_bound if part == "decode" else update_bound
            try:
                fitted = fit(build, model_of, budget)
                row |= {"layers": fitted.layers, "bytes": fitted.bytes} | bounds(fitted, shape, machine.chip)
            except Exception as error:
                traceback.print_exc()
                row["failed"] = failure(error)
            yield row


def decode_bound(fitted: Fitted, shape: Shape, chip: Chip) -> dict[str, Any]:
    """Of a token of every caption, at the captions' end."""
    prefill, decode = fitted.programs
    needed = must_read(fitted.model, shape, shape.caption)
    cost = decode.cost
    peak = chip.peak(DTYPE.dtype.name)
    seconds = max(cost.moved / chip.bandwidth, cost.flops / peak)
    return {
        "prefill_temporary_bytes": prefill.temporary_bytes,
        "temporary_bytes": decode.temporary_bytes,
        "must_read": needed,
        "moved_bytes": cost.moved,
        "flops": cost.flops,
        "seconds_bound": seconds,
        "bandwidth_share_bound": sum(needed.values()) / chip.bandwidth / seconds,
    }


def update_bound(fitted: Fitted, shape: Shape, chip: Chip) -> dict[str, Any]:
    """Of the gradient of one micro-batch."""
    (program,) = fitted.programs
    model_flops = update_flops(fitted.model, shape)
    cost = program.cost
    peak = chip.peak(DTYPE.dtype.name)
    seconds = max(cost.moved / chip.bandwidth, cost.flops / peak)
    return {
        "temporary_bytes": program.temporary_bytes,
        "argument_bytes": program.argument_bytes,
        "model_flops": model_flops,
        "flops": cost.flops,
        "moved_bytes": cost.moved,
        "seconds_bound": seconds,
        # As if what is moved and what is computed did not overlap at all, and as if they did altogether.
        "utilisation_bound": [
            model_flops / peak / (cost.moved / chip.bandwidth + cost.flops / peak),
            model_flops / peak / seconds,
        ],
    }


def compile_line(row: dict[str, Any]) -> str:
    """A row for people."""
    head = f"{row['part']:<8}{row['shape']:<26}"
    if "failed" in row:
        return f"{head}FAILED: {row['failed']}"
    head += f"{row['layers']:>3} layers {row['bytes'] / 2**30:>5.1f} GiB "
    if row["part"] == "decode":
        return head + (
            f"reads at least {sum(row['must_read'].values()) / 1e9:5.1f} GB a token, "
            f"moves {row['moved_bytes'] / 1e9:6.1f} GB: "
            f"at most {100 * row['bandwidth_share_bound']:.0f}% of the bandwidth"
        )
    low, high = row["utilisation_bound"]
    return head + (
        f"{row['temporary_bytes'] / 2**30:5.1f} GiB temporaries, {row['model_flops'] / 1e12:7.0f} TFLOP of the model, "
        f"{row['flops'] / 1e12:7.0f} done, {row['moved_bytes'] / 1e12:5.2f} TB moved: at most {100 * low:.0f} to "
        f"{100 * high:.0f}%"
    )
