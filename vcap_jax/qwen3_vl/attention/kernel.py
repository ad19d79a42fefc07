"""What an attention kernel is: a forward pass with its log-sum-exp, and a backward pass that is given both.

A kernel computes softmax(q k^T / sqrt(d)) v without ever holding all scores, for one of two patterns: causal, or
every query sees the first ``lengths`` keys. The patterns of the model are put together from such parts
(``patterns``): parts of one softmax over different keys are merged by their log-sum-exps, and each part's backward
pass gets the merged output and log-sum-exp, which makes its weights the ones of the whole softmax.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax

Array = jax.Array


class UnsupportedAttention(ValueError):
    """A backend cannot compute what it is asked for; the message names the remedy."""


class Kernel(Protocol):
    """One way to compute attention. A kernel is a value: equal settings, equal hash, no state.

    Shapes: queries [N, S, H, d]; keys, values [N, L, K, d] with H a multiple of K; lengths [N] int32 or None
    (all L keys; always None if causal, where S = L); outputs [N, S, H, d]; log-sum-exps [N, H, S] float32, natural,
    of the scaled scores.
    """

    @property
    def name(self) -> str:
        """As in ``model.attention``."""
        ...

    def materialises(self, scores: int) -> bool:
        """Whether a pattern with that many scores is better computed with all of them in memory (``dense``)."""
        ...

    def check(self, dtype: Any, head_size: int) -> None:
        """Raises UnsupportedAttention if the kernel cannot compute in ``dtype`` or with heads of that size."""
        ...

    def forward(
        self, queries: Array, keys: Array, values: Array, lengths: Array | None, *, causal: bool
    ) -> tuple[Array, Array]:
        """Output, float32 or the queries' type, and log-sum-exp. Rows that see no key may give anything."""
        ...

    def backward(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        lengths: Array | None,
        out: Array,
        lse: Array,
        gradient: Array,
        *,
        causal: bool,
    ) -> tuple[Array, Array, Array]:
        """Gradients of queries, keys and values, float32 or their own types.

        out, lse: of the whole softmax these keys are a part of, so that the weights are exp(score - lse).
        gradient: of the output, in the queries' type.
        """
        ...
