"""JAX's Splash attention kernel for TPU, forward and backward.

Splash skips the blocks that its mask leaves empty. The kernel's own differentiation cannot be used for parts of a
softmax, so its forward pass with residuals and its backward pass are called apart; the latter is a private function
of the kernel's module, looked up in one place. The kernel sees one sequence on one device: batches are mapped over
it, and under a mesh every device computes its own part of batch and key heads.

One kernel gives all three gradients from scores that are computed once: five products where a kernel of its own for
the queries' gradient takes seven. It visits the keys a span at a time and leaves what each span adds to the queries'
gradient, in the queries' type, to a sum afterwards.
"""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vcap_jax.kernels.attention.decode import decode
from vcap_jax.kernels.attention.kernel import Attended, UnsupportedAttention, private_jax
from vcap_jax.kernels.attention.per_device import Division
from vcap_jax.kernels.attention.scores import seen_lengths

if TYPE_CHECKING:
    from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import SplashAttentionKernel

Array = jax.Array

LANES = 128
"""Head size and blocks of sequence are multiples of this: the width of a TPU's vector registers."""

BLOCKS_OF_A_SPAN = 4
"""At most: the kernel's loop over them is unrolled."""

BACKWARD = (
    "save_residuals mask_value is_mqa block_sizes residual_checkpoint_name mask_function attn_logits_soft_cap "
    "interpret res do"
)


def _modules() -> tuple[ModuleType, ModuleType, ModuleType]:
    """JAX's kernel, its masks, and what it derives from a mask.

    Raises UnsupportedAttention if this release has none that is known here.
    """
    with private_jax("model.attention", "splash", "has moved its Splash kernel", instead="chunked"):
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

        found = list(inspect.signature(kernel._splash_attention_bwd).parameters)
        if found != BACKWARD.split():
            raise ImportError(f"_splash_attention_bwd takes {', '.join(found)}")
    return kernel, mask, info


@dataclass(frozen=True, kw_only=True)
class Splash:
    """See ``Kernel`` and ``Parts``. Compiles on TPU only.

    block: the most queries and keys of a block. spans: how many of keys are aimed at in the backward pass; each costs
    memory as large as the queries, and of one that a causal mask cuts all is computed. interpret: run the kernel's
    program step by step instead, on any platform and very slowly: for tests.
    """

    block: int = 512
    spans: int = 16
    interpret: bool = False
    name: str = "splash"
    decoding: str = "dense"
    range_block = None
    decode = staticmethod(decode)

    def parts(self, scores: int) -> Splash:
        del scores
        return self

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        del head_size  # padded
        if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float32):
            raise UnsupportedAttention(
                f"model.attention splash computes in bfloat16 or float32, not in {jnp.dtype(dtype)}; set model.dtype"
            )
        _modules()

    def forward(
        self, queries: Array, keys: Array, values: Array, lengths: Array | None, *, causal: bool
    ) -> tuple[Array, Array]:
        """See ``Parts``; the output has the queries' type."""
        self.check(queries.dtype, queries.shape[-1])
        plan = _Plan.of(self, queries, keys, causal=causal)
        division = Division.of(queries.shape[0], keys.shape[2])
        sequence, rows = division.heads_third, division.heads_second
        run = functools.partial(_forward, plan, _kernel(plan, queries.shape[2] // division.head_parts))
        inputs = (sequence, sequence, sequence, division.by_batch)
        out, lse = division.run(run, inputs, (sequence, rows))(
            queries, keys, values, seen_lengths(lengths, keys)
        )
        return out, lse

    def backward(self, attended: Attended, gradient: Array, *, causal: bool) -> tuple[Array, Array, Array]:
        """See ``Parts``; gradients have the types of what they are for."""
        queries, keys, values, lengths, out, lse = attended
        plan = _Plan.of(self, queries, keys, causal=causal)
        division = Division.of(queries.shape[0], keys.shape[2])
        sequence, rows = division.heads_third, division.heads_second
        run = functools.partial(_backward, plan, _kernel(plan, queries.shape[2] // division.head_parts))
        inputs = (sequence, sequence, sequence, division.by_batch, sequence, rows, sequence)
        run_on = division.run(run, inputs, (sequence, sequence, sequence))
        d_queries, d_keys, d_values = run_on(
            queries, keys, values, seen_lengths(lengths, keys), out, lse, gradient
        )
        return d_queries, d_keys, d_values


@dataclass(frozen=True)
class _Plan:
    """Sizes of one call: sequences padded to whole blocks, heads to whole lanes."""

    queries: int
    keys: int
    query_block: int
    key_block: int
    span: int
    head_size: int
    causal: bool
    interpret: bool

    @classmethod
    def of(cls, kernel: Splash, queries: Array, keys: Array, *, causal: bool) -> _Plan:
        def block(length: int, multiple: int = 1) -> int:
            """Of the fewest blocks whose number is such a multiple."""
            count = math.ceil(length / (kernel.block * multiple)) * multiple
            return math.ceil(length / count / LANES) * LANES

        rows, columns = queries.shape[1], keys.shape[1]
        most = min(BLOCKS_OF_A_SPAN, math.ceil(columns / kernel.block / kernel.spans))
        # The largest span of those that pad the keys least.
        of_a_span = min(range(most, 0, -1), key=lambda n: _rounded(columns, n * block(columns, n)))
        key_block = block(columns, of_a_span)
        sizes = (rows, columns, block(rows), key_block, of_a_span * key_block, queries.shape[-1])
        return cls(*sizes, causal, interpret=kernel.interpret)

    @property
    def padded_size(self) -> tuple[int, int]:
        """Queries and keys in whole blocks."""
        return _rounded(self.queries, self.query_block), _rounded(self.keys, self.span)

    def padded(self, x: Array, block: int) -> Array:
        """[N, S, H, d] -> [N, H, S', d'], the kernel's order."""
        x = x.swapaxes(1, 2)
        rows, lanes = -x.shape[2] % block, -x.shape[3] % LANES
        return jnp.pad(x, ((0, 0), (0, 0), (0, rows), (0, lanes)))

    def cut(self, x: Array, length: int) -> Array:
        """The way back."""
        return x[:, :, :length, : self.head_size].swapaxes(1, 2)

    def padded_rows(self, x: Array, fill: float = 0.0) -> Array:
        """[N, H, S] -> [N, H, S']."""
        return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % self.query_block)), constant_values=fill)

    def segments(self, length: Array) -> NamedTuple:
        """All queries are in segment 0, and so are the keys that they see."""
        rows, columns = self.padded_size
        seen = (jnp.arange(columns) >= length).astype(jnp.int32)
        return _modules()[0].SegmentIds(jnp.zeros(rows, jnp.int32), seen)


@functools.lru_cache(maxsize=64)
def _kernel(plan: _Plan, heads: int) -> SplashAttentionKernel:
    """The kernel of a plan with its mask digested: a pytree of small NumPy arrays."""
    kernel, masks, info = _modules()
    mask = masks.CausalMask(plan.padded_size) if plan.causal else masks.FullMask(plan.padded_size)
    rows, columns = plan.query_block, plan.key_block
    sizes = kernel.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_kv_compute=columns,
        block_q_dkv=rows,
        block_kv_dkv=plan.span,
        block_kv_dkv_compute=columns,
        use_fused_bwd_kernel=True,
    )
    whole = masks.MultiHeadMask([mask] * heads)
    # What the module's own constructor does, but for putting the tables on a device: there may be none yet.
    forward, function = info.process_mask(whole, (rows, columns), head_shards=1, q_seq_shards=1)
    # Also blocks that the mask leaves empty are visited: their part of the queries' gradient is to be zero.
    backward, _ = info.process_mask_dkv(
        whole, (rows, plan.span), head_shards=1, q_seq_shards=1, shrink_grid=False
    )
    return kernel.SplashAttentionKernel(
        forward,
        None,  # of a kernel for the queries' gradient alone
        backward,
        block_sizes=sizes,
        is_mqa=False,
        save_residuals=True,
        mask_value=kernel.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=None,
        mask_function=function,
        interpret=plan.interpret,
    )


