"""The schedule by its formula, and AdamW by one written out by hand."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vcap_jax.parallel.sharding import MeshConfig, Placement, Rule
from vcap_jax.training.optimizer import (
    OptimizerConfig,
    OptimizerPrograms,
    build_optimizer,
    decay_mask,
    learning_rate_schedule,
    warmup_steps,
)


def cosine_with_min_lr(step: int, total: int, warmup: int, ratio: float) -> float:
    if step < warmup:
        return step / max(1, warmup)
    factor = 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
    return factor * (1 - ratio) + ratio


@pytest.mark.parametrize(("total", "ratio"), [(906, 0.01), (906, 0.003), (10, 0.0), (1, 0.0), (3, 1.0)])
def test_cosine_with_min_lr(total: int, ratio: float) -> None:
    config = OptimizerConfig(learning_rate=5e-7, warmup_ratio=ratio, min_lr_ratio=0.1)
    warmup = math.ceil(ratio * total)
    assert warmup_steps(config, total) == warmup
    rates = learning_rate_schedule(config, total)(jnp.arange(total + 1))
    expected = [5e-7 * cosine_with_min_lr(step, total, warmup, 0.1) for step in range(total + 1)]
    np.testing.assert_allclose(rates, expected, rtol=2e-6)
    assert (rates[0] == 0) == (warmup > 0)
    np.testing.assert_allclose(rates[total], 5e-8 if warmup < total else 5e-7, rtol=1e-6)


@pytest.mark.live
def test_cosine_with_min_lr_is_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers import get_cosine_with_min_lr_schedule_with_warmup

    total, config = 97, OptimizerConfig(learning_rate=3e-4, warmup_ratio=0.05, min_lr_ratio=0.1)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=config.learning_rate)
    theirs = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, warmup_steps(config, total), total, min_lr_rate=config.min_lr_ratio
    )
    ours = learning_rate_schedule(config, total)
    for step in range(total):
        np.testing.assert_allclose(ours(step), theirs.get_last_lr()[0], rtol=2e-6)
        optimizer.step()
        theirs.step()


def test_other_schedules() -> None:
    linear = learning_rate_schedule(
        OptimizerConfig(learning_rate=1.0, schedule="linear_with_min_lr", warmup_ratio=0.2, min_lr_ratio=0.5),
        10,
    )
    np.testing.assert_allclose([linear(k) for k in (0, 1, 2, 6, 10)], [0, 0.5, 1, 0.75, 0.5])
    constant = learning_rate_schedule(
        OptimizerConfig(learning_rate=1.0, schedule="constant", warmup_ratio=0.0), 10
    )
    np.testing.assert_allclose([constant(k) for k in (0, 5, 10)], [1, 1, 1])


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.q_proj = nnx.Linear(4, 4, rngs=rngs)
        self.q_norm = nnx.RMSNorm(4, rngs=rngs)
        self.norm1 = nnx.LayerNorm(4, rngs=rngs)
        self.post_attention_layernorm = nnx.RMSNorm(4, rngs=rngs)


def test_norms_and_biases_do_not_decay_whatever_their_rank() -> None:
    params = nnx.split(Layer(nnx.Rngs(0)), nnx.Param)[1]
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    mask = decay_mask(stacked)
    decayed = {
        ".".join(str(getattr(key, "key", getattr(key, "name", ""))) for key in path[:-1])
        for path, value in jax.tree_util.tree_flatten_with_path(mask)[0]
        if value
    }
    assert decayed == {"q_proj.kernel"}


def reference_adamw(params: Any, gradients: list[Any], config: OptimizerConfig, total: int) -> Any:
    """torch.optim.AdamW's arithmetic after clipping, in float64; "kernel" decays, "bias" does not."""
    first = {name: np.zeros_like(p) for name, p in params.items()}
    second = {name: np.zeros_like(p) for name, p in params.items()}
    for step, gradient in enumerate(gradients):
        lr = config.learning_rate * cosine_with_min_lr(
            step, total, warmup_steps(config, total), config.min_lr_ratio
        )
        norm = math.sqrt(sum((g**2).sum() for g in gradient.values()))
        scale = min(1.0, config.max_grad_norm / norm) if config.max_grad_norm else 1.0
        for name, g in gradient.items():
            g = g * scale
            first[name] = config.beta1 * first[name] + (1 - config.beta1) * g
            second[name] = config.beta2 * second[name] + (1 - config.beta2) * g**2
            m = first[name] / (1 - config.beta1 ** (step + 1))
            v = second[name] / (1 - config.beta2 ** (step + 1))
            decay = config.weight_decay if name == "kernel" else 0.0
            params[name] = params[name] * (1 - lr * decay) - lr * m / (np.sqrt(v) + config.adam_epsilon)
    return params


@pytest.mark.parametrize("max_grad_norm", [1.0, None])
def test_update_is_clipped_adamw(max_grad_norm: float | None) -> None:
    config = OptimizerConfig(learning_rate=0.05, warmup_ratio=0.2, max_grad_norm=max_grad_norm)
    rng = np.random.default_rng(0)
    start = {"kernel": rng.normal(0, 1, (3, 4)), "bias": rng.normal(0, 1, 4)}
    gradients = [
        {name: rng.normal(0, 2.0 / (1 + k), p.shape) for name, p in start.items()} for k in range(10)
    ]
    optimizer = build_optimizer(config, 10)
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(jax.tree.map(jnp.float32, gradient), state, params)
        params = optax.apply_updates(params, updates)
    expected = reference_adamw(dict(start), gradients, config, 10)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), params, expected)


