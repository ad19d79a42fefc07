"""AdamW and the learning-rate schedules of the training-configuration table, as one optax chain.

Matches what ms-swift runs (the Hugging Face Trainer's optimizer and schedules): gradients clipped by their
global norm, decoupled weight decay on everything but norms and biases, and a schedule whose step 0 has
learning rate 0 whenever there is a warm-up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.stages import Lowered, Wrapped
from jax.tree_util import KeyPath, keystr
from jax.typing import ArrayLike
from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.models.policy import Params
from vcap_jax.parallel.sharding import Placement

State = TypeVar("State")
Result = TypeVar("Result")

# The Trainer exempts parameters by name; ours carry the same words (q_norm, input_layernorm, norm, bias).
_NO_DECAY = re.compile(r"(^|_)(bias|norm|layernorm|rmsnorm)\d*$")


@settings
class OptimizerConfig:
    """AdamW (defaults: the paper where it says, ms-swift where it does not)."""

    learning_rate: float = Field(default=5e-7, gt=0)
    """The peak of the learning rate."""
    schedule: Literal["cosine_with_min_lr", "linear_with_min_lr", "constant"] = "cosine_with_min_lr"
    """Shape after the warm-up; "cosine_with_min_lr" and "linear_with_min_lr" end at min_lr_ratio *
    learning_rate, "constant" ignores the ratio."""
    warmup_ratio: float = Field(default=0.01, ge=0, le=1)
    """Share of all updates (steps times grpo.num_iterations), rounded up, over which the learning
    rate rises from 0 to its peak. The first update has rate 0, so a run of one moves nothing."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Ratio to the peak of what the learning rate comes down to, which is reached after the last
    update."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam's decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Adam's decay of the second moment."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    moment_dtype: Literal["float32", "bfloat16"] | None = None
    """What the first moment is kept in, null for the parameters' type. "bfloat16" saves 2 bytes of
    each trained parameter's 16; the second moment, whose small changes it would lose, stays in the
    parameters' type."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay, scaled by the learning rate, of all that is trained but norms and
    biases; of adapters too."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """The gradient's global norm is cut to this; null leaves it."""


def warmup_steps(config: OptimizerConfig, total_steps: int) -> int:
    """ceil(warmup_ratio * total_steps), the Trainer's rounding."""
    return math.ceil(config.warmup_ratio * total_steps)


def learning_rate_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Step index (0 for the first update) -> learning rate.

    With W warm-up steps of N: lr * k / max(1, W) for k < W; then, at progress p = (k - W) / max(1, N - W),
    lr * (f (1 - r) + r) with f = (1 + cos(pi p)) / 2, or f = 1 - p for the linear one. Past N, p stays 1.
    Raises ValueError if there is no step to take.
    """
    if total_steps < 1:
        raise ValueError(f"the run has {total_steps} optimizer steps; it needs at least one")
    warmup = warmup_steps(config, total_steps)
    floor = config.min_lr_ratio

    def schedule(step: ArrayLike) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        progress = jnp.clip((step - warmup) / max(1, total_steps - warmup), 0.0, 1.0)
        if config.schedule == "cosine_with_min_lr":
            factor = (1 + jnp.cos(jnp.pi * progress)) / 2 * (1 - floor) + floor
        elif config.schedule == "linear_with_min_lr":
            factor = (1 - progress) * (1 - floor) + floor
        else:
            factor = jnp.ones_like(progress)
        return config.learning_rate * jnp.where(step < warmup, step / max(1, warmup), factor)

    return schedule


def decays(path: KeyPath[Hashable]) -> bool:
    """Whether weight decay applies to the parameter at this pytree path: no part of it is a norm or bias."""
    return not any(_NO_DECAY.search(keystr((key,), simple=True)) for key in path)


def decay_mask(params: Params) -> Params:
    """A pytree of bool like ``params``: True where weight decay applies.

    By name, not by rank: layers are stacked, so a norm's scale has two axes here.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: decays(path), params)


def build_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Clipping, Adam, weight decay and schedule for any pytree of parameters (nnx.State included).

    ``update`` needs the parameters as its third argument. Frozen parameters are simply not handed in.
    """
    limit = config.max_grad_norm
    return optax.chain(
        optax.identity() if limit is None else optax.clip_by_global_norm(limit),
        optax.adamw(
            learning_rate_schedule(config, total_steps),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.adam_epsilon,
            mu_dtype=config.moment_dtype,
            weight_decay=config.weight_decay,
            mask=decay_mask,
        ),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What an update changes. step: number of updates done; params: the trainable tree; opt_state: optax's."""

    step: jax.Array
    params: Params
    opt_state: optax.OptState


class InPlace(Generic[State, Result]):
    """``jax.jit`` of ``(state, ...) -> (state, result)``, the new state in the memory and on the devices of the old.

    Jit with donated state and pinned output shardings: otherwise XLA cuts norms as their gradients were, the next step
    compiles again, and the rules of the mesh no longer hold.
    """

    def __init__(self, function: Callable[[State, Params], tuple[State, Result]]) -> None:
        self._function = function
        self._jitted: Wrapped | None = None

    def __call__(self, state: State, arguments: Params) -> tuple[State, Result]:
        return self._for(state)(state, arguments)  # type: ignore[no-any-return]  # as ``function`` does

    def lower(self, state: State, arguments: Params) -> Lowered:
        """As the method of a jitted function; arguments may be ``jax.ShapeDtypeStruct`` with shardings."""
        return self._for(state).lower(state, arguments)

    def _for(self, state: State) -> Wrapped:
        if self._jitted is None:
            shardings = jax.tree.map(lambda x: x.sharding, state)
            self._jitted = jax.jit(self._function, donate_argnums=(0,), out_shardings=(shardings, None))
        return self._jitted


class OptimizerPrograms:
    """Jitted programs around one optimizer: its state, gradient sums and updates, whatever the objective."""

    def __init__(self, optimizer: optax.GradientTransformation) -> None:
        self._optimizer = optimizer
        self.apply = InPlace(self._apply)
        self._make_zeros: Wrapped | None = None

    def initial_state(self, params: Params, placement: Placement) -> TrainState:
        """A state at step 0 with its own copy of ``params`` (the state is donated from update to update); the
        optimizer's moments are cut as the parameters are."""
        copy = jax.tree.map(jnp.copy, params)
        shardings = placement.shardings(jax.eval_shape(self._optimizer.init, copy))
        opt_state = jax.jit(self._optimizer.init, out_shardings=shardings)(copy)
        return TrainState(placement.replicated(jnp.zeros((), jnp.int32)), copy, opt_state)

    def zeros(self, params: Params) -> Params:
        """A gradient sum to begin with, cut as ``params`` are."""
        if self._make_zeros is None:
            shardings = jax.tree.map(lambda x: x.sharding, params)
            self._make_zeros = jax.jit(
                lambda params: jax.tree.map(jnp.zeros_like, params), out_shardings=shardings
            )
        return self._make_zeros(params)

    def _apply(self, state: TrainState, gradients: Params) -> tuple[TrainState, dict[str, jax.Array]]:
        """One optimizer update; the state is donated."""
        norm = optax.tree.norm(gradients)
        updates, opt_state = self._optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), {"grad_norm": norm}