def _rounded(length: int, block: int) -> int:
    return math.ceil(length / block) * block


def _scaled(plan: _Plan, queries: Array) -> Array:
    """The kernel does not scale its scores."""
    scaled = (queries.astype(jnp.float32) * plan.head_size**-0.5).astype(queries.dtype)
    return plan.padded(scaled, plan.query_block)


def _forward(
    plan: _Plan, splash: SplashAttentionKernel, queries: Array, keys: Array, values: Array, lengths: Array
) -> tuple[Array, Array]:
    def one(q: Array, k: Array, v: Array, length: Array) -> tuple[Array, Array]:
        out, (lse,) = splash(q, k, v, None if plan.causal else plan.segments(length))
        return out, lse

    arrays = (_scaled(plan, queries), plan.padded(keys, plan.span), plan.padded(values, plan.span))
    out, lse = jax.vmap(one)(*arrays, lengths)
    return plan.cut(out, plan.queries), lse[..., : plan.queries]


def _backward(
    plan: _Plan,
    splash: SplashAttentionKernel,
    queries: Array,
    keys: Array,
    values: Array,
    lengths: Array,
    out: Array,
    lse: Array,
    gradient: Array,
) -> tuple[Array, Array, Array]:
    options = splash.kwargs

    def one(
        q: Array, k: Array, v: Array, length: Array, out: Array, lse: Array, d_out: Array
    ) -> tuple[Array, Array, Array]:
        segments = None if plan.causal else plan.segments(length)
        residuals = (q, k, v, segments, None, out, lse, splash.dq_mask_info, splash.dkv_mask_info)
        return _modules()[0]._splash_attention_bwd(
            *(False, options["mask_value"], options["is_mqa"], options["block_sizes"], None),
            *(options["mask_function"], options["attn_logits_soft_cap"], options["interpret"]),
            residuals,
            d_out,
        )[3:6]

    rows, columns = plan.query_block, plan.span
    d_queries, d_keys, d_values = jax.vmap(one)(
        _scaled(plan, queries),
        plan.padded(keys, columns),
        plan.padded(values, columns),
        lengths,
        plan.padded(out, rows),
        # Rows of padding: exp(score - huge) is zero, so they give nothing to keys and values.
        plan.padded_rows(lse, fill=1e30),
        plan.padded(gradient, rows),
    )
    d_queries = plan.cut(d_queries, plan.queries).astype(jnp.float32) * plan.head_size**-0.5
    return d_queries.astype(queries.dtype), plan.cut(d_keys, plan.keys), plan.cut(d_values, plan.keys)
