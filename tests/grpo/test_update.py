"""The update of a step, however its groups are cut into batches."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.rollout.drawing import BANNED, PLAIN, rules
from tests.tiny_policy import END, VOCABULARY, tiny_model, tiny_prompts
from vcap_jax.grpo.advantages import AdvantageConfig, GroupAdvantages, group_advantages
from vcap_jax.grpo.ahead import kept_step, known_step
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.mismatch import Moments, mismatch_moments
from vcap_jax.grpo.objective import ObjectiveConfig, StepTotals, caption_mask, grpo_loss, step_totals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.grpo.records import GroupRecord, StepRollout
from vcap_jax.grpo.update import FixedLogprobs, StepUpdate
from vcap_jax.models.family import family_of
from vcap_jax.models.policy import split_model, vision_encoder
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.reward.alarms import AlarmConfig, AlarmWatch
from vcap_jax.rollout.engine import RolloutBatch
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.rollout.slots import SampledGroup
from vcap_jax.training.optimizer import TrainState

GROUPS, SIZE, TOKENS = 5, 2, 6


@cache
def parts() -> Any:
    """Of the tiny model: what is static, what is trained, what is frozen."""
    return split_model(tiny_model(), ("visual",))


def padded(prompts: Any, start: int, rows: int, tokens: int | None = None) -> Any:
    """Rows from ``start`` on, filled up to ``rows`` with padding groups as ``collate`` makes them, in batches that are
    padded to ``tokens``."""

    def cut(x: np.ndarray, fill: int = 0) -> np.ndarray:
        part = x[start : start + rows]
        missing = [(0, rows - len(part))] + [(0, 0)] * (x.ndim - 1)
        return np.pad(part, missing, constant_values=fill)

    filled = jax.tree.map(cut, prompts)
    assert tokens is None or filled.lengths.max() <= tokens < filled.tokens.shape[1]
    shorter = {
        "tokens": filled.tokens[:, :tokens],
        "positions": filled.positions[..., :tokens],
        "visual_index": cut(prompts.visual_index, -1)[:, :tokens],
    }
    return type(prompts)(**(vars(filled) | shorter))


def update_programs() -> UpdatePrograms:
    objective = ObjectiveConfig(beta=0.1)
    return UpdatePrograms(parts()[0], objective, optax.sgd(0.1), temperature=1.0, logprob_chunk=4)


@dataclass
class Step:
    """A step that has been drawn and scored: what ``StepUpdate`` is called with."""

    update: StepUpdate
    trainable: Any
    rollout: StepRollout
    groups: list[SampledGroup]
    lengths: np.ndarray
    advantages: GroupAdvantages

    def fixed(self, params: Any, **more: Any) -> FixedLogprobs:
        return self.update.fixed(params, self.rollout.batches, self.groups, int(self.lengths.max()), **more)

    def updated(self, params: Any, fixed: FixedLogprobs) -> tuple[Any, dict[str, float]]:
        state = self.update.programs.initial_state(params, self.update.placement)
        state, metrics = self.update(state, self.rollout, self.lengths, self.advantages, fixed)
        return state.params, metrics

    def told_by_the_sampler(self, shift: float = 0.0) -> Step:
        """The same with log-probabilities of a sampler whose own are the policy's, moved by ``shift``."""
        (exact,) = self.fixed(self.trainable, ahead=True).old
        records = tuple(
            replace(record, sampler_logprobs=np.asarray(of) + shift)
            for record, of in zip(self.rollout.records, np.asarray(exact), strict=True)
        )
        return replace(self, rollout=replace(self.rollout, records=records))


def updated(micro: int, **more: Any) -> tuple[Any, dict[str, float]]:
    """The parameters after one update by the policy that drew, and its metrics."""
    step = drawn(micro, **more)
    return step.updated(step.trainable, step.fixed(step.trainable))


