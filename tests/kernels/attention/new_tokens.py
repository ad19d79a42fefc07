"""What the tests of attention of new tokens are made with: caches, the plain softmax, a kernel in a few lines."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.kernels.attention import Cached, Seen
from vcap_jax.kernels.attention.scores import MASKED
from vcap_jax.kernels.attention.split_decode import Part, Rows, decode_in_parts
from vcap_jax.plan.targets import GPU_COMPILERS


@dataclass(frozen=True)
class Sizes:
    """B groups of G captions; H heads, K of keys; prompts in P columns; captions' in ``start + late``."""

    groups: int
    captions: int
    heads: int
    key_heads: int
    prompt: int
    start: int
    late: int
    dim: int = 128


def first_columns(count: Any, groups: int, captions: int, columns: int) -> Seen:
    """Of captions that are ``count`` tokens long, all alike."""
    lengths = jnp.full((groups, captions), count, jnp.int32)
    visible = jnp.broadcast_to(jnp.arange(columns) < count, (groups, columns))
    return Seen(visible, lengths, jnp.zeros_like(lengths), 0)


def caches(sizes: Sizes, dtype: Any = jnp.bfloat16, seed: int = 0) -> tuple[jax.Array, Cached, Cached]:
    """Queries and caches: prompts and captions of uneven lengths, the first prompt whole, every third caption ended."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), dtype)

    groups, captions, dim, key_heads = sizes.groups, sizes.captions, sizes.dim, sizes.key_heads
    lengths = rng.integers(1, sizes.prompt + 1, groups)
    lengths[0] = sizes.prompt
    early = rng.integers(0, sizes.start + 1, (groups, captions))
    late = rng.integers(1, sizes.late + 1, (groups, captions))
    ended = np.arange(groups * captions).reshape(groups, captions) % 3 == 2
    early, late = (jnp.asarray(np.where(ended, 0, x)) for x in (early, late))
    columns, rows = sizes.start + sizes.late, groups * captions * key_heads
    return (
        draw(groups, captions, sizes.heads, dim),
        Cached(
            draw(groups, key_heads, dim, sizes.prompt),
            draw(groups, key_heads, sizes.prompt, dim),
            Seen.first(jnp.asarray(lengths), sizes.prompt),
        ),
        Cached(
            draw(rows, dim, columns),
            draw(rows, columns, dim),
            # The mask is of the whole group, and not what kernels for ranges go by.
            Seen(jnp.ones((groups, columns), bool), early, late, sizes.start),
        ),
    )


def going(captions: Cached) -> np.ndarray:
    """[B, G] bool: which captions have not ended. Of the others nobody reads the output."""
    return np.asarray(captions.seen.early + captions.seen.late) > 0


def plain(queries: jax.Array, prompt: Cached, captions: Cached) -> np.ndarray:
    """The output in float32 in one piece, [B, G, H, d]; zeros for captions that have ended."""
    groups, size, heads, dim = queries.shape
    key_heads, width = prompt.keys.shape[1], captions.keys.shape[-1]
    q = np.asarray(queries, np.float64).reshape(groups, size, key_heads, heads // key_heads, dim)
    own = (groups, size, key_heads)
    keys, values = (
        np.asarray(x, np.float64).reshape(*own, *x.shape[1:]) for x in (captions.keys, captions.values)
    )
    scores = np.concatenate(
        [
            np.einsum("bgkrd,bkdp->bgkrp", q, np.asarray(prompt.keys, np.float64)),
            np.einsum("bgkrd,bgkdt->bgkrt", q, keys),
        ],
        -1,
    )
    column, seen = np.arange(width), captions.seen
    early, late = (np.asarray(x)[..., None] for x in (seen.early, seen.late))
    inside = (column < early) | ((column >= seen.start) & (column < seen.start + late))
    shared = np.broadcast_to(np.asarray(prompt.seen.visible)[:, None], (groups, size, prompt.keys.shape[-1]))
    visible = np.concatenate([shared, inside], -1)[:, :, None, None]
    scores = np.where(visible, scores * dim**-0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    of_prompt, of_captions = np.split(weights, [prompt.keys.shape[-1]], -1)
    out = np.einsum("bgkrp,bkpd->bgkrd", of_prompt, np.asarray(prompt.values, np.float64))
    out += np.einsum("bgkrt,bgktd->bgkrd", of_captions, values)
    return np.where(going(captions)[..., None, None], out.reshape(queries.shape), 0).astype(np.float32)


def error(ours: jax.Array, expected: np.ndarray, captions: Cached) -> float:
    """The largest difference, relative to the largest number, of captions that go on."""
    difference = np.where(going(captions)[..., None, None], np.asarray(ours, np.float32) - expected, 0)
    assert np.isfinite(np.asarray(ours, np.float32)).all()
    return float(np.abs(difference).max() / np.abs(expected).max())


@dataclass(frozen=True)
class PlainParts:
    """A kernel for new tokens of plain products: each row's keys in ``splits`` parts, by column."""

    splits: int = 3
    name: str = "plain parts"
    range_block = 1

    def check(self, dtype: Any, head_size: int) -> None: ...

    def decode(self, queries: jax.Array, prompt: Cached, captions: Cached) -> jax.Array:
        return decode_in_parts(self, queries, prompt, captions)

    def prompt(self, rows: Rows) -> Part:
        assert rows.start == 0
        return self._part(rows)

    def captions(self, rows: Rows) -> Part:
        return self._part(rows)

    def _part(self, rows: Rows) -> Part:
        column = jnp.arange(rows.keys.shape[-1])
        early, late = rows.early[:, None], rows.late[:, None]
        seen = (column < early) | ((column >= rows.start) & (column < rows.start + late))
        mine = seen[:, None] & (column % self.splits == jnp.arange(self.splits)[:, None])  # [N, S, T]
        high = {"preferred_element_type": jnp.float32, "precision": "highest"}
        scores = (
            jnp.einsum("nkxd,nkdt->nkxt", rows.queries, rows.keys, **high) * rows.queries.shape[-1] ** -0.5
        )
        scores = jnp.where(mine[:, None, :, None], scores[:, :, None], -jnp.inf)  # [N, K, S, X, T]
        lse = jax.nn.logsumexp(scores, -1)
        weights = jnp.where(jnp.isfinite(lse)[..., None], jnp.exp(scores - lse[..., None]), 0)
        # What is not seen may be anything.
        values = jnp.where(seen[:, None, :, None], rows.values, 0)
        out = jnp.einsum("nksxt,nktd->nksxd", weights, values.astype(jnp.float32), **high)
        # Nor is the output of a split without keys anything.
        return Part(jnp.where(jnp.isfinite(lse)[..., None], out, jnp.nan), jnp.maximum(lse, MASKED))