def test_works_on_nnx_state_under_jit() -> None:
    params = nnx.split(Layer(nnx.Rngs(0)), nnx.Param)[1]
    optimizer = build_optimizer(OptimizerConfig(warmup_ratio=0.0, learning_rate=0.1), 5)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(jax.tree.map(jnp.zeros_like, params), state, params)
        return optax.apply_updates(params, updates), state

    after, _ = step(params, optimizer.init(params))
    np.testing.assert_allclose(
        after.q_proj.kernel.get_value(), 0.99 * params.q_proj.kernel.get_value(), rtol=1e-5
    )
    np.testing.assert_array_equal(after.q_norm.scale.get_value(), params.q_norm.scale.get_value())


def test_settings_out_of_range_are_refused_by_name() -> None:
    for field, value in [
        ("learning_rate", 0.0),
        ("warmup_ratio", 1.1),
        ("beta2", 1.0),
        ("max_grad_norm", 0.0),
    ]:
        with pytest.raises(ValueError, match=rf"OptimizerConfig\n{field}\n.*input_value={value}"):
            OptimizerConfig(**{field: value})
    with pytest.raises(ValueError, match="at least one"):
        learning_rate_schedule(OptimizerConfig(), 0)


def test_the_first_moment_alone_may_be_kept_in_bfloat16() -> None:
    """Its rounding moves a step by no more than its own eight bits do."""
    params = {"kernel": jnp.linspace(-1, 1, 12).reshape(3, 4)}
    gradients = [{"kernel": jnp.sin(k + jnp.arange(12.0).reshape(3, 4))} for k in range(3)]
    results = {}
    for dtype in (None, "bfloat16"):
        config = OptimizerConfig(learning_rate=1e-2, warmup_ratio=0.0, moment_dtype=dtype)
        optimizer = build_optimizer(config, 10)
        state, now = optimizer.init(params), params
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, now)
            now = optax.apply_updates(now, updates)
        adam = next(s for s in jax.tree.leaves(state, is_leaf=_is_adam) if _is_adam(s))
        assert adam.mu["kernel"].dtype == (dtype or "float32")
        assert adam.nu["kernel"].dtype == jnp.float32
        results[dtype] = now["kernel"]
    assert not jnp.array_equal(results[None], results["bfloat16"])
    np.testing.assert_allclose(results[None], results["bfloat16"], atol=3 * 1e-2 * 2**-7)
    with pytest.raises(ValueError, match=r"moment_dtype\n.*input_value='int8'"):
        OptimizerConfig(moment_dtype="int8")  # type: ignore[arg-type]


def _is_adam(node: Any) -> bool:
    return isinstance(node, optax.ScaleByAdamState)


def test_an_update_leaves_everything_where_it_was() -> None:
    """Gradients of a norm may come cut over the devices; the norm and its moments stay whole."""
    placement = Placement.build(MeshConfig(), rules=[Rule(r"\.scale$")])
    params = placement.state({"norm": {"scale": jnp.ones((3, 64))}, "down": {"kernel": jnp.ones((3, 16, 8))}})
    programs = OptimizerPrograms(build_optimizer(OptimizerConfig(warmup_ratio=0.0), 10))
    state = programs.initial_state(params, placement)
    before = jax.tree.map(lambda x: x.sharding, state)
    cut = NamedSharding(placement.mesh, PartitionSpec(None, "fsdp"))
    state, _ = programs.apply(state, jax.tree.map(lambda x: jax.device_put(x * 0.1, cut), params))
    assert jax.tree.map(lambda x: x.sharding, state) == before
    assert state.params["norm"]["scale"].is_fully_replicated
    assert not state.params["down"]["kernel"].is_fully_replicated


def test_a_state_goes_on_from_update_to_update_and_is_a_copy_of_what_it_was_made_of() -> None:
    config = OptimizerConfig(learning_rate=0.05, warmup_ratio=0.2)
    rng = np.random.default_rng(0)
    start = {"kernel": rng.normal(0, 1, (3, 4)), "bias": rng.normal(0, 1, 4)}
    gradients = [{name: rng.normal(0, 1, p.shape) for name, p in start.items()} for _ in range(3)]
    placement = Placement.build(MeshConfig(), jax.devices()[:1])
    params = placement.state(jax.tree.map(np.float32, start))
    programs = OptimizerPrograms(build_optimizer(config, 10))
    state = programs.initial_state(params, placement)
    for gradient in gradients:
        state, measured = programs.apply(state, placement.state(jax.tree.map(np.float32, gradient)))
    assert int(state.step) == 3
    # Before it is clipped.
    norm = math.sqrt(sum((g**2).sum() for g in gradients[-1].values()))
    assert float(measured["grad_norm"]) == pytest.approx(norm)
    expected = reference_adamw(dict(start), gradients, config, 10)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), state.params, expected)
    # Each update has given its state up.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params, start)
