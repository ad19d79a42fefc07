"""Advantages: the formula, what masking does, and that nothing non-finite gets out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.grpo.advantages import (
    AdvantageConfig,
    OverlongConfig,
    component_advantages,
    group_advantages,
    overlong_penalty,
)
from vcap_jax.grpo.config import GRPOConfig

NAN = float("nan")


def rewards(rows: int = 6, size: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, (rows, size))


def test_formula_of_the_paper_with_the_sample_standard_deviation() -> None:
    r = rewards()
    result = group_advantages(r, np.ones_like(r, bool), AdvantageConfig())
    expected = (r - r.mean(1, keepdims=True)) / (r.std(1, ddof=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(result.advantages, expected, rtol=1e-12)
    np.testing.assert_allclose(result.mean, r.mean(1))
    np.testing.assert_allclose(result.std, r.std(1, ddof=1))
    assert result.contributes.all()
    assert not result.skipped.any()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_masked_candidates_count_as_if_they_were_never_drawn(scale: Any, baseline: Any) -> None:
    config = AdvantageConfig(scale=scale, baseline=baseline)
    full = rewards(4, 5)
    padded = np.full((4, 8), NAN)
    columns = np.array([0, 2, 3, 6, 7])
    padded[:, columns] = full
    padded[:, 1] = np.inf
    valid = np.zeros(padded.shape, bool)
    valid[:, columns] = True
    masked = group_advantages(padded, valid, config)
    np.testing.assert_allclose(
        masked.advantages[:, columns], group_advantages(full, np.ones_like(full, bool), config).advantages
    )
    assert not masked.advantages[:, [1, 4, 5]].any()
    assert (masked.valid == 5).all()


def test_leave_one_out_and_batch_scale_by_their_definitions() -> None:
    r = rewards()
    others = np.stack([np.delete(r, i, axis=1).mean(1) for i in range(r.shape[1])], axis=1)
    config = AdvantageConfig(scale="none", baseline="leave_one_out")
    np.testing.assert_allclose(group_advantages(r, np.ones_like(r, bool), config).advantages, r - others)
    centred = r - r.mean(1, keepdims=True)
    result = group_advantages(r, np.ones_like(r, bool), AdvantageConfig(scale="batch"))
    np.testing.assert_allclose(result.advantages, centred / (r.std(ddof=1) + 1e-4))


def test_groups_with_fewer_than_two_valid_candidates_are_skipped_and_counted() -> None:
    r = np.array([[NAN, NAN, NAN], [5.0, NAN, NAN], [1.0, 2.0, NAN]])
    result = group_advantages(r, ~np.isnan(r), AdvantageConfig())
    assert result.skipped.tolist() == [True, True, False]
    assert result.valid.tolist() == [0, 1, 2]
    assert result.contributes.tolist() == [[False] * 3, [False] * 3, [True, True, False]]
    assert not result.advantages[:2].any()
    assert np.isfinite(result.advantages).all()


def test_a_valid_reward_that_is_not_finite_is_not_valid() -> None:
    r = np.array([[1.0, np.inf, 2.0, NAN]])
    result = group_advantages(r, np.ones_like(r, bool), AdvantageConfig())
    assert result.contributes.tolist() == [[True, False, True, False]]
    np.testing.assert_allclose(
        result.advantages[0, [0, 2]], [-0.5 / (0.5**0.5 + 1e-4), 0.5 / (0.5**0.5 + 1e-4)]
    )


def test_equal_rewards_give_exactly_zero_and_are_reported_as_flat() -> None:
    # The float32 mean of eight times 0.83 is not 0.83 to the last bit.
    r = np.full((1, 7), 0.83, np.float32)
    result = group_advantages(r, np.ones_like(r, bool), AdvantageConfig())
    assert not result.advantages.any()
    assert result.flat.tolist() == [True]
    assert result.contributes.all()


def test_the_same_under_jit_with_clean_gradients() -> None:
    r = rewards().astype(np.float32)
    r[0, :7], r[1], r[2, 3] = NAN, 0.5, np.inf
    valid = np.isfinite(r)

    @jax.jit
    def total(r: jax.Array) -> tuple[jax.Array, jax.Array]:
        result = group_advantages(r, jnp.asarray(valid), AdvantageConfig())
        return (result.advantages**3).sum(), result.advantages

    (_, advantages), gradient = jax.value_and_grad(total, has_aux=True)(jnp.asarray(r))
    np.testing.assert_allclose(
        advantages, group_advantages(r, valid, AdvantageConfig()).advantages, atol=1e-5
    )
    assert np.isfinite(np.asarray(gradient)).all()
    assert not np.asarray(gradient)[~valid].any()


def test_dropped_flat_groups_are_as_if_they_were_not_in_the_step() -> None:
    r = np.array([[0.5, 0.5, 0.5], [1.0, 0.0, 0.5], [NAN, 0.2, 0.2], [NAN, NAN, 0.3]])
    kept = group_advantages(r, ~np.isnan(r), AdvantageConfig())
    dropped = group_advantages(r, ~np.isnan(r), AdvantageConfig(drop_flat=True))
    np.testing.assert_array_equal(dropped.advantages, kept.advantages)
    assert kept.contributes.sum() == 3 + 3 + 2
    assert dropped.contributes.tolist() == [[False] * 3, [True] * 3, [False] * 3, [False] * 3]
    # They are counted, and told from groups that the judge left without scores.
    assert dropped.flat.tolist() == [True, False, True, False]
    assert dropped.skipped.tolist() == [False, False, False, True]


def test_a_group_that_rounding_alone_keeps_from_being_flat_is_counted_and_dropped() -> None:
    r = np.array([[0.05 * 4 + 0.04 * 1 + 0.01 * 4, 0.04 * 6 + 0.01 * 4], [0.28, 0.29]])
    assert r[0, 0] != r[0, 1]
    dropped = group_advantages(r, np.ones_like(r, bool), AdvantageConfig(drop_flat=True))
    assert dropped.flat.tolist() == [True, False]
    assert dropped.contributes.tolist() == [[False, False], [True, True]]
    kept = group_advantages(r, np.ones_like(r, bool), AdvantageConfig())
    assert kept.flat.tolist() == [True, False]
    assert abs(kept.advantages[0]).max() < 1e-9


def test_overlong_captions_cost_by_the_formula() -> None:
    lengths = np.array([[1, 80, 81, 90, 100, 120]])
    expected = [[0, 0, -0.05, -0.5, -1, -1]]
    np.testing.assert_allclose(overlong_penalty(lengths, 100, OverlongConfig(weight=1.0)), expected)
    np.testing.assert_allclose(
        overlong_penalty(lengths, 100, OverlongConfig(weight=0.3)), 0.3 * np.array(expected)
    )
    assert not overlong_penalty(lengths, 100, OverlongConfig()).any()
    np.testing.assert_allclose(
        overlong_penalty(jnp.asarray(lengths), 100, OverlongConfig(weight=1.0)), expected, atol=1e-6
    )


@pytest.mark.live
@pytest.mark.parametrize(("longest", "buffer"), [(100, 20), (64, 16), (4096, 1024), (7, 7)])
def test_overlong_captions_cost_what_they_cost_in_trl(longest: int, buffer: int) -> None:
    pytest.importorskip("torch")
    rewards = pytest.importorskip("trl.rewards")
    theirs = rewards.get_soft_overlong_punishment(longest, buffer)
    lengths = np.arange(1, longest + 3)
    ours = overlong_penalty(lengths, longest, OverlongConfig(weight=1.0, buffer=buffer / longest))
    np.testing.assert_allclose(ours, theirs(completion_ids=[[0] * n for n in lengths]), atol=1e-9)


def test_wrong_shapes_and_names_are_refused() -> None:
    with pytest.raises(ValueError, match="groups, candidates"):
        group_advantages(np.zeros(8), np.ones(8, bool), AdvantageConfig())
    with pytest.raises(ValueError, match=r"AdvantageConfig\nscale\n"):
        AdvantageConfig(scale="std")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"OverlongConfig\nweight\n"):
        OverlongConfig(weight=-1)
    with pytest.raises(ValueError, match=r"OverlongConfig\nbuffer\n"):
        OverlongConfig(buffer=0)


def test_each_component_alone_by_hand() -> None:
    # Component 0 is 0, 1, 2 (mean 1, deviation 1), component 1 is 0, 0, 0.03 (mean 0.01, deviation 0.01 sqrt(3)).
    components = np.array([[[0.0, 0.0], [1.0, 0.0], [2.0, 0.03]]])
    weights = np.array([[0.5, 2.0]])
    rewards = (components * weights[:, None]).sum(-1)
    config = AdvantageConfig(per_component=True, scale="none", epsilon=1e-12)
    result = component_advantages(rewards, components, weights, np.ones((1, 3), bool), config)
    third = 1 / np.sqrt(3)
    expected = [-0.5 - 2 * third, -2 * third, 0.5 + 4 * third]
    np.testing.assert_allclose(result.advantages, [expected], rtol=1e-9)
    # What is logged stays the reward's own.
    np.testing.assert_allclose(result.mean, rewards.mean(1))
    np.testing.assert_allclose(result.std, rewards.std(1, ddof=1))


def test_a_single_component_alone_is_the_reward_itself() -> None:
    r = rewards()
    components, weights = r[:, :, None] / 0.3, np.full((len(r), 1), 0.3)
    config = AdvantageConfig(per_component=True, scale="none", epsilon=1e-12)
    alone = component_advantages(r, components, weights, np.ones_like(r, bool), config)
    usual = group_advantages(r, np.ones_like(r, bool), AdvantageConfig(epsilon=1e-12))
    np.testing.assert_allclose(alone.advantages, 0.3 * usual.advantages, rtol=1e-9)


def test_the_spread_of_one_component_does_not_drown_another() -> None:
    rng = np.random.default_rng(3)
    loud, quiet = 100 * rng.normal(size=(4, 8)), rng.normal(size=(4, 8))
    components, weights = np.stack([loud, quiet], axis=-1), np.ones((4, 2))
    valid, total = np.ones((4, 8), bool), loud + quiet

    def agreement(advantages: np.ndarray) -> float:
        return float(np.corrcoef(np.asarray(advantages).ravel(), quiet.ravel())[0, 1])

    alone = AdvantageConfig(per_component=True, scale="none")
    of_each = component_advantages(total, components, weights, valid, alone).advantages
    of_sum = group_advantages(total, valid, AdvantageConfig()).advantages
    assert agreement(of_each) > 0.5
    assert agreement(of_sum) < 0.4
    # GDPO: the sum of what each component gives, over the deviation of all sums of the step.
    batch = component_advantages(total, components, weights, valid, AdvantageConfig(scale="batch"))
    np.testing.assert_allclose(batch.advantages, of_each / (np.std(of_each, ddof=1) + 1e-4), rtol=1e-6)


def test_components_of_masked_candidates_do_not_count() -> None:
    components = np.array([[[0.0, 5.0], [1.0, 5.0], [9.0, 9.0], [2.0, 5.0]]] * 2)
    r = components.sum(-1)
    r[:, 2] = NAN
    r[1, 1:] = NAN
    config = AdvantageConfig(per_component=True, scale="none", drop_flat=True, epsilon=1e-12)
    result = component_advantages(r, components, np.ones((2, 2)), np.isfinite(r), config)
    np.testing.assert_allclose(result.advantages[0], [-1, 0, 0, 1], atol=1e-9)
    assert result.contributes.tolist() == [[True, True, False, True], [False] * 4]
    assert result.skipped.tolist() == [False, True]
    # A reward that is no number takes its components along, whoever calls it valid.
    called_valid = component_advantages(r, components, np.ones((2, 2)), np.ones_like(r, bool), config)
    np.testing.assert_array_equal(called_valid.advantages, result.advantages)
    same = np.full((1, 4, 2), 0.1)
    flat = component_advantages(np.full((1, 4), 0.2), same, np.ones((1, 2)), np.ones((1, 4), bool), config)
    assert flat.flat.all()
    assert not flat.contributes.any()


def test_a_group_that_is_left_out_as_a_whole_leaves_the_step_s_deviation_alone() -> None:
    components = np.array([[[1.0], [0.0]]] * 2)
    rewards, config = components[..., 0], AdvantageConfig(scale="batch", per_component=True)
    with_a_lone_one, without = (
        component_advantages(rewards, components, np.ones((2, 1)), np.array([[True, True], rest]), config)
        for rest in ([True, False], [False, False])
    )
    np.testing.assert_array_equal(with_a_lone_one.advantages, without.advantages)
    assert with_a_lone_one.valid.tolist() == [2, 1]
    assert with_a_lone_one.skipped.tolist() == [False, True]


def test_components_that_do_not_fit_are_refused() -> None:
    r = rewards(2, 3)
    with pytest.raises(ValueError, match=r"components \(2, 3, 2\) must be"):
        component_advantages(
            r, np.zeros((2, 3, 2)), np.zeros((2, 3)), np.ones_like(r, bool), AdvantageConfig()
        )
    with pytest.raises(ConfigError, match=r"set grpo\.overlong\.weight to 0"):
        load_config(GRPOConfig, [], ["advantages.per_component=true", "overlong.weight=0.5"])
