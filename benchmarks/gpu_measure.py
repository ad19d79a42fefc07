"""Decoding and updates at the width of Qwen3-VL-8B, timed on the GPU that is here, with random weights in bfloat16."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import gpu_trace
from benchmarks.gpu_programs import (
    CHUNK,
    DTYPE,
    TEXT_TOKENS,
    Fitted,
    Model,
    Program,
    Shape,
    abstract_model,
    decode_programs,
    failure,
    fit,
    must_read,
    one_device,
    sampler,
    update_flops,
    update_programs,
    width_8b,
)
from vcap_jax.grpo.objective import step_totals
from vcap_jax.parallel.sharding import Placement, dotted_path
from vcap_jax.system.hardware import Chip, chip_of

ROOM = 0.95
"""Of the bytes that JAX may allocate; the rest is lost between buffers."""


class NoGpu(RuntimeError):
    """There is nothing to measure on; the message names the remedy."""


def gpu() -> Any:
    """The first GPU. Raises NoGpu."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        raise NoGpu(
            f"JAX sees {device.device_kind} and no NVIDIA GPU: install vcap-jax[cuda12] on a machine with one, or give "
            "--compile-for h100x1, which needs none"
        )
    return device


def random_parameters(shapes: Any, seed: int) -> Any:
    """Drawn on the device: norms 1, biases 0, everything else, features too, N(0, 0.02²). shapes: with shardings."""
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(shapes))))

    def draw(path: Any, leaf: Any) -> jax.Array:
        name = dotted_path(path)
        key = next(keys)
        if "norm" in name or name.endswith("bias"):
            value = float("bias" not in name)
            return jnp.full(leaf.shape, value, leaf.dtype, device=leaf.sharding)
        return _normal(key, leaf.shape, leaf.dtype, leaf.sharding)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.Array:
    def rows(key: jax.Array) -> jax.Array:
        return (0.02 * jax.random.normal(key, shape[1:])).astype(dtype)

    # Row by row (layer by layer), so that no float32 copy of the whole stack ever exists.
    drawn = jax.lax.map(rows, jax.random.split(key, shape[0]), batch_size=1 if len(shape) > 2 else 4096)
    return jax.lax.with_sharding_constraint(drawn, sharding)


def rows(
    part: str,
    shapes: Sequence[Shape],
    remat: str,
    repeats: int,
    note: Callable[[str], None],
    layers: int | None = None,
    trace: bool = False,
) -> Iterator[dict[str, Any]]:
    """A row per shape, with "failed" if its measurement ended in an error; the next is measured all the same.

    part: "decode" or "update". note: is told what is going on. layers: so many instead of as many as fit. trace: runs
    each program once more, under the profiler. Raises NoGpu.
    """
    device = gpu()
    placement = one_device(device)
    budget = int(ROOM * device.memory_stats()["bytes_limit"])
    chip = chip_of(device.device_kind)
    programs, measure = {
        "decode": (decode_programs, measure_decode),
        "update": (update_programs, measure_update),
    }[part]

    def model_of(layers: int) -> Any:
        return abstract_model(width_8b(layers), placement, remat)

    for shape in shapes:
        row: dict[str, Any] = {
            "part": part,
            "modality": shape.modality,
            "shape": shape.name,
            "sizes": dataclasses.asdict(shape),
        }

        def build(model: Model, tune: bool, shape: Shape = shape) -> tuple[Program, ...]:
            return programs(model, shape, placement, tune)

        begin = time.monotonic()
        try:
            fitted = fit(
                build,
                model_of,
                budget,
                exactly=layers,
            )
            note(f"{part} {shape.name}: {fitted.layers} layers, compiled in {time.monotonic() - begin:.0f} s")
            row |= {"layers": fitted.layers, "bytes": fitted.bytes}
            row |= measure(fitted, shape, placement, repeats, chip, trace)
        except Exception as error:
            note(f"{part} {shape.name}: {traceback.format_exc()}")
            row["failed"] = failure(error)
        # Here the error is forgotten, and with it the arrays that its stack held.
        yield row


