"""Groups of random queries, keys and values, and their attention computed the slow way: every caption joined to a
copy of its own prompt, one plain causal softmax over all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, kw_only=True)
class Group:
    """Sizes of a batch of groups; the last prompt is always padded."""

    prompt: int
    group: int
    tokens: int
    heads: int = 4
    key_heads: int = 2
    dim: int = 8
    lengths: tuple[int, ...] = field(default=(1,))

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def real(self) -> np.ndarray:
        """[B, P + G * T] bool: what anything may depend on."""
        captions = np.ones((self.batch, self.group * self.tokens), bool)
        return np.concatenate([np.arange(self.prompt) < np.array(self.lengths)[:, None], captions], axis=1)

    def arrays(self, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries, keys, values; padding holds noise."""
        rng, length = np.random.default_rng(self.prompt + self.group), self.prompt + self.group * self.tokens
        heads = (self.heads, self.key_heads, self.key_heads)
        q, k, v = (rng.standard_normal((self.batch, length, n, self.dim)) for n in heads)
        return jnp.asarray(2 * q, dtype), jnp.asarray(k, dtype), jnp.asarray(v, dtype)

    def cotangent(self) -> np.ndarray:
        """A random gradient of the output, zero where nothing real is."""
        rng, length = np.random.default_rng(5), self.prompt + self.group * self.tokens
        return rng.standard_normal((self.batch, length, self.heads, self.dim)) * self.real[..., None, None]


def attention(q: jax.Array, k: jax.Array, v: jax.Array, visible: np.ndarray) -> jax.Array:
    """[S, H, d], [L, K, d], [L, K, d], [S, L] bool -> [S, H, d], in one piece and without tricks."""
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = jnp.einsum("qhd,shd->hqs", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("hqs,shd->qhd", jax.nn.softmax(jnp.where(visible, scores, -jnp.inf)), v)


def unshared(group: Group, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The output of ``grouped`` in float32; zeros for padding."""
    captions = group.prompt + np.arange(group.group * group.tokens).reshape(group.group, group.tokens)
    prompts = np.broadcast_to(np.arange(group.prompt), (group.group, group.prompt))
    copies = np.concatenate([prompts, captions], axis=1)  # [G, P + T]
    # Padding of a prompt sees itself alone, and nothing else sees it.
    real = group.real[:, copies[0]]
    visible = np.tril(real[:, None] & np.ones((copies.shape[1], 1), bool)) | np.eye(
        copies.shape[1], dtype=bool
    )

    def of_group(q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array) -> jax.Array:
        out = jax.vmap(lambda rows: attention(q[rows], k[rows], v[rows], visible))(copies)
        return jnp.concatenate([out[0, : group.prompt], out[:, group.prompt :].reshape(-1, *q.shape[1:])])

    out = jax.vmap(of_group)(*(x.astype(jnp.float32) for x in (q, k, v)), visible)
    return jnp.where(group.real[..., None, None], out, 0)
