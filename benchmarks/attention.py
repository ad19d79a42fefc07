"""Attention of a group, forward and backward: all scores in memory against blocks, side by side.

    python benchmarks/attention.py --out runs/attention.json

Gradients are compared first. Runs alternate, and the quickest of each counts. FLOPs are those of
the pairs that see each other (see kernels/attention/shared_prefix.py); bytes are XLA's own count of
a program's temporaries. On a GPU in bfloat16 the platform's own kernel can take part: --kernels
dense chunked cudnn --dtype bfloat16.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

from vcap_jax.kernels import attention


@dataclass(frozen=True)
class Shape:
    """groups of one prompt and ``captions`` captions each; heads, key heads, head size."""

    name: str
    groups: int
    prompt: int
    captions: int
    tokens: int
    heads: int
    key_heads: int
    dim: int

    @property
    def flops(self) -> int:
        """Forward and backward: 2 + 5 products over the visible pairs, 2 d FLOPs per pair, head and product."""
        caption = self.captions * self.tokens
        pairs = self.prompt**2 / 2 + caption * self.prompt + caption * self.tokens / 2
        return int(7 * 2 * pairs * self.groups * self.heads * self.dim)


SHAPES = (
    Shape("embedded", 16, 32, 8, 192, 4, 2, 32),
    Shape("1k visual tokens", 1, 1056, 8, 192, 8, 2, 32),
    Shape("2k visual tokens", 1, 2080, 8, 384, 8, 2, 32),
    Shape("4k visual tokens", 1, 4128, 8, 192, 8, 2, 32),
)


def inputs(shape: Shape, dtype: Any) -> tuple[jax.Array, ...]:
    """Queries, keys, values and the output's gradient."""
    rng, length = np.random.default_rng(0), shape.prompt + shape.captions * shape.tokens
    heads = (shape.heads, shape.key_heads, shape.key_heads, shape.heads)
    return tuple(jnp.asarray(rng.standard_normal((shape.groups, length, n, shape.dim)), dtype) for n in heads)


def program(shape: Shape, kernel: attention.Kernel, arrays: tuple[jax.Array, ...]) -> Any:
    """The compiled forward and backward pass."""
    lengths = jnp.full(shape.groups, shape.prompt, jnp.int32)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, gradient: jax.Array) -> Any:
        def group(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return attention.grouped(q, k, v, lengths, shape.prompt, shape.captions, kernel)

        out, pull = jax.vjp(group, q, k, v)
        return out, pull(gradient)

    compiled = jax.jit(run).lower(*arrays).compile()
    text = compiled.as_text()
    assert text is not None  # CPU and GPU give it
    attention.require_kernel(kernel, text)
    return compiled


def quickest(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each, alternating."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def measure(shape: Shape, kernels: list[attention.Kernel], dtype: Any, repeats: int) -> dict[str, Any]:
    """Raises SystemExit if two kernels do not agree."""
    arrays = inputs(shape, dtype)
    programs = {kernel.name: program(shape, kernel, arrays) for kernel in kernels}
    results = {name: jax.tree.leaves(run(*arrays)) for name, run in programs.items()}
    expected, tolerance = next(iter(results.values())), 1e-4 if dtype == jnp.float32 else 0.03
    for name, result in results.items():
        for ours, theirs in zip(result, expected, strict=True):
            error = (
                jnp.abs(ours.astype(jnp.float32) - theirs.astype(jnp.float32)).max() / jnp.abs(theirs).max()
            )
            if not error < tolerance:
                raise SystemExit(f"{shape.name}: {name} differs from {kernels[0].name} by {float(error):.1e}")
    seconds = quickest({name: partial(run, *arrays) for name, run in programs.items()}, repeats)
    memory = {name: run.memory_analysis().temp_size_in_bytes for name, run in programs.items()}
    return {**asdict(shape), "flops": shape.flops, "seconds": seconds, "temporary_bytes": memory}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kernels", nargs="+", default=["dense", "chunked"])
    for name in ("queries", "scores", "diagonal"):
        usual = getattr(attention.CHUNKED, name)
        parser.add_argument(f"--{name}", type=int, default=usual, help=f"of the kernel chunked ({usual})")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=5)
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--shapes", nargs="+", choices=names, default=names)
    args = parser.parse_args()
    chunked = attention.Chunked(queries=args.queries, scores=args.scores, diagonal=args.diagonal)
    kernels = [chunked if name == "chunked" else attention.kernel(name) for name in args.kernels]
    rows = []
    for shape in (shape for shape in SHAPES if shape.name in args.shapes):
        row = measure(shape, kernels, jnp.dtype(args.dtype), args.repeats)
        rows.append(row)
        cells = (
            f"{name} {1e3 * row['seconds'][name]:.1f} ms, {row['flops'] / row['seconds'][name] / 1e9:.1f} GFLOP/s, "
            f"{row['temporary_bytes'][name] / 2**20:.0f} MiB"
            for name in args.kernels
        )
        print(f"{shape.name:18} {'; '.join(cells)}", flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "device": str(jax.devices()[0].device_kind),
            "dtype": args.dtype,
            "chunked": asdict(chunked),
        }
        args.out.write_text(json.dumps({**record, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