def measure_decode(
    fitted: Fitted,
    shape: Shape,
    placement: Placement,
    repeats: int,
    chip: Chip | None,
    trace: bool = False,
) -> dict[str, Any]:
    """Prefill, then ``repeats`` device calls of ``CHUNK`` tokens up to the end of the captions, where a token costs
    most, with the host's look at finished groups in between, as in a run."""
    fill, decode = fitted.programs
    model = fitted.model
    params = random_parameters(fill.arguments[0], 0)
    prompt = _prompt(fill.arguments[2], shape, model.config.text.vocab_size)
    drawing = sampler(model, shape, placement)
    programs = drawing.programs(params_mesh(params))
    widest = drawing.buckets(programs.replicas).widths[-1]
    state = programs.empty(params, shape.groups, shape.prompt, widest)
    per_fill = shape.groups if shape.groups * shape.prompt <= programs.config.prefill_chunk else 1
    times = []
    for first in range(0, shape.groups, per_fill):
        rows = np.arange(first, first + per_fill, dtype=np.int32)[None]
        begin = time.perf_counter()
        state = fill.executable(params, state, prompt, None, rows, rows, rows, np.int32(0), np.int32(0))
        jax.block_until_ready(state)
        times.append(time.perf_counter() - begin)
    prefill_seconds = min(times) / per_fill
    first = shape.caption - CHUNK * (repeats + 1 + trace)
    if first < 0:
        raise ValueError(
            f"captions of {shape.caption} tokens are too short for {repeats} repeats of {CHUNK} tokens"
        )
    state = dataclasses.replace(
        state,
        steps=jax.device_put(np.full(shape.groups, first, np.int32), state.steps.sharding),
        lengths=jax.device_put(
            np.full((shape.groups, shape.captions), first, np.int32), state.lengths.sharding
        ),
    )
    slots = np.arange(shape.groups, dtype=np.int32)[None]
    everyone = np.arange(shape.captions, dtype=np.int32)
    candidates = np.ascontiguousarray(np.broadcast_to(everyone, (1, shape.groups, shape.captions)))
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        state = decode.executable(params, state, slots, candidates)
        done, steps = jax.device_get((state.done, state.steps))
        times.append(time.perf_counter() - begin)
    last = shape.caption - CHUNK * trace
    if done.any() or (steps != last).any():
        raise RuntimeError(f"decoding stopped at tokens {steps}: the time per token would be wrong")
    seconds = sum(times[1:]) / (CHUNK * repeats)
    needed = must_read(model, shape, last - CHUNK * repeats // 2)
    figures: dict[str, Any] = {
        "prefill_seconds_per_group": prefill_seconds,
        "seconds_per_token": seconds,
        "slowest_chunk_seconds_per_token": max(times[1:]) / CHUNK,
        "tokens_per_second": shape.groups * shape.captions / seconds,
        "must_read": needed,
        "moved_bytes": decode.cost.moved,
        "read_bytes_per_second": sum(needed.values()) / seconds,
    }
    if chip is not None:
        figures["bandwidth_share"] = figures["read_bytes_per_second"] / chip.bandwidth
    if trace:
        ran = gpu_trace.traced(lambda: decode.executable(params, state, slots, candidates))
        figures["trace"] = gpu_trace.summary(ran)
    return figures


def params_mesh(params: Any) -> Any:
    """Of parameters laid out for decoding."""
    return jax.tree.leaves(params)[0].sharding.mesh


def measure_update(
    fitted: Fitted,
    shape: Shape,
    placement: Placement,
    repeats: int,
    chip: Chip | None,
    trace: bool = False,
) -> dict[str, Any]:
    """The gradient of one group, added to a sum on the device."""
    del placement
    (program,) = fitted.programs
    model = fitted.model
    params, frozen = (random_parameters(x, seed) for seed, x in enumerate((model.trainable, model.frozen)))
    gradients = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), model.trainable)
    _, _, _, prompts, features, captions, totals, *_ = program.arguments
    rng = np.random.default_rng(1)
    visual = np.full((shape.groups, shape.prompt), -1, np.int32)
    visual[:, : shape.prompt - TEXT_TOKENS] = np.arange(shape.prompt - TEXT_TOKENS)
    prompt = dataclasses.replace(
        _prompt(prompts, shape, model.config.text.vocab_size), visual_index=_put(visual, prompts.visual_index)
    )
    seen = random_parameters(features, 2)
    lead = (shape.groups, shape.captions)
    given = {
        "tokens": rng.integers(0, model.config.text.vocab_size, (*lead, shape.caption), dtype=np.int32),
        "lengths": np.full(lead, shape.caption, np.int32),
        "advantages": rng.standard_normal(lead).astype(np.float32),
        "contributes": np.ones(lead, bool),
    }
    batch = dataclasses.replace(captions, **{k: _put(v, getattr(captions, k)) for k, v in given.items()})
    sums = jax.tree.map(_put, step_totals(jnp.asarray(given["lengths"]), jnp.ones(lead, bool)), totals)

    def run() -> Any:
        nonlocal gradients  # given away and written over
        out = program.executable(params, frozen, gradients, prompt, seen, batch, sums, None, None, None)
        gradients = out[0]
        return out

    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        metrics = jax.block_until_ready(run())[1]
        times.append(time.perf_counter() - begin)
    if not np.isfinite(float(metrics["loss"])) or not np.isfinite(float(metrics["entropy"])):
        raise RuntimeError(f"the update of {shape.name} gave {metrics}")
    seconds, flops = float(np.median(times[1:])), update_flops(model, shape)
    figures: dict[str, Any] = {
        "seconds": seconds,
        "quickest_seconds": min(times[1:]),
        "model_flops": flops,
        "flops": program.cost.flops,
        "flops_per_second": flops / seconds,
    }
    if chip is not None:
        figures["utilisation"] = flops / seconds / chip.peak(DTYPE.dtype.name)
    if trace:
        figures["trace"] = gpu_trace.summary(gpu_trace.traced(run))
    return figures


def _prompt(shapes: Any, shape: Shape, vocabulary: int) -> Any:
    rng, tokens = np.random.default_rng(0), shape.prompt
    every = np.arange(tokens, dtype=np.int32)
    values = {
        "tokens": rng.integers(0, vocabulary, (shape.groups, tokens), dtype=np.int32),
        "positions": np.ascontiguousarray(np.broadcast_to(every, (shape.groups, 3, tokens))),
        "lengths": np.full(shape.groups, tokens, np.int32),
        "visual_index": np.full((shape.groups, tokens), -1, np.int32),
    }
    return dataclasses.replace(shapes, **{k: _put(v, getattr(shapes, k)) for k, v in values.items()})


def _put(value: Any, shape: Any) -> jax.Array:
    if np.shape(value) != shape.shape:
        raise ValueError(f"{np.shape(value)} given where the program takes {shape.shape}")
    return jax.device_put(value, shape.sharding)
