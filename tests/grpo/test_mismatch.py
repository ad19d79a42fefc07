"""Mismatch of two engines' log-probabilities: against numpy over the whole step, cut into micro-batches or not."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from vcap_jax.grpo.mismatch import mismatch_metrics, mismatch_moments

CAP = 1.5


def step(noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sampler = -rng.exponential(1.0, (6, 4, 9)).astype(np.float32)
    trainer = (sampler + rng.normal(0, noise, sampler.shape)).astype(np.float32)
    mask = np.arange(9) < rng.integers(1, 10, (6, 4))[..., None]
    sampler[~mask] = np.nan
    trainer[0, 0, 0] = -np.inf
    return trainer, sampler, mask


def measured(arrays, parts: int) -> dict[str, float]:
    cut = zip(*(np.split(x, parts) for x in arrays), strict=True)
    return mismatch_metrics(jax.device_get([mismatch_moments(*part, cap=CAP) for part in cut]))


@pytest.mark.parametrize("noise", [1e-3, 0.5])
@pytest.mark.parametrize("parts", [1, 3])
def test_equals_numpy_over_the_step(noise, parts):
    trainer, sampler, mask = arrays = step(noise)
    row = measured(arrays, parts)
    shared = mask & np.isfinite(trainer)
    x, y = trainer[shared].astype(np.float64), sampler[shared].astype(np.float64)
    assert row["rollout/mismatch_mean"] == pytest.approx(np.abs(x - y).mean(), rel=1e-4)
    assert row["rollout/mismatch_max"] == pytest.approx(np.abs(x - y).max(), rel=1e-4)
    # One minus the correlation is what tells good from better.
    assert 1 - row["rollout/mismatch_correlation"] == pytest.approx(1 - np.corrcoef(x, y)[0, 1], rel=1e-2)
    assert row["rollout/truncated"] == pytest.approx((np.exp(x - y) > CAP).sum() / mask.sum())
    assert row["rollout/outside"] == pytest.approx(1 / mask.sum(), rel=1e-4)


def test_where_a_caption_has_one_weight_its_tokens_are_cut_together():
    trainer, sampler, mask = step(0.5)
    trainer[0, 0, 0] = sampler[0, 0, 0]
    moments = jax.device_get(mismatch_moments(trainer, sampler, mask, cap=CAP, level="sequence"))
    product = np.exp(np.where(mask, trainer - sampler, 0).sum(-1, keepdims=True))
    cut = mask & (product > CAP)
    assert 0 < cut.sum() < mask.sum()
    assert mismatch_metrics([moments])["rollout/truncated"] == pytest.approx(cut.sum() / mask.sum())


def test_equal_engines_agree():
    trainer, _, mask = step(0.0)
    trainer[0, 0, 0] = -1.0
    sampler = np.where(mask, trainer, np.nan)
    sampler[0, 0, 0] = np.nan  # which an engine did not report
    row = measured((trainer, sampler, mask), 2)
    assert row["rollout/mismatch_max"] == row["rollout/truncated"] == row["rollout/outside"] == 0
    assert row["rollout/mismatch_correlation"] == pytest.approx(1)


def test_no_moments_are_no_metrics():
    assert mismatch_metrics([]) == {}
    # Nor are those of a step whose groups are all flat and left out.
    trainer, sampler, mask = step(0.5)
    assert measured((trainer, sampler, np.zeros_like(mask)), 3) == {}