@contextmanager
def quicker_interpreter() -> Iterator[None]:
    """Pallas's GPU interpreter compiles a block of threads again for each of the grid: here once for all of them."""
    from jax._src.pallas.mosaic.interpret import thread_map

    lock, made = threading.Lock(), {}

    def run(jaxpr: Any, consts: Any, *arguments: Any) -> None:
        def evaluate(consts: Any, *arguments: Any) -> None:
            jax.core.eval_jaxpr(jaxpr, consts, *arguments)

        with lock:
            if id(jaxpr) not in made:
                made[id(jaxpr)] = jaxpr, jax.jit(evaluate).lower(consts, *arguments).compile()
        made[id(jaxpr)][1](consts, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_map, "_run_jaxpr", run)
        yield


def compiled_ahead(name: str) -> dict[str, Any]:
    """What ``ahead_of_time`` prints of a kernel. Skips the test without the compiler."""
    modules = {"hopper": GPU_COMPILERS, "tpu": ("libtpu",)}[name]
    if not any(map(importlib.util.find_spec, modules)):
        pytest.skip(f'needs {" or ".join(modules)}, of the extra "plan", in an environment of its own')
    own = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.attention.ahead_of_time", name],
        cwd=Path(__file__).resolve().parents[3],
        env={k: v for k, v in os.environ.items() if k not in own},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
