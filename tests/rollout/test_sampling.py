"""Sampling: transformers' distributions, and draws that depend on nothing but their own key."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rollout import transformers_reference as reference
from vcap_jax.rollout import sampling
from vcap_jax.rollout.sampling import SamplingConfig

PLAIN = SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0)


# In one program: by themselves their products would be a program each.
scores_of = jax.jit(sampling.sampling_scores, static_argnums=1, static_argnames="banned")


def seen_of(history: np.ndarray, vocab: int) -> jax.Array:
    lengths = jnp.full(len(history), history.shape[1])
    return sampling.seen_tokens(jnp.asarray(history), lengths, vocab)


def assert_same_scores(ours: jax.Array, theirs: np.ndarray, name: str) -> None:
    """Equal scores and equal kept tokens; of several tokens tied at top-p's border, the same number.

    Which of those go is up to an unstable sort over there, and settled here (the lower ids).
    """
    ours = np.asarray(ours)
    np.testing.assert_allclose(np.sort(ours), np.sort(theirs), rtol=1e-6, err_msg=name)
    differ = np.isneginf(ours) != np.isneginf(theirs)
    either = np.maximum(ours, theirs)
    for row in range(len(ours)):
        disputed = either[row, differ[row]]
        assert not disputed.size or np.ptp(disputed) < 1e-5, f"{name}: row {row} keeps other tokens"


@pytest.mark.parametrize("name", reference.CASES)
@pytest.mark.parametrize("banned", [(), reference.BANNED])
def test_equals_transformers(name: str, banned: tuple[int, ...]) -> None:
    golden = np.load(reference.GOLDEN)
    logits = golden["logits"]
    config = SamplingConfig(**reference.CASES[name])
    seen = seen_of(golden["history"], logits.shape[-1])
    ours = scores_of(jnp.asarray(logits), config, seen=seen, banned=banned)
    assert_same_scores(ours, golden[f"{name}/{len(banned)}"], name)


@pytest.mark.live
@pytest.mark.parametrize("seed", range(1, 4))
def test_equals_transformers_live(seed: int) -> None:
    pytest.importorskip("torch")
    inputs = reference.random_inputs(seed, rows=64, vocab=301)
    seen = seen_of(inputs["history"], 301)
    for name, case in reference.CASES.items():
        for banned in ((), reference.BANNED):
            ours = scores_of(jnp.asarray(inputs["logits"]), SamplingConfig(**case), seen=seen, banned=banned)
            assert_same_scores(ours, reference.processed(inputs, case, banned), name)


def test_greedy_takes_the_best_penalised_and_allowed_token() -> None:
    logits = jnp.asarray([[1.0, 3.0, 2.9, 2.8], [-1.0, -1.05, -3.0, 5.0]])
    seen = jnp.asarray([[False, True, False, False], [True, False, False, False]])
    config = SamplingConfig(temperature=0.0, repetition_penalty=1.1)
    keys = sampling.candidate_keys(0, 0, jnp.arange(1), 2)[0]
    drawn = jax.jit(partial(sampling.sample, config=config, banned=(3,)))(logits, keys, 0, seen=seen)
    assert drawn.tolist() == [2, 1]
    assert drawn.dtype == jnp.int32


def test_draws_follow_the_processed_distribution() -> None:
    logits = jnp.asarray(np.random.default_rng(0).normal(0, 1.5, 12), jnp.float32)
    config = SamplingConfig(temperature=0.8, top_p=0.9, top_k=8, repetition_penalty=1.2)
    seen = jnp.arange(12) % 3 == 0
    groups, size = 100, 100
    keys = sampling.candidate_keys(1, 2, jnp.arange(groups), size)
    shape = (groups, size, 12)
    draw = jax.jit(partial(sampling.sample, config=config, banned=(1,)))
    tokens = draw(jnp.broadcast_to(logits, shape), keys, 5, seen=jnp.broadcast_to(seen, shape))
    expected = jax.nn.softmax(scores_of(logits, config, seen=seen, banned=(1,)))
    counts = np.bincount(np.asarray(tokens).ravel(), minlength=12)
    assert not counts[np.asarray(expected) == 0].any()
    kept = np.asarray(expected) > 0
    wanted = np.asarray(expected)[kept] * groups * size
    # Chi-square over the kept tokens: 40 is far beyond chance for at most 7 degrees of freedom.
    assert ((counts[kept] - wanted) ** 2 / wanted).sum() < 40


def test_a_draw_depends_on_its_key_and_not_on_its_company() -> None:
    logits = jnp.asarray(np.random.default_rng(0).normal(0, 1, (4, 3, 50)), jnp.float32)
    ids = jnp.asarray([11, 5, 8, 2])
    draw = jax.jit(partial(sampling.sample, config=PLAIN))
    together = draw(logits, sampling.candidate_keys(7, 3, ids, 3), 4)
    for row, group in enumerate(ids):
        alone = draw(logits[row : row + 1], sampling.candidate_keys(7, 3, group[None], 3), 4)
        np.testing.assert_array_equal(alone[0], together[row])
    wider = sampling.candidate_keys(7, 3, ids, 5)
    np.testing.assert_array_equal(draw(logits, wider[:, :3], 4), together)


def test_seed_step_group_candidate_and_position_each_change_the_draw() -> None:
    def keys(seed: int, step: int, first_group: int) -> np.ndarray:
        made = sampling.candidate_keys(seed, step, jnp.arange(first_group, first_group + 8), 4)
        return np.asarray(jax.random.key_data(made)).reshape(-1, 2)

    everything = np.concatenate([keys(0, 0, 0), keys(1, 0, 0), keys(0, 1, 0), keys(0, 0, 8)])
    assert len(np.unique(everything, axis=0)) == len(everything)
    flat = jnp.zeros((8, 4, 1000))
    candidate_keys = sampling.candidate_keys(0, 0, jnp.arange(8), 4)
    draw = jax.jit(partial(sampling.sample, config=PLAIN))
    first, second = (draw(flat, candidate_keys, position) for position in (0, 1))
    assert (np.asarray(first) != np.asarray(second)).mean() > 0.9
    assert len(np.unique(first)) > 25


def test_seen_tokens_leave_out_padding_and_grow_by_what_is_drawn() -> None:
    tokens = jnp.asarray([[4, 1, 4, 0], [2, 0, 0, 0]])
    seen = sampling.seen_tokens(tokens, jnp.asarray([3, 0]), 6)
    assert np.flatnonzero(seen[0]).tolist() == [1, 4]
    assert not seen[1].any()
    per_caption = jnp.broadcast_to(seen[:, None], (2, 2, 6))
    grown = sampling.update_seen(per_caption, jnp.asarray([[5, 1], [0, 3]]))
    assert [np.flatnonzero(row).tolist() for row in grown.reshape(4, 6)] == [[1, 4, 5], [1, 4], [0], [3]]


def test_missing_mask_and_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="seen tokens"):
        sampling.sampling_scores(jnp.zeros((1, 4)), SamplingConfig(repetition_penalty=1.1))
    wrong = {"temperature": -1.0, "top_p": 0.0, "top_k": -1, "repetition_penalty": 0.0}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=rf"SamplingConfig\n{name}\n.*input_value={value}"):
            SamplingConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("vocab", [40, 5 * 128 * 8, 5 * 128 * 8 + 77])
def test_best_scores_are_those_of_a_sort(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    # Below 0: what fills the last block up must not be among the best.
    scores = jnp.asarray(rng.normal(-9, 1, (3, 2, vocab)), jnp.float32).at[0, 0].set(-0.5)
    best_scores = jax.jit(sampling.best_scores, static_argnums=1)
    best, tokens = best_scores(scores, 8)
    np.testing.assert_array_equal(best, -np.sort(-np.asarray(scores), axis=-1)[..., :8])
    np.testing.assert_array_equal(np.take_along_axis(np.asarray(scores), np.asarray(tokens), -1), best)
    assert all(len(set(row)) == 8 for row in np.asarray(tokens).reshape(-1, 8))
    # Tokens of equal scores come in their order, all but those that tie with the last.
    equal = jnp.round(4 * scores) / 4
    best, tokens = best_scores(equal, 8)
    settled = best > best[..., -1:]
    assert len(np.unique(best[settled])) < settled.sum()
    np.testing.assert_array_equal(tokens[settled], jax.lax.top_k(equal, 8)[1][settled])


@pytest.mark.parametrize("ties", [False, True])
def test_the_k_best_alone_give_the_draws_that_all_tokens_give(ties: bool) -> None:
    """Against the rules written out over the vocabulary: penalty, ban, top-k, top-p, noise on what is left."""
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (40, 5, 700)).astype(np.float32)
    if ties:
        # As coarse as bfloat16 logits: more tokens tie with the k-th than fit.
        logits = np.round(logits * 2) / 2
    seen = jnp.asarray(rng.random(logits.shape) < 0.2)
    config = SamplingConfig(temperature=0.9, top_p=0.95, top_k=20, repetition_penalty=1.1)
    keys = sampling.candidate_keys(5, 6, jnp.arange(40), 5)
    position = jnp.arange(40)[:, None]
    drawn = jax.jit(partial(sampling.sample, config=config, banned=(2,)))(
        jnp.asarray(logits), keys, position, seen=seen
    )
    scores = scores_of(jnp.asarray(logits), config, seen=seen, banned=(2,))
    left = np.isfinite(np.asarray(scores)).sum(-1)
    assert (left.max() > 20) == ties
    noise = jax.jit(sampling.gumbel_noise)(keys, jnp.broadcast_to(position, keys.shape), jnp.arange(700))
    np.testing.assert_array_equal(drawn, jnp.argmax(scores + noise, axis=-1))


@pytest.mark.parametrize("top_k", [0, 2])
def test_one_token_stays_however_little_mass_is_kept(top_k: int) -> None:
    scores = jnp.array([0.0, 3.0, 1.0])
    # 1 - top_p is 1 in float32.
    kept = jax.jit(partial(sampling.keep_likely, top_k=top_k, top_p=1e-9))(scores)
    assert kept.tolist() == [-np.inf, 3.0, -np.inf]


def test_noise_is_gumbel() -> None:
    keys = sampling.candidate_keys(0, 1, jnp.arange(50), 4)
    noise = np.asarray(
        jax.jit(sampling.gumbel_noise)(keys, jnp.zeros(keys.shape, jnp.int32), jnp.arange(1000))
    )
    assert np.isfinite(noise).all()
    # Mean and variance of the standard Gumbel distribution; five standard errors of 200,000 values.
    assert abs(noise.mean() - 0.5772) < 5 * 1.2826 / 200_000**0.5
    assert abs(noise.var() - np.pi**2 / 6) < 0.05
    assert len(np.unique(noise)) > 190_000
