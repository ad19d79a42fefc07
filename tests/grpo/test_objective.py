"""The objective: TRL's numbers, exact accumulation, masking, and chunked log-probabilities."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.grpo import trl_reference
from vcap_jax.grpo import objective
from vcap_jax.grpo.objective import ObjectiveConfig
from vcap_jax.training import logprobs

CASES = trl_reference.cases()


def config_of(case: dict[str, Any]) -> ObjectiveConfig:
    names = ("aggregation", "beta", "importance", "epsilon_low", "epsilon_high")
    return ObjectiveConfig(
        **{name: case[name] for name in names},
        surrogate=case.get("surrogate", "clipped"),
        max_completion_length=trl_reference.MAX_LENGTH,
    )


def our_loss(inputs: dict[str, np.ndarray], case: dict[str, Any]) -> dict[str, np.ndarray]:
    mask = objective.caption_mask(
        jnp.asarray(inputs["lengths"]), jnp.ones(len(inputs["lengths"]), bool), inputs["new"].shape[1]
    )
    totals = objective.step_totals(jnp.asarray(inputs["lengths"]), jnp.ones(len(inputs["lengths"]), bool))
    weights = None
    if case.get("rollout"):
        weights = objective.truncated_importance_weights(
            inputs["old"], inputs["rollout_logprobs"], mask, cap=1.5, level=case["rollout"]
        )

    def loss(new: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return objective.grpo_loss(
            new,
            inputs["advantages"],
            mask,
            totals,
            config_of(case),
            old=None if case.get("without_old") else inputs["old"],
            reference=inputs["reference"],
            rollout_weights=weights,
        )

    (value, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(inputs["new"]))
    return {"loss": value, "gradient": gradient, **metrics}


@pytest.mark.parametrize("name", CASES)
def test_equals_trl(name: str) -> None:
    golden = np.load(trl_reference.GOLDEN)
    inputs = {key.split("/")[1]: golden[key] for key in golden.files if key.startswith("inputs/")}
    ours = our_loss(inputs, CASES[name])
    for key in ("loss", "gradient", "clip_low", "clip_high"):
        np.testing.assert_allclose(ours[key], golden[f"{name}/{key}"], atol=1e-6, err_msg=f"{name}: {key}")
    if CASES[name]["beta"]:
        np.testing.assert_allclose(ours["kl"], golden[f"{name}/kl"], atol=1e-6)
    if CASES[name]["importance"] == "token" and not CASES[name].get("without_old"):
        if CASES[name]["epsilon_low"] < 1:
            assert golden[f"{name}/clip_low"] > 0.05, "the inputs must make the clip act on both sides"
        assert golden[f"{name}/clip_high"] > 0.05


@pytest.mark.live
@pytest.mark.parametrize("seed", range(3))
def test_equals_trl_live(seed: int) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("trl")
    inputs = trl_reference.random_inputs(seed + 10, rows=20, length=trl_reference.MAX_LENGTH)
    for name, case in CASES.items():
        theirs, ours = trl_reference.trl_loss(inputs, case), our_loss(inputs, case)
        for key in ("loss", "gradient", "clip_low", "clip_high"):
            np.testing.assert_allclose(ours[key], theirs[key], atol=1e-6, err_msg=f"{name}: {key}")


@pytest.mark.live
def test_golden_file_is_what_trl_gives_today() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("trl")
    golden = np.load(trl_reference.GOLDEN)
    inputs = trl_reference.random_inputs()
    for name, case in CASES.items():
        for key, value in trl_reference.trl_loss(inputs, case).items():
            np.testing.assert_allclose(golden[f"{name}/{key}"], value, atol=1e-6, err_msg=f"{name}: {key}")


def group_inputs(groups: int = 4, size: int = 3, length: int = 7) -> dict[str, Any]:
    flat = trl_reference.random_inputs(3, groups * size, length)
    shaped = {name: value.reshape(groups, size, *value.shape[1:]) for name, value in flat.items()}
    contributes = np.ones((groups, size), bool)
    contributes[0, 1] = contributes[2] = False
    return shaped | {"contributes": contributes}


SETTINGS = [
    *itertools.product(("grpo", "bnpo", "dr_grpo", "dapo"), ("token", "sequence")),
    ("grpo", "product"),
]
Losses = dict[tuple[str, str], tuple[tuple[jax.Array, dict[str, jax.Array]], jax.Array]]


# Compiled once for tiny shapes: optimising the program would take nearly all of the time.
@jax.jit
def losses(inputs: dict[str, Any], totals: objective.StepTotals) -> Losses:
    """((loss, metrics), gradient with respect to ``new``) of one micro-batch, under every setting at once."""
    mask = objective.caption_mask(inputs["lengths"], inputs["contributes"], inputs["new"].shape[-1])

    def loss(new: jax.Array, config: ObjectiveConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
        old, reference = inputs["old"], inputs["reference"]
        return objective.grpo_loss(
            new, inputs["advantages"], mask, totals, config, old=old, reference=reference
        )

    results = {}
    for aggregation, importance in SETTINGS:
        config = ObjectiveConfig(
            aggregation=aggregation, importance=importance, beta=0.04, max_completion_length=11
        )
        results[aggregation, importance] = jax.value_and_grad(loss, has_aux=True)(inputs["new"], config)
    return results


def rows(inputs: dict[str, Any], which: Any) -> dict[str, Any]:
    return {name: value[which] for name, value in inputs.items()}


def totals_of(inputs: dict[str, Any], micro_batches: int = 1) -> objective.StepTotals:
    return objective.step_totals(inputs["lengths"], inputs["contributes"], micro_batches)


def test_micro_batches_add_up_to_the_full_batch() -> None:
    inputs = group_inputs()
    whole = losses(inputs, totals_of(inputs))
    # Two micro-batches with unequal numbers of contributing captions and tokens.
    totals = totals_of(inputs, micro_batches=2)
    parts = [losses(rows(inputs, which), totals) for which in (slice(0, 2), slice(2, 4))]
    for setting, ((loss, metrics), gradient) in whole.items():
        if setting[0] == "bnpo":
            continue
        shares = [part[setting] for part in parts]
        np.testing.assert_allclose(
            sum(share[0][0] for share in shares), loss, atol=3e-7, err_msg=str(setting)
        )
        np.testing.assert_allclose(np.concatenate([share[1] for share in shares]), gradient, atol=3e-7)
        for name, value in metrics.items():
            total = sum(share[0][1][name] for share in shares)
            np.testing.assert_allclose(total, value, atol=5e-7, err_msg=f"{setting} {name}")


def test_bnpo_means_over_each_micro_batch_and_then_over_them() -> None:
    inputs = group_inputs()
    halves = [rows(inputs, slice(0, 2)), rows(inputs, slice(2, 4))]
    totals = totals_of(inputs, micro_batches=2)
    split = sum(losses(half, totals)["bnpo", "token"][0][0] for half in halves)
    alone = [losses(half, totals_of(half))["dapo", "token"][0][0] for half in halves]
    np.testing.assert_allclose(split, np.mean(alone), atol=1e-6)


def test_masked_captions_are_as_if_they_were_never_drawn() -> None:
    inputs = group_inputs()
    keep = inputs["contributes"]
    subset = {name: value[keep][:, None] for name, value in inputs.items()}
    # What stands at masked tokens and captions must not matter at all, not even as a NaN.
    mask = np.asarray(objective.caption_mask(inputs["lengths"], keep, inputs["new"].shape[-1]))
    poisoned = inputs | {name: np.where(mask, inputs[name], np.nan) for name in ("new", "old", "reference")}
    poisoned["advantages"] = np.where(keep, inputs["advantages"], np.float32(np.inf))
    results = losses(poisoned, totals_of(inputs))
    for setting, ((expected, expected_metrics), _) in losses(subset, totals_of(subset)).items():
        (loss, metrics), gradient = results[setting]
        np.testing.assert_allclose(loss, expected, atol=1e-6, err_msg=str(setting))
        for name, value in metrics.items():
            np.testing.assert_allclose(value, expected_metrics[name], atol=1e-6, err_msg=f"{setting} {name}")
        assert np.isfinite(gradient).all()
        assert not np.asarray(gradient)[~mask].any()


def test_a_step_in_which_nothing_contributes_is_zero() -> None:
    inputs = group_inputs() | {"contributes": np.zeros((4, 3), bool)}
    for (loss, metrics), gradient in losses(inputs, totals_of(inputs)).values():
        assert float(loss) == 0
        assert not np.asarray(gradient).any()
        assert all(float(value) == 0 for value in metrics.values())


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    inputs = group_inputs()
    mask = objective.caption_mask(inputs["lengths"], jnp.ones((4, 3), bool), inputs["new"].shape[-1])
    totals = objective.step_totals(inputs["lengths"], jnp.ones((4, 3), bool))

    def loss(new: jax.Array) -> jax.Array:
        return objective.grpo_loss(new, inputs["advantages"], mask, totals, ObjectiveConfig(beta=0.0))[0]

    expected = -inputs["advantages"][..., None] * mask / inputs["lengths"][..., None] / 12
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(jnp.asarray(inputs["new"])), expected, atol=1e-7)


def test_on_policy_every_update_is_its_textbook_gradient() -> None:
    """Two captions of 1 and 3 tokens, advantages 2 and -1; the weight of each token's log-probability by hand."""
    lengths, advantages = jnp.asarray([1, 3]), jnp.asarray([2.0, -1.0])
    mask = objective.caption_mask(lengths, jnp.ones(2, bool), 3)
    totals = objective.step_totals(lengths, jnp.ones(2, bool))
    new = jnp.asarray([[-0.5, 0.0, 0.0], [-0.1, -2.0, -0.7]])

    def weights(**config: Any) -> np.ndarray:
        settings = ObjectiveConfig(beta=0.0, max_completion_length=8, **config)

        def loss(new: jax.Array) -> jax.Array:
            return objective.grpo_loss(new, advantages, mask, totals, settings)[0]

        return -np.asarray(jax.jit(jax.grad(loss))(new))

    mean_of_means = [[2 / 2, 0, 0], [-1 / 6, -1 / 6, -1 / 6]]
    np.testing.assert_allclose(weights(), mean_of_means, rtol=1e-6)
    # GSPO without a second update is GRPO.
    np.testing.assert_allclose(weights(importance="sequence"), mean_of_means, rtol=1e-6)
    # RLOO: the whole caption is one action, so each of its tokens has the caption's full weight.
    np.testing.assert_allclose(weights(importance="product"), [[1, 0, 0], [-0.5] * 3], rtol=1e-6)
    np.testing.assert_allclose(weights(aggregation="dapo"), [[2 / 4, 0, 0], [-1 / 4] * 3], rtol=1e-6)
    np.testing.assert_allclose(weights(aggregation="dr_grpo"), [[2 / 16, 0, 0], [-1 / 16] * 3], rtol=1e-6)


