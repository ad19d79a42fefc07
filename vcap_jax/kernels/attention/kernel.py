"""What an attention kernel is, and what the patterns of the model are put together from.

A kernel's parts compute softmax(q k^T / sqrt(d)) v without ever holding all scores, for one of two patterns: causal,
or every query sees the first ``lengths`` keys. The patterns of the model are put together from such parts
(``patterns``): parts of one softmax over different keys are merged by their log-sum-exps, and each part's backward
pass gets the merged output and log-sum-exp, which makes its weights the ones of the whole softmax.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from vcap_jax.system.errors import VCapError

Array = jax.Array


class UnsupportedAttention(VCapError, ValueError):
    """A backend cannot compute what it is asked for; the message names the remedy."""


class Attended(NamedTuple):
    """What a forward pass keeps for the backward pass.

    H is a multiple of K. lengths: how many keys are seen; None: all L of them, and always if causal, where S = L.
    out, lse (float32): of the whole softmax that these keys are a part of, so that the weights are exp(score - lse).
    """

    queries: Float[Array, "N S H d"]
    keys: Float[Array, "N L K d"]
    values: Float[Array, "N L K d"]
    lengths: Int[Array, " N"] | None
    out: Float[Array, "N S H d"]
    lse: Float[Array, "N H S"]


class Cached(NamedTuple):
    """Keys and values that a new token sees, and which of them.

    R: rows that one token's heads read, [B, K] of a prompt and [B G K] of captions, see ``attention.decode``.
    """

    keys: Float[Array, "*R d L"]
    values: Float[Array, "*R L d"]
    visible: Bool[Array, "B L"]


class Parts(Protocol):
    """Computes parts of a pattern. A value: equal settings, equal hash, no state. For shapes see ``Attended``."""

    def forward(
        self,
        queries: Float[Array, "N S H d"],
        keys: Float[Array, "N L K d"],
        values: Float[Array, "N L K d"],
        lengths: Int[Array, " N"] | None,
        *,
        causal: bool,
    ) -> tuple[Float[Array, "N S H d"], Float[Array, "N H S"]]:
        """Output [N, S, H, d], float32 or the queries' type, and log-sum-exp [N, H, S] float32, natural, of the scaled
        scores. Rows that see no key may give anything."""
        ...

    def backward(
        self, attended: Attended, gradient: Float[Array, "N S H d"], *, causal: bool
    ) -> tuple[Array, Array, Array]:
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

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Raises UnsupportedAttention if the kernel cannot compute in ``dtype`` or with heads of that size."""
        ...

    def parts(self, scores: int) -> Parts | None:
        """What to put a pattern with that many scores together from; None if all of them are better kept in memory
        (``dense``)."""
        ...

    def decode(self, queries: Array, prompt: Cached, captions: Cached) -> Array:
        """One new token of each caption, see ``attention.decode``; most kernels have none of their own for it."""
        ...
