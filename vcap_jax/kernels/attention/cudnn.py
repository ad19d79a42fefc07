"""cuDNN's flash attention, forward and backward, on NVIDIA GPUs.

JAX's public ``jax.nn.dot_product_attention(implementation="cudnn", return_residual=True)`` is not enough: it
rounds the log-sum-exp to the output's type, in which a merge of two softmaxes is off by parts in a hundred, and it
has no backward pass that takes an output and a log-sum-exp from elsewhere. Both exist one floor below, in a module
that JAX does not promise to keep. It is looked up in one place, here, and a release that has moved it is told so.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vcap_jax.kernels.attention.decode import decode
from vcap_jax.kernels.attention.kernel import Attended, UnsupportedAttention, private_jax

Array = jax.Array

FORWARD = "_dot_product_attention_fwd"
BACKWARD = "_dot_product_attention_bwd_rule"
PARAMETERS = (
    {  # JAX 0.10 and 0.11
        FORWARD: "query key value bias q_seqlen kv_seqlen q_offsets kv_offsets page_table_k page_table_v scale seed "
        "dropout_rate variadic_args mask_type layout sliding_window_length cudnn_version return_residual",
        BACKWARD: "scale seed dropout_rate variadic_args mask_type layout sliding_window_length is_training "
        "return_residual res grad_output",
    },
    {  # JAX 0.12, where a function may change the scores
        FORWARD: "query key value bias q_seqlen kv_seqlen q_offsets kv_offsets page_table_k page_table_v "
        "score_mod_args scale seed dropout_rate variadic_args mask_type layout sliding_window_length score_mod "
        "cudnn_version return_residual",
        BACKWARD: "scale seed dropout_rate variadic_args mask_type layout sliding_window_length score_mod "
        "cudnn_version return_residual res grad_output",
    },
)
"""The functions of JAX's module and what they take, release by release."""

LARGEST_HEAD = 128
"""What cuDNN takes forward and backward on every GPU from Ampere on."""


def _module() -> ModuleType:
    """JAX's cuDNN attention. Raises UnsupportedAttention if this release has none that is known here."""
    with private_jax("model.attention", "cudnn", "has moved its cuDNN attention", instead="chunked"):
        from jax._src.cudnn import fused_attention_stablehlo as module

        found = {name: _parameters(module, name) for name in (FORWARD, BACKWARD)}
        if found not in PARAMETERS:
            raise ImportError("; ".join(f"{name} takes {taken}" for name, taken in found.items()))
    return module


def _parameters(module: ModuleType, name: str) -> str:
    return " ".join(inspect.signature(getattr(module, name)).parameters)


def _call(name: str, **arguments: object) -> tuple[Array, ...]:
    """Calls that function of JAX's module with those of the arguments that this release has, by name."""
    module = _module()
    return getattr(module, name)(**{taken: arguments[taken] for taken in _parameters(module, name).split()})


@dataclass(frozen=True, kw_only=True)
class CuDNN:
    """See ``Kernel`` and ``Parts``. Compiles on CUDA only; products in bfloat16 or float16, accumulated in float32."""

    name: str = "cudnn"
    decoding: str = "dense"
    range_block = None
    decode = staticmethod(decode)

    def parts(self, scores: int) -> CuDNN:
        del scores
        return self

    def check(self, dtype: DTypeLike, head_size: int) -> None:
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
        arrays, options = _arguments(queries, keys, values, lengths, causal=causal)
        out, lse = _call(FORWARD, **arrays, **options, return_residual=True)
        return out, lse

    def backward(self, attended: Attended, gradient: Array, *, causal: bool) -> tuple[Array, Array, Array]:
        """See ``Parts``; gradients have the types of what they are for."""
        queries, keys, values, lengths, out, lse = attended
        arrays, options = _arguments(queries, keys, values, lengths, causal=causal)
        if "score_mod_args" not in _parameters(_module(), FORWARD).split():
            del arrays["score_mod_args"]  # what is kept for the backward pass has no names, only an order
        res = (*arrays.values(), lse, out)
        gradients = _call(
            BACKWARD, **options, is_training=True, return_residual=False, res=res, grad_output=gradient
        )
        return gradients[0], gradients[1], gradients[2]


def _arguments(
    queries: Array, keys: Array, values: Array, lengths: Array | None, *, causal: bool
) -> tuple[dict[str, object], dict[str, object]]:
    """Arrays, in the order of all releases, and options: what the functions of any release take of these."""
    module, unused = _module(), jnp.zeros(0, queries.dtype)
    mask, (query_lengths, key_lengths) = _mask(queries, lengths, unused, causal=causal)
    arrays = {
        "query": queries,
        "key": keys,
        "value": values,
        "bias": unused,
        "q_seqlen": query_lengths,
        "kv_seqlen": key_lengths,
        "q_offsets": unused,
        "kv_offsets": unused,
        "page_table_k": unused,
        "page_table_v": unused,
        "score_mod_args": (),
    }
    options = {
        "scale": queries.shape[-1] ** -0.5,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),  # no bias, no gradient of one
        "mask_type": mask,
        "layout": module.AttentionLayout.BTNH.value,
        "sliding_window_length": None,
        "score_mod": None,
        "cudnn_version": module.check_cudnn_version(),
    }
    return arrays, options


def _mask(
    queries: Array, lengths: Array | None, unused: Array, *, causal: bool
) -> tuple[object, tuple[Array, Array]]:
    """cuDNN's mask type, and the lengths of queries and keys that go with it."""
    types = _module().MaskType
    if lengths is None:
        return types.CAUSAL if causal else types.NO_MASK, (unused, unused)
    # cuDNN promises nothing for rows without keys: they look at one, and the caller discards what they see.
    lengths = jnp.maximum(lengths.astype(jnp.int32), 1)
    return types.PADDING, (jnp.full_like(lengths, queries.shape[1]), lengths)