def test_asymmetric_clip_lets_rare_tokens_grow_further() -> None:
    """DAPO: with advantage 1 the gradient lives up to 1.28 and is 0 above; with -1 it lives down to 0.8."""
    ratio = jnp.asarray([1.25, 1.27, 1.29, 0.79, 0.81])

    def surrogate(ratio: jax.Array, sign: float) -> jax.Array:
        return objective.clipped_surrogate(ratio, jnp.full(5, sign), 0.2, 0.28).sum()

    np.testing.assert_allclose(jax.grad(surrogate)(ratio, 1.0), [-1, -1, 0, -1, -1])
    np.testing.assert_allclose(jax.grad(surrogate)(ratio, -1.0), [1, 1, 1, 0, 1])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_ratio_on_a_bound_has_left_no_bounds(sign: float) -> None:
    """With an epsilon of 0 that is every ratio of the first update, whose gradient is the policy gradient."""

    def surrogate(ratio: jax.Array, low: float, high: float) -> jax.Array:
        return objective.clipped_surrogate(ratio, jnp.asarray([sign]), low, high).sum()

    for low, high in ((0.0, 0.28), (0.2, 0.0), (0.0, 0.0)):
        np.testing.assert_array_equal(jax.grad(surrogate)(jnp.ones(1), low, high), [-sign])


