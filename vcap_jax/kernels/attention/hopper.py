"""Attention of new tokens on NVIDIA Hopper GPUs: a Pallas kernel, compiled by Mosaic GPU.

A block of threads, one warpgroup, computes up to 64 rows over one split of their keys. Keys and values come 64 columns
at a time through a ring of shared memory: as soon as a place of it has been multiplied, on the tensor cores, a later
block is copied into it. Scores and sums stay in registers. What leaves the processor is a split's output and
log-sum-exp. Blocks of columns that nobody sees are not copied, so neither a cache's width nor a caption that has ended
costs memory traffic; a split without keys ends at once, and its output is not written.

Decoding waits for memory, so a processor must always have copies under way. Two blocks of threads fit on one, and the
other's go on while one begins or ends, which takes as long as a few blocks of columns. ``benchmarks/gpu_new_tokens.py``
times it beside longer rings, which leave room for one alone, and other divisions of the keys.

Mosaic GPU is new and changes; what is used of it is looked up in one place, here, by name and parameters.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from vcap_jax.kernels.attention.kernel import Cached, UnsupportedAttention, private_jax
from vcap_jax.kernels.attention.scores import MASKED
from vcap_jax.kernels.attention.split_decode import Part, Rows, decode_in_parts

Array = jax.Array
Ref: TypeAlias = jax.Array
"""Memory that a kernel reads and writes by index."""

NAME = "vcap_decode"
"""What the kernel is called in programs; ``_prompt`` or ``_captions`` follows."""
BLOCK = 64
"""Columns that are copied, multiplied and masked at a time: a row of 128 bytes of shared memory."""
TILE = 64
"""Rows of a matrix product of one warpgroup."""
LARGEST_HEAD = 128
"""Output and scores of 64 rows stay in the registers of one warpgroup up to here."""
LOG2_E = math.log2(math.e)

PARAMETERS = {
    "copy_gmem_to_smem": "src dst barrier",
    "copy_smem_to_gmem": "src dst",
    "barrier_wait": "barrier",
    "commit_smem": "",
    "wait_smem_to_gmem": "n",
    "wgmma": "acc a b",
    "broadcasted_iota": "dtype shape dimension layout",
    "layout_cast": "x new_layout",
    "kernel": "body out_type scratch_types compiler_params grid grid_names interpret",
}
"""What is called of Mosaic GPU's module, and the parameters that are given."""
CLASSES = (
    "ACC",
    "Barrier",
    "CompilerParams",
    "Layout",
    "RefUnion",
    "SMEM",
    "SwizzleTransform",
    "TilingTransform",
)


@functools.cache
def _mosaic() -> ModuleType:
    """Pallas's Mosaic GPU. Raises UnsupportedAttention if this release has none that is known here."""
    with private_jax("model.decode_attention", "hopper", "has another Mosaic GPU", instead="dense"):
        from jax.experimental.pallas import mosaic_gpu as module

        for name in CLASSES:
            getattr(module, name)
        for name, needed in PARAMETERS.items():
            missing = set(needed.split()) - set(inspect.signature(getattr(module, name)).parameters)
            if missing:
                raise ImportError(f"{name} takes no {', '.join(sorted(missing))}")
    return module


