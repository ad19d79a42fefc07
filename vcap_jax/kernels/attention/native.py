"""Attention in C++ for CPUs, forward, backward and for a new token, called through XLA's foreign function interface.

XLA's CPU backend writes a block of scores to memory between every two of its operations; these
kernels keep it in the first cache and the sums of the products in registers (``cpp/``). They
compute in float32 whatever the arrays are.

What bounds them: a score costs two products of 2 d FLOPs and an exponential. At heads of 32 a core
with AVX-512 reaches 140 to 150 GFLOP/s, and nine instructions make a weight: 0.54 ns a score on two
cores. Forward took 0.58, of four pictures of 16,384 patches on a quiet machine.

* A weight is made in the registers that its score is summed in. What is subtracted is the largest
  score of the blocks before; only if a row's weights then sum to more than 2^14 is the block
  computed again, the other way.
* Keys of a backward pass are dealt out to at most 16 tasks, a number that shapes alone decide, each
  with its own sum of the queries' gradients. So results do not depend on how many threads there
  are, or which comes first.
* A new token reads the prompt once for the rows of all captions. A block is asked for while the one
  before is computed. Asking with a branch inside the product's loop costs 14%, which is why there
  is none.
* The matrix units (AMX) of newer processors are not used. A float32 is the sum of three bfloat16,
  and six of the nine products of parts give all its digits; that took 0.7 to 1.5 times as long as
  vectors, because for seconds at a time the units ran at a third of their rate. Three products have
  an error of 2^-16, which is not float32.
* Other processors have tiles for AVX2, SSE and NEON. On a real ARM processor nothing has run; in
  QEMU the kernels agree with float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vcap_jax.kernels.attention.decode import for_devices
from vcap_jax.kernels.attention.kernel import Attended, Cached, UnsupportedAttention
from vcap_jax.kernels.attention.per_device import Division
from vcap_jax.kernels.attention.scores import seen_lengths
from vcap_jax.kernels.native.library import NoLibrary, targets

Array = jax.Array

MOST_HEADS = 96
"""Query heads of a key head that the kernel for new tokens takes: the rows of its blocks."""


@dataclass(frozen=True, kw_only=True)
class Native:
    """See ``Kernel`` and ``Parts``. Runs on CPUs only, and needs a C++ compiler the first time."""

    name: str = "native"
    decoding: str = "native"
    range_block = None

    def parts(self, scores: int) -> Native:
        del scores
        return self

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Any head size will do. Raises UnsupportedAttention also where the kernels cannot be compiled."""
        del head_size
        if jnp.dtype(dtype) not in (jnp.float32, jnp.bfloat16):
            raise UnsupportedAttention(
                f"model.attention native computes in float32, for float32 or bfloat16, not for {jnp.dtype(dtype)}; "
                "set model.dtype"
            )
        try:
            targets()
        except NoLibrary as error:
            raise UnsupportedAttention(
                f"model.attention native: {error}. Or set model.attention=chunked"
            ) from error

    def forward(
        self, queries: Array, keys: Array, values: Array, lengths: Array | None, *, causal: bool
    ) -> tuple[Array, Array]:
        """See ``Parts``; the output is float32. Rows that see no key get zeros and -1e30."""
        division = Division.of(queries.shape[0], keys.shape[2])
        sequence, rows = division.heads_third, division.heads_second

        def run(q: Array, k: Array, v: Array, lengths: Array) -> tuple[Array, ...]:
            lse = (q.shape[0], q.shape[2], q.shape[1])
            return _call("forward", (q.shape, lse), q, k, v, lengths, causal=causal)

        inputs = (sequence, sequence, sequence, division.by_batch)
        arrays = (*_float32(queries, keys, values), seen_lengths(lengths, keys))
        out, lse = division.run(run, inputs, (sequence, rows))(*arrays)
        return out, lse

    def backward(self, attended: Attended, gradient: Array, *, causal: bool) -> tuple[Array, Array, Array]:
        """See ``Parts``; gradients are float32."""
        queries, keys, values, lengths, out, lse = attended
        division = Division.of(queries.shape[0], keys.shape[2])
        sequence, rows = division.heads_third, division.heads_second

        def run(q: Array, k: Array, v: Array, *rest: Array) -> tuple[Array, ...]:
            return _call("backward", (q.shape, k.shape, v.shape), q, k, v, *rest, causal=causal)

        inputs = (sequence, sequence, sequence, division.by_batch, sequence, rows, sequence)
        q, k, v, o, g = _float32(queries, keys, values, out, gradient)
        run_on = division.run(run, inputs, (sequence, sequence, sequence))
        d_queries, d_keys, d_values = run_on(q, k, v, seen_lengths(lengths, keys), o, lse, g)
        return d_queries, d_keys, d_values

    def decode(self, queries: Array, prompt: Cached, captions: Cached) -> Array:
        (batch, group, heads, _), key_heads = queries.shape, prompt.keys.shape[1]
        if heads // key_heads > MOST_HEADS:
            raise UnsupportedAttention(
                f"model.attention native takes {MOST_HEADS} query heads per key head, not {heads // key_heads}; "
                "set model.attention=chunked"
            )
        division = Division.of(batch, key_heads)

        def divided(x: Array) -> Array:
            return for_devices(x, batch, group, captions.parts, division.head_parts)

        def run(q: Array, *caches: Array) -> Array:
            prompt, own = caches[:3], [x.reshape(-1, *x.shape[4:]) for x in caches[3:5]]
            (out,) = _call("decode", (q.shape,), q, *prompt, *own, caches[5])
            return out

        of_prompt, of_queries, of_captions = division.heads_second, division.heads_third, division.parts_first
        inputs = (of_queries, of_prompt, of_prompt, division.by_batch, *[of_captions] * 2, division.by_batch)
        out = division.run(run, inputs, of_queries)(
            *_float32(queries, prompt.keys, prompt.values),
            prompt.seen.visible,
            *map(divided, _float32(captions.keys, captions.values)),
            captions.seen.visible,
        )
        return out.astype(queries.dtype)


def _call(
    function: str, shapes: tuple[tuple[int, ...], ...], *arrays: Array, **attributes: bool
) -> tuple[Array, ...]:
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return tuple(jax.ffi.ffi_call(targets()[f"attention_{function}"], results)(*arrays, **attributes))


def _float32(*arrays: Array) -> tuple[Array, ...]:
    return tuple(x.astype(jnp.float32) for x in arrays)
