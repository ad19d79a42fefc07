"""Matrices are taught by Muon, all else by Adam."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vcap_jax.recipes.teaching.optimizer import teaching_optimizer


def test_a_matrix_moves_by_an_orthogonal_step_whatever_its_gradient() -> None:
    """Muon's step has singular values near the learning rate; stacks are matrices side by side."""
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.zeros((2, 6, 4)), "scale": jnp.zeros(4)}
    rule = teaching_optimizer(params, 100, 0.1)
    state = rule.init(params)
    for _ in range(12):
        gradients = {"kernel": jnp.asarray(rng.normal(size=(2, 6, 4))), "scale": jnp.ones(4)}
        updates, state = rule.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    for own in np.asarray(updates["kernel"]):
        values = np.linalg.svd(own, compute_uv=False)
        assert values.max() < 2.1 * values.min()
    assert np.asarray(updates["scale"]) == pytest.approx(-0.1 * 0.15, rel=0.2)
