"""cuDNN's flash attention, forward and backward, on NVIDIA GPUs.

JAX's public ``jax.nn.dot_product_attention(implementation="cudnn", return_residual=True)`` is not enough: it
rounds the log-sum-exp to the output's type, in which a merge of two softmaxes is off by parts in a hundred, and it
has no backward pass that takes an output and a log-sum-exp from elsewhere. Both exist one floor below, in a module
that JAX does not promise to keep. It is looked up in one place, here, and a release that has moved it is told so.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from vcap_jax.qwen3_vl.attention.decode import decode
from vcap_jax.qwen3_vl.attention.kernel import Attended, UnsupportedAttention

Array = jax.Array

FORWARD = "_dot_product_attention_fwd"
BACKWARD = "_dot_product_attention_bwd_rule"
PARAMETERS = {
    FORWARD: "query key value bias q_seqlen kv_seqlen q_offsets kv_offsets page_table_k page_table_v scale seed "
    "dropout_rate variadic_args mask_type layout sliding_window_length cudnn_version return_residual",
    BACKWARD: "scale seed dropout_rate variadic_args mask_type layout sliding_window_length is_training "
    "return_residual res grad_output",
}
"""The functions of JAX's module and the parameters that this one calls them with."""

LARGEST_HEAD = 128
"""What cuDNN takes forward and backward on every GPU from Ampere on."""


@functools.cache
def _module() -> Any:
    """JAX's cuDNN attention. Raises UnsupportedAttention if this release has none that is known here."""
    try:
        from jax._src.cudnn import fused_attention_stablehlo as module

        for name, expected in PARAMETERS.items():
            found = list(inspect.signature(getattr(module, name)).parameters)
            if found != expected.split():
                raise ImportError(f"{name} takes {', '.join(found)}")
    except (ImportError, AttributeError) as error:
        raise UnsupportedAttention(
            f"model.attention cudnn: JAX {jax.__version__} has moved its cuDNN attention ({error}); install "
            "jax 0.10.2, which it was written for, or set model.attention=chunked"
        ) from error
    return module


@dataclass(frozen=True, kw_only=True)
class CuDNN:
    """See ``Kernel`` and ``Parts``. Compiles on CUDA only; products in bfloat16 or float16, accumulated in float32."""

    name: str = "cudnn"
    decode = staticmethod(decode)

    def parts(self, scores: int) -> CuDNN:
        del scores
        return self

    def check(self, dtype: Any, head_size: int) -> None:
        if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
            raise UnsupportedAttention(
                f"model.attention cudnn computes in bfloat16, not in {jnp.dtype(dtype)}; set model.dtype=bfloat16, "
                "or model.attention=chunked for float32"
            )
        if head_size % 8 or head_size > LARGEST_HEAD:
            raise UnsupportedAttention(
                f"model.attention cudnn needs heads of a multiple of 8 up to {LARGEST_HEAD}, not {head_size}; "
                "set model.attention=chunked"
            )
        _module()

    def forward(
        self, queries: Array, keys: Array, values: Array, lengths: Array | None, *, causal: bool
    ) -> tuple[Array, Array]:
        """See ``Parts``; the output has the queries' type."""
        self.check(queries.dtype, queries.shape[-1])
        module, unused = _module(), jnp.zeros(0, queries.dtype)
        mask, sizes = _mask(queries, lengths, unused, causal=causal)
        return module._dot_product_attention_fwd(
            *(queries, keys, values, unused, *sizes, unused, unused, unused, unused),
            *_options(queries, mask),
            module.check_cudnn_version(),
            True,  # the log-sum-exp as well
        )

    def backward(self, attended: Attended, gradient: Array, *, causal: bool) -> tuple[Array, Array, Array]:
        """See ``Parts``; gradients have the types of what they are for."""
        queries, keys, values, lengths, out, lse = attended
        unused = jnp.zeros(0, queries.dtype)
        mask, sizes = _mask(queries, lengths, unused, causal=causal)
        residuals = (queries, keys, values, unused, *sizes, unused, unused, unused, unused, lse, out)
        gradients = _module()._dot_product_attention_bwd_rule(
            *_options(queries, mask), True, False, residuals, gradient
        )
        return gradients[0], gradients[1], gradients[2]


def _options(queries: Array, mask: Any) -> tuple[Any, ...]:
    """Scale, seed, dropout, (bias, its gradient), mask, layout, window: the order of both functions."""
    layout = _module().AttentionLayout.BTNH.value
    return queries.shape[-1] ** -0.5, 42, 0.0, (False, False), mask, layout, None


def _mask(
    queries: Array, lengths: Array | None, unused: Array, *, causal: bool
) -> tuple[Any, tuple[Array, Array]]:
    """cuDNN's mask type, and the lengths of queries and keys that go with it."""
    types = _module().MaskType
    if lengths is None:
        return types.CAUSAL if causal else types.NO_MASK, (unused, unused)
    # cuDNN promises nothing for rows without keys: they look at one, and the caller discards what they see.
    lengths = jnp.maximum(lengths.astype(jnp.int32), 1)
    return types.PADDING, (jnp.full_like(lengths, queries.shape[1]), lengths)