def test_cispo_leaves_every_token_a_gradient_and_bounds_its_weight() -> None:
    ratio = jnp.asarray([0.5, 1.0, 1.25, 8.0])

    def surrogate(new: jax.Array, sign: float, ratio: jax.Array = ratio) -> jax.Array:
        return objective.cispo_surrogate(new, ratio, jnp.full(4, sign), 0.4, 1.0).sum()

    new = jnp.full(4, -2.0)
    for sign in (1.0, -1.0):
        np.testing.assert_allclose(
            jax.grad(surrogate)(new, sign), -sign * np.asarray([0.6, 1.0, 1.25, 2.0], np.float32)
        )
        np.testing.assert_array_equal(jax.grad(surrogate, 2)(new, sign, ratio), np.zeros(4))


def test_cispo_is_the_clipped_surrogate_where_every_ratio_is_1() -> None:
    inputs = trl_reference.random_inputs()
    case = CASES["on-policy"] | {"aggregation": "dapo"}
    one, other = our_loss(inputs, case), our_loss(inputs, case | {"surrogate": "cispo"})
    np.testing.assert_allclose(one["gradient"], other["gradient"], rtol=1e-6)


def test_cispo_has_no_one_ratio_for_a_whole_caption() -> None:
    with pytest.raises(ValueError, match=r"grpo\.objective\.surrogate cispo"):
        ObjectiveConfig(surrogate="cispo", importance="product")


