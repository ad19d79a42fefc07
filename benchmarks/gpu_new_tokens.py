"""Hopper's attention of new tokens by itself, on the GPU that is here, beside other divisions of the keys: at the
paper's lengths, and against the time in which the caches can be read.

    python benchmarks/gpu_new_tokens.py --out runs/new_tokens.json

One token of every caption, caches full. Each program runs over four sets of caches, more than the GPU's own cache
holds; microseconds are the medians of its kernels in JAX's profile. "rest": joining the parts, and arranging queries.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks.gpu_measure import NoGpu, gpu  # noqa: E402
from benchmarks.gpu_programs import CHUNK  # noqa: E402
from benchmarks.gpu_trace import Kernel, traced  # noqa: E402
from vcap_jax.kernels import attention  # noqa: E402
from vcap_jax.kernels.attention import Hopper  # noqa: E402
from vcap_jax.kernels.attention.hopper import NAME, Cut  # noqa: E402
from vcap_jax.system.hardware import chip_of  # noqa: E402

DIM, NEW = 128, 32
"""Numbers of a head; new tokens in the late range of the captions."""
SETS, ROUNDS = 4, 4
PARTS = ("prompt", "captions", "rest")
Inputs = tuple[jax.Array, ...]
"""Queries, the prompts' keys and values, the captions'."""


@dataclass(frozen=True)
class Size:
    """Of a model, groups x (prompt + captions x tokens). rows: query heads of a key head."""

    model: str
    rows: int
    groups: int
    prompt: int
    tokens: int
    width: int
    captions: int = 8
    key_heads: int = 8

    def microseconds(self, bandwidth: float) -> dict[str, float]:
        """In which keys and values can be read once, at so many bytes a second."""
        columns = {"prompt": self.prompt, "captions": self.captions * (self.tokens + NEW)}
        return {
            part: 1e6 * 4 * DIM * self.groups * self.key_heads * n / bandwidth for part, n in columns.items()
        }


SIZES = (
    Size("2B", 2, groups=8, prompt=1536, tokens=896, width=1024),
    Size("8B", 4, groups=1, prompt=8192, tokens=1408, width=1536),
    Size("8B", 4, groups=4, prompt=8192, tokens=1408, width=1536),
    Size("8B", 4, groups=1, prompt=26624, tokens=1920, width=2048),
)
KERNELS = {
    "as it is": Hopper(),
    "no least number of columns": Hopper(of_prompt=Cut(16, least=1), of_captions=Cut(4, least=1)),
    "twice as many splits": Hopper(of_prompt=Cut(32, least=4), of_captions=Cut(8, least=4)),
    "rings of three": Hopper(of_prompt=Cut(16, stages=3), of_captions=Cut(4, stages=3)),
    "rings of four": Hopper(of_prompt=Cut(16, stages=4), of_captions=Cut(4, stages=4)),
}


def shapes(size: Size) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Of ``Inputs``."""
    columns = size.width + CHUNK
    dims = (
        (size.groups, size.captions, size.key_heads * size.rows, DIM),
        (size.groups, size.key_heads, DIM, size.prompt),
        (size.groups, size.key_heads, size.prompt, DIM),
        (size.groups * size.captions * size.key_heads, DIM, columns),
        (size.groups * size.captions * size.key_heads, columns, DIM),
    )
    return tuple(jax.ShapeDtypeStruct(d, jnp.bfloat16) for d in dims)


def program(kernel: Hopper, size: Size) -> Any:
    """Compiled: the attention of a token of every caption, from ``Inputs``."""

    def attend(queries: Any, prompt_keys: Any, prompt_values: Any, keys: Any, values: Any) -> Any:
        every = (size.groups, size.captions)
        seen = attention.Seen(
            jnp.ones((size.groups, size.width + CHUNK), bool),
            jnp.full(every, size.tokens, jnp.int32),
            jnp.full(every, NEW, jnp.int32),
            size.width,
        )
        of_prompt = attention.Seen.first(jnp.full(size.groups, size.prompt, jnp.int32), size.prompt)
        shared = attention.Cached(prompt_keys, prompt_values, of_prompt)
        return kernel.decode(queries, shared, attention.Cached(keys, values, seen))

    return jax.jit(attend).lower(*shapes(size)).compile()


def drawn(size: Size, seed: int) -> Inputs:
    """Standard normal."""
    keys = jax.random.split(jax.random.key(seed), 5)
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    return tuple(draw(key, shape.shape, shape.dtype) for key, shape in zip(keys, shapes(size), strict=True))


def by_part(ran: Sequence[Kernel], calls: int) -> dict[str, float]:
    """Microseconds of a call: the medians of the two kernels, the mean sum of all others."""
    found: dict[str, list[float]] = defaultdict(list)
    for kernel in ran:
        part = next((part for part in PARTS if f"{NAME}_{part}" in kernel.name), "rest")
        found[part].append(1e-3 * kernel.duration)
    return {
        part: sum(found[part]) / calls if part == "rest" else statistics.median(found[part]) for part in PARTS
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="file for the results")
    options = parser.parse_args()
    try:
        device = gpu()
    except NoGpu as error:
        print(error, file=sys.stderr)
        return 1
    chip = chip_of(device.device_kind)
    if chip is None:
        print(f"the bandwidth of {device.device_kind} is not known here", file=sys.stderr)
        return 1
    jobs = [(size, name) for size in SIZES for name in KERNELS]
    with ThreadPoolExecutor() as pool:
        programs = list(pool.map(lambda job: program(KERNELS[job[1]], job[0]), jobs))
    rows: list[dict[str, Any]] = []
    inputs: list[Inputs] = []
    for (size, name), run in zip(jobs, programs, strict=True):
        if not rows or rows[-1]["size"] != asdict(size):
            inputs = [drawn(size, seed) for seed in range(SETS)]
            least = size.microseconds(chip.bandwidth)
            print(
                f"{size.model}, {size.groups} x ({size.prompt:,} + {size.captions} x {size.tokens + NEW:,}): read once "
                f"in {least['prompt']:.1f} and {least['captions']:.1f} us"
            )

        def calls(run: Any = run, inputs: Sequence[Inputs] = inputs) -> list[jax.Array]:
            return [run(*given) for _ in range(ROUNDS) for given in inputs]

        jax.block_until_ready(calls())
        found = by_part(traced(calls), SETS * ROUNDS)
        rows.append({"size": asdict(size), "kernel": name, "microseconds": found, "read_once": least})
        parts = ", ".join(f"{part} {found[part]:.1f}" for part in PARTS)
        print(f"  {name:<28}{parts}, together {sum(found.values()):.1f} us", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(
            json.dumps({"device": device.device_kind, "jax": jax.__version__, "rows": rows}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