@dataclass(frozen=True)
class Cut:
    """How the keys of a row are divided among blocks of threads; constants, so that a caption's numbers depend neither
    on how many decode beside it nor on how wide the caches are.

    most: splits, of many keys. least: blocks of columns in a split, of few. stages: of the ring, each 32 KiB for heads
    of 128.
    """

    most: int
    least: int = 8
    stages: int = 2

    def used(self, blocks: int) -> int:
        """Splits that there are where the caches are so many blocks wide."""
        return min(self.most, -(-blocks // self.least))


@dataclass(frozen=True, kw_only=True)
class Hopper:
    """See ``TokenKernel`` and ``KeyParts``. Compiles for Hopper only.

    of_prompt, of_captions: how keys are divided. With 8 key heads, groups of 8 and thousands of keys both come to about
        a block of threads or more for each of the 132 processors from one group on.
    interpret: run the kernel's program thread by thread instead, on any platform and very slowly: for tests.
    """

    of_prompt: Cut = Cut(16)
    of_captions: Cut = Cut(4)
    interpret: bool = False
    name: str = "hopper"
    range_block = BLOCK

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Raises UnsupportedAttention if the kernel cannot compute in ``dtype`` or with heads of that size."""
        if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
            raise UnsupportedAttention(
                f"model.decode_attention hopper computes in bfloat16, not in {jnp.dtype(dtype)}; "
                "set model.dtype=bfloat16, or model.decode_attention=dense"
            )
        if head_size % BLOCK or head_size > LARGEST_HEAD:
            raise UnsupportedAttention(
                f"model.decode_attention hopper needs heads of {BLOCK} or {LARGEST_HEAD}, not of {head_size}; "
                "set model.decode_attention=dense"
            )
        _mosaic()

    def decode(self, queries: Array, prompt: Cached, captions: Cached) -> Array:
        self.check(queries.dtype, queries.shape[-1])
        return decode_in_parts(self, queries, prompt, captions)

    def prompt(self, rows: Rows) -> Part:
        return _part(rows, f"{NAME}_prompt", self.of_prompt, interpret=self.interpret)

    def captions(self, rows: Rows) -> Part:
        return _part(rows, f"{NAME}_captions", self.of_captions, interpret=self.interpret)


def tiles(rows: int) -> tuple[int, int]:
    """How many tiles so many rows are cut into, and the rows of each, a multiple of 8."""
    count = -(-rows // TILE)
    return count, -(-rows // (8 * count)) * 8


def _part(rows: Rows, name: str, cut: Cut, *, interpret: bool) -> Part:
    """All tiles of all sets of rows, by the kernel."""
    n, key_heads, x, dim = rows.queries.shape
    columns = rows.keys.shape[-1]
    # Whole blocks are copied. Where caches are no whole blocks, they are themselves copied first: small ones, the last
    # token of a prompt, or prompts that data.buckets pads to other multiples.
    missing = -columns % BLOCK
    keys = jnp.pad(rows.keys, ((0, 0), (0, 0), (0, 0), (0, missing)))
    values = jnp.pad(rows.values, ((0, 0), (0, 0), (0, missing), (0, 0)))
    columns += missing
    count, tile = tiles(x)
    splits = cut.used(columns // BLOCK + (rows.start % BLOCK > 0))
    padded = jnp.pad(rows.queries, ((0, 0), (0, 0), (0, count * tile - x), (0, 0)))
    run = _kernel(
        name=name,
        sets=n * key_heads,
        per_length=key_heads,
        tiles=count,
        rows=tile,
        kept=x if count == 1 else tile,
        dim=dim,
        dtype=jnp.dtype(rows.queries.dtype),
        start=rows.start,
        cut=cut,
        splits=splits,
        interpret=interpret,
    )
    out, lse = run(
        padded.reshape(n * key_heads, count, tile, dim),
        keys.reshape(n * key_heads, dim, columns),
        values.reshape(n * key_heads, columns, dim),
        jnp.stack([rows.early, rows.late], 1).astype(jnp.int32),
    )  # [N K, tiles, S, kept, d], [N K, tiles, S, rows]
    out, lse = (
        jnp.swapaxes(a, 1, 2).reshape(n, key_heads, splits, -1, a.shape[-1]) for a in (out, lse[..., None])
    )
    return Part(out[..., :x, :], lse[..., :x, 0])


def _kernel(
    *,
    name: str,
    sets: int,
    per_length: int,
    tiles: int,
    rows: int,
    kept: int,
    dim: int,
    dtype: jnp.dtype,
    start: int,
    cut: Cut,
    splits: int,
    interpret: bool,
) -> Callable[[Array, Array, Array, Array], tuple[Array, Array]]:
    """The kernel for queries [sets, tiles, rows, dim], keys [sets, dim, T], values [sets, T, dim] and what is seen,
    [sets / per_length, 2] int32. kept: rows of a tile that leave it."""
    gpu = _mosaic()
    scale = dim**-0.5 * LOG2_E  # exponentials are powers of two here
    layout, by_row = gpu.Layout.WGMMA, gpu.Layout.WGMMA.reduce(1)

    def laid(x: Array, wanted: object) -> Array:
        return x if interpret else gpu.layout_cast(x, wanted)  # the interpreter knows no layouts

    def column_numbers() -> Array:
        if interpret:
            return lax.broadcasted_iota(jnp.int32, (TILE, BLOCK), 1)
        return gpu.broadcasted_iota(jnp.int32, (TILE, BLOCK), 1, layout=layout)

    def body(
        q_ref: Ref,
        k_ref: Ref,
        v_ref: Ref,
        seen_ref: Ref,
        out_ref: Ref,
        lse_ref: Ref,
        q: Ref,
        keys_then_out: tuple[Ref, Ref],
        values: Ref,
        weights: Ref,
        lse_block: Ref,
        q_here: Ref,
        keys_here: Ref,
        values_here: Ref,
    ) -> None:
        keys, out_block = keys_then_out
        split, tile, at = lax.axis_index("split"), lax.axis_index("tile"), lax.axis_index("set")
        of = lax.div(at, jnp.int32(per_length))
        early, late = seen_ref[of, 0], seen_ref[of, 1]
        early_blocks = lax.div(early + (BLOCK - 1), jnp.int32(BLOCK))
        # What lies before ``start`` in the late range's first block is masked.
        late_blocks = lax.div(start + late + (BLOCK - 1), jnp.int32(BLOCK)) - start // BLOCK
        blocks = early_blocks + jnp.where(late > 0, late_blocks, 0)
        each = jnp.maximum(lax.div(blocks + (cut.most - 1), jnp.int32(cut.most)), cut.least)
        begin = split * each
        steps = jnp.maximum(jnp.minimum(each, blocks - begin), 0)

        def place(step: Array) -> tuple[Array, Array]:
            """A block of columns of this split, and whether it is one of the late range."""
            block = begin + step
            in_late = block >= early_blocks
            return jnp.where(in_late, start // BLOCK + block - early_blocks, block), in_late

        def seen(step: Array) -> Array:
            """Which columns of a block are seen, [TILE, BLOCK]."""
            block, in_late = place(step)
            column = column_numbers() + block * BLOCK
            inside = column < jnp.where(in_late, start + late, early)
            if start % BLOCK:
                inside &= column >= jnp.where(in_late, start, 0)
            return inside

        def columns_of(step: Array) -> object:
            return pl.ds(pl.multiple_of(place(step)[0] * BLOCK, BLOCK), BLOCK)

        def begin_keys(step: Array, slot: Array) -> None:
            @pl.when(step < steps)
            def _copy() -> None:
                gpu.copy_gmem_to_smem(k_ref.at[at, :, columns_of(step)], keys.at[slot], keys_here.at[slot])

        def begin_values(step: Array, slot: Array) -> None:
            @pl.when(step < steps)
            def _copy() -> None:
                gpu.copy_gmem_to_smem(v_ref.at[at, columns_of(step)], values.at[slot], values_here.at[slot])

        def one(step: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            out, largest, total = carry
            slot = lax.rem(step, jnp.int32(cut.stages))
            gpu.barrier_wait(keys_here.at[slot])

            def scored(sums: Ref) -> Array:
                gpu.wgmma(sums, q, keys.at[slot])
                return sums[...]

            scores = pl.run_scoped(scored, gpu.ACC((TILE, BLOCK), jnp.float32)) * scale
            scores = jnp.where(seen(step), scores, MASKED)
            top = jnp.maximum(largest, scores.max(axis=1))
            shrink = jnp.exp2(largest - top)
            weight = jnp.exp2(scores - lax.broadcast_in_dim(top, scores.shape, [0]))
            total = total * shrink + weight.sum(axis=1)
            weights[...] = weight.astype(dtype)
            gpu.commit_smem()  # which waits for all four warps: nobody needs these keys any more
            begin_keys(step + cut.stages, slot)
            gpu.barrier_wait(values_here.at[slot])

            def weighed(sums: Ref) -> Array:
                gpu.wgmma(sums, weights, values.at[slot])
                return sums[...]

            own = pl.run_scoped(weighed, gpu.ACC((TILE, dim), jnp.float32))
            gpu.commit_smem()  # nor these values
            begin_values(step + cut.stages, slot)
            return out * lax.broadcast_in_dim(shrink, out.shape, [0]) + own, top, total

        def put(block: object, out: Ref) -> None:
            gpu.commit_smem()
            gpu.copy_smem_to_gmem(block, out.at[at, tile, split])

        def numbers(value: float, shape: tuple[int, ...], of: object) -> Array:
            return laid(jnp.full(shape, value, jnp.float32), of)

        @pl.when(steps == 0)
        def _nothing() -> None:
            lse_block[...] = numbers(MASKED, (TILE,), by_row)
            put(lse_block.at[pl.ds(0, rows)], lse_ref)

        @pl.when(steps > 0)
        def _attend() -> None:
            # Rows of the tile that are not there stay as they are: no row's numbers meet another's.
            gpu.copy_gmem_to_smem(q_ref.at[at, tile], q.at[pl.ds(0, rows)], q_here)
            for step in map(jnp.int32, range(cut.stages)):
                begin_keys(step, step)
                begin_values(step, step)
            gpu.barrier_wait(q_here)
            begun = (
                numbers(0, (TILE, dim), layout),
                numbers(MASKED, (TILE,), by_row),
                numbers(0, (TILE,), by_row),
            )
            out, largest, total = lax.fori_loop(0, steps, one, begun)
            out_block[...] = out / lax.broadcast_in_dim(total, out.shape, [0])
            lse_block[...] = largest * (1 / LOG2_E) + jnp.log(total)
            put(out_block.at[pl.ds(0, kept)], out_ref)
            put(lse_block.at[pl.ds(0, rows)], lse_ref)

        gpu.wait_smem_to_gmem(0)

    body.__name__ = name
    transforms = (gpu.TilingTransform((8, BLOCK)), gpu.SwizzleTransform(128))

    def tiled(*shape: int) -> object:
        return gpu.SMEM(shape, dtype, transforms=transforms)

    # All keys have been multiplied when the output is put together: it takes their place.
    keys_then_out = (tiled(cut.stages, dim, BLOCK), gpu.SMEM((TILE, dim), jnp.float32))
    called: Callable[[Array, Array, Array, Array], tuple[Array, Array]] = gpu.kernel(
        body,
        out_type=[
            jax.ShapeDtypeStruct((sets, tiles, splits, kept, dim), jnp.float32),
            jax.ShapeDtypeStruct((sets, tiles, splits, rows), jnp.float32),
        ],
        grid=(splits, tiles, sets),
        grid_names=("split", "tile", "set"),
        scratch_types=[
            tiled(TILE, dim),
            keys_then_out if interpret else gpu.RefUnion(*keys_then_out),  # the interpreter knows no unions
            tiled(cut.stages, BLOCK, dim),
            tiled(TILE, BLOCK),
            gpu.SMEM((TILE,), jnp.float32),
            gpu.Barrier(),
            gpu.Barrier(num_barriers=cut.stages),
            gpu.Barrier(num_barriers=cut.stages),
        ],
        compiler_params=gpu.CompilerParams(approx_math=True),
        interpret=_interpreter() if interpret else None,
    )
    return called


def _interpreter() -> object:
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    return InterpretGPUParams()