def test_kl_estimate_is_exact_in_expectation_and_never_negative() -> None:
    rng = np.random.default_rng(0)
    new, reference = (jax.nn.log_softmax(jnp.asarray(rng.normal(0, 1, 50))) for _ in range(2))
    estimate = objective.k3_kl(new, reference)
    assert (np.asarray(estimate) >= 0).all()
    np.testing.assert_allclose(
        (jnp.exp(new) * estimate).sum(), (jnp.exp(new) * (new - reference)).sum(), rtol=1e-5
    )
    tiny = objective.k3_kl(jnp.float32(-2.0), jnp.float32(-2.0) + jnp.float32(2**-12))
    np.testing.assert_allclose(tiny, 2.0**-25, rtol=1e-3)


def test_clamped_kl_is_bounded_where_the_plain_one_overflows() -> None:
    new = jnp.asarray([-200.0, -1.0])
    reference = jnp.asarray([-1.0, -1.3])
    assert np.isinf(objective.k3_kl(new, reference)[0])
    clamped = objective.k3_kl(new, reference, clamp=True)
    np.testing.assert_allclose(clamped, [10.0, np.exp(-0.3) + 0.3 - 1], atol=1e-6)


def test_importance_weights_are_capped_and_unknown_tokens_weigh_one() -> None:
    trainer = jnp.asarray([[-1.0, -1.0, -1.0, -1.0]])
    rollout = jnp.asarray([[-3.0, -1.2, jnp.nan, jnp.nan]])
    mask = jnp.asarray([[True, True, True, False]])
    weights = objective.truncated_importance_weights(trainer, rollout, mask, cap=2.0)
    np.testing.assert_allclose(weights, [[2.0, np.exp(0.2), 1.0, 1.0]], rtol=1e-6)
    sequence = objective.truncated_importance_weights(trainer, rollout, mask, cap=20.0, level="sequence")
    np.testing.assert_allclose(sequence, [[np.exp(2.2)]], rtol=1e-6)


