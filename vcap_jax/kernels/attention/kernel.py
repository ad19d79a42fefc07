"""What an attention kernel is, and what the patterns of the model are put together from.

A kernel's parts compute softmax(q k^T / sqrt(d)) v without ever holding all scores, for one of two patterns: causal,
or every query sees the first ``lengths`` keys. The patterns of the model are put together from such parts
(``shared_prefix``): parts of one softmax over different keys are merged by their log-sum-exps, and each part's backward
pass gets the merged output and log-sum-exp, which makes its weights the ones of the whole softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from vcap_jax.system.errors import VCapError

Array = jax.Array


class UnsupportedAttention(VCapError, ValueError):
    """A backend cannot compute what it is asked for; the message names the remedy."""


@contextmanager
def private_jax(setting: str, kernel: str, happened: str, *, instead: str) -> Iterator[None]:
    """Where functions of JAX are looked up that it may change with any release: ImportError and AttributeError become
    UnsupportedAttention. setting: by which ``kernel``, which needs them, was asked for. instead: one that does not."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise UnsupportedAttention(
            f"{setting} {kernel}: JAX {jax.__version__} {happened} ({error}); install jax 0.10, 0.11 or 0.12, which "
            f"are known here, or set {setting}={instead}"
        ) from error


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


@partial(jax.tree_util.register_dataclass, data_fields=["visible", "early", "late"], meta_fields=["start"])
@dataclass(frozen=True)
class Seen:
    """Which columns of a cache new tokens see, said twice: as a mask, and as two ranges.

    visible: [B, L] bool, the same for all captions of a group.
    early, late: int32, [B] of prompts, [B, G] of captions: how many columns are seen from 0 and from ``start`` on. Of a
        caption that has ended both may be 0: what is computed for it nobody reads, and a kernel that goes by ranges
        spends nothing on its own columns.
    """

    visible: Bool[Array, "B L"]
    early: Int[Array, " *C"]
    late: Int[Array, " *C"]
    start: int

    @classmethod
    def first(cls, lengths: Int[Array, " B"], columns: int) -> Seen:
        """The first ``lengths`` of that many columns."""
        lengths = lengths.astype(jnp.int32)
        return cls(jnp.arange(columns) < lengths[:, None], lengths, jnp.zeros_like(lengths), 0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cached:
    """Keys and values that a new token sees, and which of them.

    R: rows that one token's heads read, [B, K] of a prompt and [parts B G K / parts] of captions, see
        ``attention.decode``.
    parts: captions' heads lie in so many parts, each with the rows of all captions: what devices along ``tensor`` are
        given one each of. 1: a caption's heads lie together.
    """

    keys: Float[Array, "*R d L"]
    values: Float[Array, "*R L d"]
    seen: Seen
    parts: int = field(default=1, metadata={"static": True})


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

    def backward(
        self, attended: Attended, gradient: Float[Array, "N S H d"], *, causal: bool
    ) -> tuple[Array, Array, Array]:
        """Gradients of queries, keys and values, float32 or their own types.

        gradient: of the output, in the queries' type.
        """


class TokenKernel(Protocol):
    """One way to compute attention of new tokens. A value: equal settings, equal hash, no state."""

    @property
    def name(self) -> str:
        """As in ``model.decode_attention``."""

    @property
    def range_block(self) -> int | None:
        """Columns of a caption's cache that are read at a time, as far as its own length; None where caches are read to
        a width that all captions share."""

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Raises UnsupportedAttention if the kernel cannot compute in ``dtype`` or with heads of that size."""

    def decode(self, queries: Array, prompt: Cached, captions: Cached) -> Array:
        """One new token of each caption, see ``attention.decode``."""


class Kernel(TokenKernel, Protocol):
    """One way to compute attention of whole sequences, under its name in ``model.attention``; most have none of their
    own for new tokens, which ``decode`` computes."""

    @property
    def decoding(self) -> str:
        """The name of what ``decode`` is, as in ``model.decode_attention``."""

    def parts(self, scores: int) -> Parts | None:
        """What to put a pattern with that many scores together from; None if all of them are better kept in memory
        (``dense``)."""
