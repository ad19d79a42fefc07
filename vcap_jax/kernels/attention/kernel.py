"""What an attention kernel is, and what the patterns of the model are put together from.

A kernel's parts compute softmax(q k^T / sqrt(d)) v without ever holding all scores, for one of two patterns: causal,
or every query sees the first ``lengths`` keys. The patterns of the model are put together from such parts
(``patterns``): parts of one softmax over different keys are merged by their log-sum-exps, and each part's backward
pass gets the merged output and log-sum-exp, which makes its weights the ones of the whole softmax.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

from vcap_jax.system.errors import VCapError

Array = jax.Array


class UnsupportedAttention(VCapError, ValueError):
    """A backend cannot compute what it is asked for; the message names the remedy."""


class Attended(NamedTuple):
    """What a forward pass keeps for the backward pass.

    queries: [N, S, H, d]. keys, values: [N, L, K, d] with H a multiple of K. lengths: [N] int32, how many keys are
    seen; None: all L of them, and always if causal, where S = L. out: [N, S, H, d]; lse: [N, H, S] float32; both of the
    whole softmax that these keys are a part of, so that the weights are exp(score - lse).
    """

    queries: Array
    keys: Array
    values: Array
    lengths: Array | None
    out: Array
    lse: Array


class Cached(NamedTuple):
    """Keys and values that a new token sees, and which of them; for shapes see ``attention.decode``."""

    keys: Array
    values: Array
    visible: Array


class Parts(Protocol):
    """Computes parts of a pattern. A value: equal settings, equal hash, no state. For shapes see ``Attended``."""

    def forward(
        self, queries: Array, keys: Array, values: Array, lengths: Array | None, *, causal: bool
    ) -> tuple[Array, Array]:
        """Output [N, S, H, d], float32 or the queries' type, and log-sum-exp [N, H, S] float32, natural, of the scaled
        scores. Rows that see no key may give anything."""
        ...

    def backward(self, attended: Attended, gradient: Array, *, causal: bool) -> tuple[Array, Array, Array]:
        """Gradients of queries, keys and values, float32 or their own types.

        gradient: of the output, in the queries' type.
        """
        ...


class Kernel(Protocol):
    """One way to compute attention. A value, as its parts are."""

    @property
    def name(self) -> str:
        """As in ``model.attention``."""
        ...

    def check(self, dtype: Any, head_size: int) -> None:
        """Raises UnsupportedAttention if the kernel cannot compute in ``dtype`` or with heads of that size."""
        ...

    def parts(self, scores: int) -> Parts | None:
        """What to put a pattern with that many scores together from; None if all of them are better kept in memory
        (``dense``)."""
        ...

    def decode(self, queries: Array, prompt: Cached, captions: Cached) -> Array:
        """One new token of each caption, see ``attention.decode``; most kernels have none of their own for it."""
        ...