def drawn(
    micro: int,
    devices: int = 1,
    programs: UpdatePrograms | None = None,
    order: tuple[int, ...] = tuple(range(GROUPS)),
    longest: int = TOKENS,
    narrow: int | None = None,
    groups: list[SampledGroup] | None = None,
) -> Step:
    """order: of the groups in the batches. longest: tokens of a caption at most. narrow: what prompts behind the first
    batch are padded to. groups: what was drawn; random captions if not given."""
    _, trainable, frozen = parts()
    config = GRPOConfig(
        groups_per_step=GROUPS, groups_per_micro_batch=micro, objective=ObjectiveConfig(beta=0.1)
    )
    programs = programs or update_programs()
    rules = family_of(parts()[0]).partition_rules
    placement = Placement.build(MeshConfig(fsdp=devices), jax.devices()[:devices], rules=rules)
    trainable, frozen = placement.state(trainable), placement.state(frozen)
    rng = np.random.default_rng(0)
    tokens = rng.integers(9, VOCABULARY, (GROUPS, SIZE, TOKENS)).astype(np.int32)
    lengths = rng.integers(1, TOKENS + 1, (GROUPS, SIZE)).astype(np.int32)
    rewards = rng.random((GROUPS, SIZE))
    if groups is not None:
        tokens, lengths = (np.stack([getattr(group, of) for group in groups]) for of in ("tokens", "lengths"))
    ordered = jax.tree.map(lambda x: x[np.asarray(order)], tiny_prompts(GROUPS))
    batches = []
    for first in range(0, GROUPS, micro):
        indices = order[first : first + micro]
        prompt = placement.batch(padded(ordered, first, micro, tokens=narrow if first else None))
        features = vision_encoder(parts()[0])(trainable, frozen, prompt)
        examples: Any = [SimpleNamespace(sample=SimpleNamespace(id=str(index))) for index in indices]
        batches.append(RolloutBatch(examples, indices, prompt, features))
    records = [
        GroupRecord(
            index=index,
            sample_id=str(index),
            captions=(),
            lengths=lengths[index],
            truncated=lengths[index] < 0,
            scores=SimpleNamespace(),  # type: ignore[arg-type]  # advantages are given
            example=SimpleNamespace(),  # type: ignore[arg-type]
            reference=None,
            tokens=tokens[index],
            sampler_logprobs=None if groups is None else groups[index].logprobs,
        )
        for index in range(GROUPS)
    ]
    update = StepUpdate(
        config=config,
        max_completion_length=longest,
        programs=programs,
        frozen=frozen,
        reference=jax.tree.map(lambda x: x * 1.1, trainable),
        placement=placement,
        rollout_weights=None,
    )
    return Step(
        update=update,
        trainable=trainable,
        rollout=StepRollout(
            batches=tuple(batches), records=tuple(records), rollout_seconds=0, judge_seconds=0
        ),
        groups=[SampledGroup(r.index, r.tokens, r.lengths, r.truncated) for r in records],
        lengths=lengths,
        advantages=group_advantages(rewards, np.isfinite(rewards), config.advantages),
    )


@pytest.fixture(scope="module")
def whole() -> tuple[Any, dict[str, float]]:
    """All groups in one batch and one micro-batch, on one device."""
    return updated(GROUPS)