def test_a_token_that_only_the_engine_allows_does_not_take_its_whole_caption_out() -> None:
    trainer = jnp.asarray([[-1.0, -jnp.inf, -1.0]])
    rollout, mask = jnp.asarray([[-1.2, -1.0, -1.1]]), jnp.ones((1, 3), bool)
    weights = objective.truncated_importance_weights(trainer, rollout, mask, cap=2.0)
    np.testing.assert_allclose(weights, [[np.exp(0.2), 0.0, np.exp(0.1)]], rtol=1e-6)
    sequence = objective.truncated_importance_weights(trainer, rollout, mask, cap=2.0, level="sequence")
    np.testing.assert_allclose(sequence, [[np.exp(0.3)]], rtol=1e-6)


def test_importance_weights_without_a_cap_are_numbers() -> None:
    """Of a long caption their product may be more than float32 has, and infinity times an advantage of 0 is none."""
    new, mask = jnp.full((2, 1, 3), -1.0), jnp.ones((2, 1, 3), bool)
    rollout = new - jnp.array([[[40.0, 40.0, 20.0]], [[0.0, 0.1, 0.0]]])
    weights = objective.truncated_importance_weights(new, rollout, mask, cap=math.inf, level="sequence")
    totals = objective.step_totals(jnp.full((2, 1), 3), jnp.ones((2, 1), bool))

    def loss(new: jax.Array) -> jax.Array:
        config = objective.ObjectiveConfig(beta=0.0)
        return objective.grpo_loss(
            new, jnp.array([[0.0], [1.0]]), mask, totals, config, rollout_weights=weights
        )[0]

    gradient = jax.jit(jax.grad(loss))(new)
    np.testing.assert_array_equal(gradient[0], 0.0)
    np.testing.assert_allclose(gradient[1], -math.exp(0.1) / 6, rtol=1e-6)


@pytest.mark.parametrize("importance", ["sequence", "product"])
def test_a_caption_of_one_ratio_counts_by_the_mean_of_its_tokens_weights(
    importance: Literal["sequence", "product"],
) -> None:
    """What the setting ``rollout.vllm.importance_level`` says of them."""
    new, mask = jnp.full((1, 1, 3), -1.0), jnp.ones((1, 1, 3), bool)
    totals = objective.step_totals(jnp.full((1, 1), 3), jnp.ones((1, 1), bool))

    @jax.jit
    @jax.grad
    def slope(new: jax.Array, weights: jax.Array) -> jax.Array:
        config = objective.ObjectiveConfig(beta=0.0, importance=importance)
        return objective.grpo_loss(new, jnp.ones((1, 1)), mask, totals, config, rollout_weights=weights)[0]

    def gradient(weights: list[float]) -> np.ndarray:
        return np.asarray(slope(new, jnp.array([[weights]])))

    np.testing.assert_allclose(gradient([0.5, 2.0, 2.0]), gradient([1.5, 1.5, 1.5]), rtol=1e-6)
    assert gradient([1.5])[0, 0, 0] < 0


