"""Attention of new tokens on TPUs: a Pallas kernel, compiled by Mosaic TPU.

One step of the grid takes a block of columns of all key heads of a prompt, or of a caption, from memory while the
block before is computed; scores, maxima and sums stay in VMEM until the last block. Blocks that nobody sees are
neither copied nor computed: their step asks for the block that is there already.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from vcap_jax.kernels.attention.kernel import Cached, UnsupportedAttention
from vcap_jax.kernels.attention.scores import MASKED
from vcap_jax.kernels.attention.split_decode import Part, Rows, decode_in_parts

Array = jax.Array
Ref: TypeAlias = jax.Array
"""Memory that a kernel reads and writes by index."""

NAME = "vcap_decode"
"""What the kernel is called in programs; ``_prompt`` or ``_captions`` follows."""
LANES = 128
"""Columns of a block are a multiple of this: the width of a TPU's vector registers."""
SUBLANES = 16
"""Rows of bfloat16 that a vector register holds; rows are padded to a multiple."""


@dataclass(frozen=True, kw_only=True)
class TpuDecode:
    """See ``TokenKernel`` and ``KeyParts``. Compiles for TPUs only.

    block: the most columns of a block; 512 of 8 heads of 128 are 1 MiB of keys and as much of values. interpret: run
    the kernel's program step by step instead, on any platform and slowly: for tests.
    """

    block: int = 512
    interpret: bool = False
    name: str = "tpu"

    @property
    def range_block(self) -> int:
        return self.block

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Raises UnsupportedAttention if the kernel cannot compute in ``dtype`` or with heads of that size."""
        if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float32):
            raise UnsupportedAttention(
                f"model.decode_attention tpu computes in bfloat16 or float32, not in {jnp.dtype(dtype)}; "
                "set model.dtype"
            )
        if head_size % LANES:
            raise UnsupportedAttention(
                f"model.decode_attention tpu needs heads of a multiple of {LANES}, not of {head_size}; "
                "set model.decode_attention=dense"
            )

    def decode(self, queries: Array, prompt: Cached, captions: Cached) -> Array:
        self.check(queries.dtype, queries.shape[-1])
        return decode_in_parts(self, queries, prompt, captions)

    def prompt(self, rows: Rows) -> Part:
        return self._part(rows, f"{NAME}_prompt")

    def captions(self, rows: Rows) -> Part:
        return self._part(rows, f"{NAME}_captions")

    def _part(self, rows: Rows, name: str) -> Part:
        """One split for each set of rows: a TPU has one or two cores, and N is more."""
        n, key_heads, x, dim = rows.queries.shape
        columns = rows.keys.shape[-1]
        missing = max(0, LANES - columns)
        keys = jnp.pad(rows.keys, ((0, 0), (0, 0), (0, 0), (0, missing)))
        values = jnp.pad(rows.values, ((0, 0), (0, 0), (0, missing), (0, 0)))
        columns += missing
        block = min(self.block, pl.cdiv(columns, LANES) * LANES)
        # The late range need not begin with a block: what lies before it in its first is masked.
        late_block = rows.start // block
        padded = jnp.pad(rows.queries, ((0, 0), (0, 0), (0, -x % SUBLANES), (0, 0)))
        tall = padded.shape[2]

        def needed(at: Array, early: Array, late: Array) -> tuple[Array, Array]:
            """Blocks of the first range, and of both."""
            first = pl.cdiv(early[at], block)
            last = jnp.where(late[at] > 0, pl.cdiv(rows.start + late[at], block) - late_block, 0)
            return first, first + last

        def which(at: Array, step: Array, early: Array, late: Array) -> Array:
            """The block of columns that a step looks at; behind the last that is seen, that one again."""
            first, both = needed(at, early, late)
            step = jnp.minimum(step, jnp.maximum(both - 1, 0))
            return jnp.where(step < first, step, late_block + step - first)

        def body(
            early: Ref,
            late: Ref,
            q: Ref,
            keys: Ref,
            values: Ref,
            out: Ref,
            lse: Ref,
            largest: Ref,
            total: Ref,
            sums: Ref,
        ) -> None:
            at, step = pl.program_id(0), pl.program_id(1)
            first, both = needed(at, early, late)

            @pl.when(step == 0)
            def _() -> None:
                largest[...] = jnp.full_like(largest, MASKED)
                total[...] = jnp.zeros_like(total)
                sums[...] = jnp.zeros_like(sums)

            @pl.when(step < both)
            def _() -> None:
                place = which(at, step, early, late) * block
                begin = jnp.where(step < first, 0, rows.start)
                end = jnp.where(step < first, early[at], rows.start + late[at])

                def inside(shape: tuple[int, int], axis: int) -> Array:
                    column = jax.lax.broadcasted_iota(jnp.int32, shape, axis) + place
                    return (column >= begin) & (column < end)

                seen, real = inside((1, block), 1), inside((block, 1), 0)
                for head in range(key_heads):
                    scores = _product(q[head], keys[head]) * dim**-0.5
                    scores = jnp.where(seen, scores, MASKED)
                    top = jnp.maximum(largest[head], scores.max(1, keepdims=True))
                    shrink, weights = jnp.exp(largest[head] - top), jnp.exp(scores - top)
                    # The last block may reach beyond the cache, where anything may stand, infinities too.
                    seen_values = jnp.where(real, values[head], jnp.zeros_like(values[head]))
                    own = _product(weights.astype(values.dtype), seen_values)
                    total[head] = total[head] * shrink + weights.sum(1, keepdims=True)
                    sums[head] = sums[head] * shrink + own
                    largest[head] = top

            @pl.when(step == pl.num_programs(1) - 1)
            def _() -> None:
                for head in range(key_heads):
                    empty = total[head] == 0.0
                    whole = jnp.where(empty, 1.0, total[head])
                    out[head] = sums[head] / whole
                    found = jnp.where(empty, MASKED, largest[head] + jnp.log(whole))
                    lse[head] = jnp.broadcast_to(found, (tall, LANES))

        def all_heads(*shape: int, by_step: int | None = None) -> pl.BlockSpec:
            """Blocks of an array [N, K, ...]; ``by_step``: the axis of columns."""

            def index(at: Array, step: Array, early: Array, late: Array) -> tuple[Array | int, ...]:
                place = which(at, step, early, late)
                return (at, 0, *(place if axis == by_step else 0 for axis in range(len(shape))))

            return pl.BlockSpec((None, key_heads, *shape), index)

        size = n * key_heads * tall
        out, lse = pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                # A block that both ranges have columns in is looked at twice.
                grid=(n, pl.cdiv(columns, block) + (1 if rows.start % block else 0)),
                in_specs=[
                    all_heads(tall, dim),
                    all_heads(dim, block, by_step=1),
                    all_heads(block, dim, by_step=0),
                ],
                out_specs=[all_heads(tall, dim), all_heads(tall, LANES)],
                scratch_shapes=[
                    pltpu.VMEM((key_heads, tall, 1), jnp.float32),
                    pltpu.VMEM((key_heads, tall, 1), jnp.float32),
                    pltpu.VMEM((key_heads, tall, dim), jnp.float32),
                ],
            ),
            out_shape=[
                jax.ShapeDtypeStruct((n, key_heads, tall, dim), jnp.float32),
                jax.ShapeDtypeStruct((n, key_heads, tall, LANES), jnp.float32),
            ],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
            cost_estimate=pl.CostEstimate(
                flops=4 * size * dim * columns,
                transcendentals=size * columns,
                bytes_accessed=keys.nbytes + values.nbytes + padded.nbytes + 4 * size * (dim + LANES),
            ),
            interpret=self.interpret,
            name=name,
        )(rows.early, rows.late, padded, keys, values)
        return Part(out[:, :, None, :x], lse[:, :, None, :x, 0])


_product = functools.partial(
    jax.lax.dot_general, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
)
"""[X, n] times [n, m] in float32."""