@pytest.mark.slow
def test_a_step_that_its_batches_do_not_divide_is_filled_up_without_effect(whole) -> None:
    """As on six devices with 32 groups: the last batch has padding groups, which contribute nothing."""
    params, metrics = whole
    short, short_metrics = updated(2)
    assert short_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(jax.tree.leaves(short), jax.tree.leaves(params), strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_it_does_not_matter_which_groups_share_a_batch(whole) -> None:
    params, metrics = whole
    mixed, mixed_metrics = updated(2, order=(3, 0, 4, 2, 1))
    assert mixed_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(jax.tree.leaves(mixed), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.slow
def test_each_micro_batch_is_padded_to_its_own_prompts(whole) -> None:
    """The longest prompts (12 tokens) come first; the batches behind them are padded to 11."""
    params, metrics = whole
    own, own_metrics = updated(2, order=(0, 3, 1, 4, 2), narrow=11)
    assert own_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(jax.tree.leaves(own), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.slow
def test_columns_that_are_added_to_captions_change_nothing(whole) -> None:
    """A limit of 9 tokens has 10 columns, four more than these captions have."""
    params, metrics = whole
    wide, wide_metrics = updated(GROUPS, longest=9)
    assert wide_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(jax.tree.leaves(wide), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_micro_batch_is_split_over_the_devices(whole) -> None:
    """(It lay whole on each of them: correct, and as much memory as there are devices.)"""
    programs, seen = update_programs(), []
    accumulate = programs.accumulate

    def watched(*args: Any) -> Any:
        seen.append(args[3:6])
        return accumulate(*args)

    programs.accumulate = watched  # type: ignore[assignment]
    params, metrics = whole
    split, split_metrics = updated(8, devices=8, programs=programs)
    arrays = jax.tree.leaves(seen)
    assert len(seen) == 1
    assert len(arrays) > 8
    for array in arrays:
        assert {shard.data.size for shard in array.addressable_shards} == {array.size // 8}
    assert split_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(jax.tree.leaves(split), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_of_a_step_without_tokens_to_learn_from_only_the_gradient_is_told() -> None:
    """Where all groups are flat and dropped. Its mean ratio, entropy and loss are no 0 that a plot could show."""
    step = drawn(GROUPS)
    rules = AdvantageConfig(drop_flat=True)
    step.advantages = group_advantages(np.ones((GROUPS, SIZE)), np.ones((GROUPS, SIZE), bool), rules)
    params, metrics = step.updated(step.trainable, step.fixed(step.trainable))
    assert metrics == {"grad_norm": 0}
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(step.trainable), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_sampler_is_compared_with_the_policy_that_drew(whole) -> None:
    """And nothing else is computed for its sake. With captions that were drawn ahead that is another one than is
    updated."""
    step = drawn(GROUPS)
    agreeing, shifted = step.told_by_the_sampler(), step.told_by_the_sampler(shift=0.1)
    fixed = step.fixed(step.trainable)
    params, metrics = agreeing.updated(step.trainable, fixed)
    compared = {name: value for name, value in metrics.items() if name.startswith("rollout/")}
    assert compared == {
        "rollout/mismatch_mean": pytest.approx(0, abs=1e-5),
        "rollout/mismatch_max": pytest.approx(0, abs=1e-5),
        "rollout/mismatch_correlation": pytest.approx(1),
    }
    assert {name: metrics[name] for name in metrics.keys() - compared.keys()} == whole[1]
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(whole[0]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert shifted.updated(step.trainable, fixed)[1]["rollout/mismatch_mean"] == pytest.approx(0.1, rel=1e-3)

    ahead = step.fixed(step.trainable, ahead=True)
    later = jax.tree.map(lambda x: x * 1.1, step.trainable)
    _, metrics = agreeing.updated(later, ahead)
    assert abs(metrics["ratio"] - 1) > 0.01
    assert metrics["rollout/mismatch_max"] < 1e-5


class Prompt(NamedTuple):
    tokens: np.ndarray


@dataclass
class Counting:
    """Programs of a policy that is one number, whose log-probabilities are it, and whose gradient is 1 for each
    micro-batch. seen: parameter, what the gradient is added to, and the log-probability it is held against; given: the
    captions and the step's totals; weights: of captions of another engine, where it is told that they are."""

    seen: list[tuple[float, float, float | None]] = field(default_factory=list)
    given: list[tuple[CaptionBatch, StepTotals]] = field(default_factory=list)
    weights: list[jax.Array | None] = field(default_factory=list)
    another_engine: bool = False

    def logprobs(self, params: Any, frozen: Any, prompt: Any, features: Any, tokens: Any) -> jax.Array:
        return jnp.full(tokens.shape, params, jnp.float32)

    def zeros(self, params: Any) -> jax.Array:
        return jnp.zeros_like(params)

    def accumulate(self, params: Any, frozen: Any, gradients: Any, *rest: Any) -> Any:
        _, _, batch, totals, before, _, weights = rest
        self.weights.append(weights)
        held = None if before is None else float(before.max())
        self.seen.append((float(params), float(gradients), held))
        self.given.append((batch, totals))
        return gradients + 1, {"loss": params}, None

    def rollout_weights(self, params: Any, *rest: Any) -> tuple[jax.Array, Moments]:
        tokens = rest[-1].tokens.astype(jnp.float32)
        return tokens * params, mismatch_moments(tokens, tokens, jnp.ones(tokens.shape, bool))

    def apply(self, state: TrainState, gradients: Any) -> Any:
        return TrainState(state.step + 1, state.params + gradients, ()), {"grad_norm": gradients}

    def updated(self, config: GRPOConfig, indices: tuple[int, ...]) -> tuple[TrainState, dict[str, float]]:
        """A state of 5 after a step of four groups, of which this process has some, each a micro-batch."""
        update = StepUpdate(
            config=config,
            max_completion_length=8,
            programs=self,  # type: ignore[arg-type]
            frozen=None,
            reference=None,
            placement=Placement.build(MeshConfig(), jax.devices()[:1]),
            rollout_weights=self.rollout_weights if self.another_engine else None,
        )
        lengths = np.array([[3, 1], [2, 2], [4, 3], [1, 4]], np.int32)
        groups = [
            SampledGroup(index, np.full((2, 4), index), lengths[index], lengths[index] < 0)
            for index in indices
        ]
        records: Any = tuple(SimpleNamespace(**vars(group), sampler_logprobs=None) for group in groups)
        prompt: Any = Prompt(np.ones((1, 4), np.int32))
        batches = tuple(RolloutBatch((), (index,), prompt, None) for index in indices)
        rollout = StepRollout(batches=batches, records=records, rollout_seconds=0, judge_seconds=0)
        state = TrainState(jnp.int32(0), jnp.float32(5), ())
        fixed = update.fixed(state.params, batches, groups, int(lengths.max()))
        return update(state, rollout, lengths, ADVANTAGES, fixed)


REWARDS = np.array([[0.0, 1.0], [0.0, 5.0], [2.0, 0.0], [7.0, np.nan]])
ADVANTAGES = group_advantages(REWARDS, np.isfinite(REWARDS), AdvantageConfig(scale="none"))


@pytest.mark.parametrize("iterations", [1, 3])
def test_further_updates_with_the_same_captions_keep_to_the_policy_that_drew(iterations: int) -> None:
    programs = Counting()
    state, metrics = programs.updated(GRPOConfig(num_iterations=iterations), (0, 1))
    held = None if iterations == 1 else 5.0
    assert programs.seen == [(5.0 + 2 * k, share, held) for k in range(iterations) for share in (0.0, 1.0)]
    assert (int(state.step), float(state.params)) == (iterations, 5.0 + 2 * iterations)
    # Those of the last.
    assert metrics == {"loss": 2 * (5.0 + 2 * (iterations - 1)), "grad_norm": 2.0}


def test_captions_of_another_engine_have_the_weights_of_before_the_first_update() -> None:
    """Each micro-batch its own; captions of the JAX sampler have none."""
    plain, programs = Counting(), Counting(another_engine=True)
    for counting in (plain, programs):
        counting.updated(GRPOConfig(num_iterations=2), (1, 2))
    assert plain.weights == [None] * 4
    # Five, the parameter, times the tokens, which are the group's index.
    assert [np.unique(np.asarray(weights)[..., :4]).tolist() for weights in programs.weights] == [
        [5.0],
        [10.0],
    ] * 2


def test_a_process_updates_with_its_own_groups_and_the_totals_of_all() -> None:
    """The second of two, in columns for the longest caption of all."""
    programs = Counting()
    programs.updated(GRPOConfig(caption_buckets=(2, 4)), (2, 3))
    assert [batch.tokens.tolist() for batch, _ in programs.given] == [[[[k] * 4] * 2] for k in (2, 3)]
    assert [batch.lengths.tolist() for batch, _ in programs.given] == [[[4, 3]], [[1, 4]]]
    assert [batch.advantages.tolist() for batch, _ in programs.given] == [[[1, -1]], [[0, 0]]]
    assert [batch.contributes.tolist() for batch, _ in programs.given] == [[[True] * 2], [[False] * 2]]
    for _, totals in programs.given:
        assert (float(totals.sequences), float(totals.tokens)) == (6, 15)
        assert float(totals.micro_batches) == 2


@pytest.mark.slow
def test_a_sampler_that_begins_to_compute_something_else_raises_the_alarm() -> None:
    """Its parameters moved by a hundredth, in the third step."""
    graphdef, trainable, frozen = parts()
    config = rules(
        group_size=SIZE,
        groups_per_batch=GROUPS,
        max_completion_length=TOKENS,
        decode_steps_per_call=TOKENS,
        sampling=PLAIN,
    )
    sampler = GroupSampler(graphdef, config, end_ids=[END], banned_ids=BANNED, logprobs=True)
    prompts, programs = tiny_prompts(GROUPS), update_programs()
    features = vision_encoder(graphdef)(trainable, frozen, prompts)
    moved = jax.tree.map(lambda x: x * 1.01, trainable)
    watch, said = AlarmWatch(AlarmConfig(baseline_steps=1)), []
    for number, params in enumerate([trainable, trainable, moved], 1):
        found = sampler.stream(
            params, frozen, prompts, features, seed=0, step=number, group_ids=range(GROUPS)
        )
        groups = sorted(found, key=lambda group: group.index)
        _, row = updated(GROUPS, programs=programs, groups=groups)
        said.append(watch.step(number, [], [], [], row)[1])
    assert said[:2] == [[], []]
    assert "log-probabilities lie" in said[2][0]


@pytest.mark.parametrize(("before", "now"), [(TOKENS, 9), (9, TOKENS)])
def test_captions_drawn_ahead_go_on_with_other_buckets(before: int, now: int) -> None:
    """A run that is resumed may pad captions to other columns than when they were drawn."""
    then, step = drawn(GROUPS, longest=before), drawn(GROUPS, longest=now)
    told = then.fixed(then.trainable, ahead=True)
    kept = known_step(kept_step(then.rollout.batches, then.groups, told.old))
    anew = step.fixed(step.trainable, ahead=True)
    again = step.fixed(step.trainable, ahead=True, old=kept.old)
    assert told.width != again.width == anew.width
    mask = caption_mask(jnp.asarray(step.lengths), jnp.ones((GROUPS, SIZE), bool), again.width)
    (ours,), (theirs,) = again.old, anew.old
    assert ours is not None
    assert theirs is not None
    np.testing.assert_allclose(jnp.where(mask, ours, 0), jnp.where(mask, theirs, 0), atol=1e-5)


@pytest.mark.long
def test_captions_drawn_ahead_are_weighed_by_the_ratio_of_the_two_policies() -> None:
    """The gradient is that of the clipped objective on log-probabilities of either policy, each computed alone."""
    step = drawn(2)
    update, old_policy = step.update, step.trainable
    programs, objective = update.programs, ObjectiveConfig(beta=0.1)
    rng = np.random.default_rng(1)
    new_policy = jax.tree.map(
        lambda x: x + 0.05 * np.abs(x).mean() * rng.normal(size=x.shape).astype(x.dtype), old_policy
    )
    fixed = step.fixed(old_policy, ahead=True)
    params, metrics = step.updated(new_policy, fixed)

    totals = step_totals(jnp.asarray(step.lengths), jnp.asarray(step.advantages.contributes), 3)
    tokens = np.stack([group.tokens for group in step.groups])

    def loss(policy: Any) -> tuple[jax.Array, list[Any]]:
        parts = []
        for batch in step.rollout.batches:
            rows = list(batch.indices)
            real = slice(len(rows))
            whole = [jax.tree.map(operator.itemgetter(real), x) for x in (batch.prompt, batch.features)]
            of = [
                programs._logprobs(which, update.frozen, *whole, tokens[rows])
                for which in (policy, old_policy, update.reference)
            ]
            mask = caption_mask(step.lengths[rows], jnp.asarray(step.advantages.contributes[rows]), TOKENS)
            advantages = jnp.asarray(step.advantages.advantages[rows])
            new, old, reference = of
            parts.append(grpo_loss(new, advantages, mask, totals, objective, old=old, reference=reference))
        return sum(part for part, _ in parts), [shares for _, shares in parts]

    (_, shares), gradient = jax.value_and_grad(loss, has_aux=True)(new_policy)
    expected = {name: float(sum(share[name] for share in shares)) for name in shares[0]}
    for ours, theirs in [
        ("ratio", "ratio"),
        ("clip/low", "clip_low"),
        ("clip/high", "clip_high"),
        ("kl", "kl"),
    ]:
        assert metrics[ours] == pytest.approx(expected[theirs], rel=1e-4), ours
    assert metrics["clip/low"] > 0 < metrics["clip/high"]
    assert abs(metrics["ratio"] - 1) > 0.01
    for ours, before, slope in zip(*map(jax.tree.leaves, (params, new_policy, gradient)), strict=True):
        np.testing.assert_allclose(ours, before - 0.1 * slope, atol=2e-6)
    # And the ratio of the one policy alone would be another update.
    assert step.updated(new_policy, step.fixed(new_policy))[1]["ratio"] == pytest.approx(1)

    # From a checkpoint they come back as they were, whatever became of the policy that drew.
    kept = kept_step(step.rollout.batches, step.groups, fixed.old)
    again = step.fixed(new_policy, ahead=True, old=known_step(kept).old)
    resumed, resumed_metrics = step.updated(new_policy, again)
    assert resumed_metrics == metrics
    for ours, theirs in zip(jax.tree.leaves(resumed), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