@pytest.mark.parametrize("chunk", [1, 5, None])
def test_chunked_logprobs_and_their_gradients_equal_the_plain_ones(chunk: int | None) -> None:
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(0, 1, (2, 3, 13, 16)), jnp.float32)
    head = jnp.asarray(rng.normal(0, 0.5, (16, 37)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 37, (2, 3, 13)))
    weights = jnp.asarray(rng.normal(0, 1, (2, 3, 13)), jnp.float32)

    def plain(hidden: jax.Array, head: jax.Array) -> tuple[jax.Array, Any]:
        logprobs = jax.nn.log_softmax(hidden @ head / 0.7)
        chosen = jnp.take_along_axis(logprobs, targets[..., None], -1)[..., 0]
        return (chosen * weights).sum(), (chosen, -(jnp.exp(logprobs) * logprobs).sum(-1))

    def chunked(hidden: jax.Array, head: jax.Array) -> tuple[jax.Array, Any]:
        chosen, entropy = logprobs.token_statistics(hidden, head, targets, temperature=0.7, chunk=chunk)
        return (chosen * weights).sum(), (chosen, entropy)

    results = [
        jax.jit(jax.value_and_grad(f, argnums=(0, 1), has_aux=True))(hidden, head) for f in (plain, chunked)
    ]
    (_, expected), gradients = results[0]
    (_, actual), actual_gradients = results[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-6), expected, actual)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), gradients, actual_gradients)
    if chunk == 5:
        alone = logprobs.token_logprobs(hidden, head, targets, temperature=0.7, chunk=chunk)
        np.testing.assert_allclose(alone, expected[0], atol=1e-6, rtol=1e-6)


def test_logits_of_all_tokens_never_exist_at_once() -> None:
    rows, length, width, vocab = 2, 64, 4, 1024
    hidden = jnp.ones((rows, length, width))
    head = jnp.ones((width, vocab))
    targets = jnp.zeros((rows, length), jnp.int32)

    def peak(chunk: int | None) -> int:
        def loss(hidden: jax.Array, head: jax.Array) -> jax.Array:
            return logprobs.token_logprobs(hidden, head, targets, chunk=chunk).sum()

        analysis = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(hidden, head).compile().memory_analysis()
        return int(analysis.temp_size_in_bytes)

    everything = rows * length * vocab * 4
    assert peak(None) >= everything
    assert peak(4) < everything / 4


def test_settings_and_missing_inputs_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"max_completion_length\n.*greater than or equal to 1"):
        ObjectiveConfig(aggregation="dr_grpo", max_completion_length=0)
    tokens = jnp.zeros((1, 2))
    totals = objective.step_totals(jnp.asarray([2]), jnp.asarray([True]))
    with pytest.raises(ValueError, match=r"needs objective\.max_completion_length"):
        objective.aggregate(tokens, tokens == 0, totals, ObjectiveConfig(aggregation="dr_grpo"))
    with pytest.raises(ValueError, match="not dapo"):
        ObjectiveConfig(importance="product", aggregation="dapo")
    with pytest.raises(ValueError, match="epsilon_low"):
        ObjectiveConfig(epsilon_low=1.5)
    with pytest.raises(ValueError, match="temperature"):
        logprobs.token_logprobs(jnp.ones((1, 2)), jnp.ones((2, 3)), jnp.zeros(1, jnp.int32), temperature=0.0)
    inputs = group_inputs()
    totals = objective.step_totals(inputs["lengths"], inputs["contributes"])
    with pytest.raises(ValueError, match="reference"):
        objective.grpo_loss(
            inputs["new"], inputs["advantages"], inputs["new"] < 0, totals, ObjectiveConfig(beta=0.01)
        )


@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_caption_whose_ratio_is_beyond_float32_leaves_numbers(advantage: float) -> None:
    """The product over a long caption: 0.5 nats a token, 200 tokens."""
    config = ObjectiveConfig(importance="product", beta=0.0)
    mask = jnp.ones((1, 200), bool)
    totals = objective.step_totals(jnp.asarray([200]), jnp.asarray([True]))

    def loss(new: jax.Array) -> jax.Array:
        old = jnp.full((1, 200), -2.0)
        return objective.grpo_loss(new, jnp.asarray([advantage]), mask, totals, config, old=old)[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.full((1, 200), -1.5))
    assert jnp.isfinite(value)
    np.testing.assert_array_equal(gradient, np.zeros((1, 200)))
