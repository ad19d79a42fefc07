"""The update of a step, however its groups are cut into batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.tiny_policy import VOCABULARY, tiny_model, tiny_prompts
from vcap_jax.grpo.advantages import group_advantages
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.objective import ObjectiveConfig
from vcap_jax.grpo.programs import UpdatePrograms
from vcap_jax.grpo.records import GroupRecord, StepRollout
from vcap_jax.grpo.update import StepUpdate
from vcap_jax.models.family import family_of
from vcap_jax.models.policy import split_model, vision_encoder
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.rollout.engine import RolloutBatch
from vcap_jax.rollout.slots import SampledGroup

GROUPS, SIZE, TOKENS = 5, 2, 6
PARTS = split_model(tiny_model(), ("visual",))


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
    return UpdatePrograms(PARTS[0], objective, optax.sgd(0.1), temperature=1.0, logprob_chunk=4)


def updated(
    micro: int,
    devices: int = 1,
    programs: UpdatePrograms | None = None,
    order: tuple[int, ...] = tuple(range(GROUPS)),
    longest: int = TOKENS,
    narrow: int | None = None,
) -> tuple[Any, dict[str, float]]:
    """order: of the groups in the batches. longest: tokens of a caption at most. narrow: what prompts behind the first
    batch are padded to."""
    _, trainable, frozen = PARTS
    config = GRPOConfig(
        groups_per_step=GROUPS, groups_per_micro_batch=micro, objective=ObjectiveConfig(beta=0.1)
    )
    programs = programs or update_programs()
    rules = family_of(PARTS[0]).partition_rules
    placement = Placement.build(MeshConfig(fsdp=devices), jax.devices()[:devices], rules=rules)
    trainable, frozen = placement.state(trainable), placement.state(frozen)
    rng = np.random.default_rng(0)
    tokens = rng.integers(9, VOCABULARY, (GROUPS, SIZE, TOKENS)).astype(np.int32)
    lengths = rng.integers(1, TOKENS + 1, (GROUPS, SIZE)).astype(np.int32)
    rewards = rng.random((GROUPS, SIZE))
    ordered = jax.tree.map(lambda x: x[np.asarray(order)], tiny_prompts(GROUPS))
    batches = []
    for first in range(0, GROUPS, micro):
        indices = order[first : first + micro]
        prompt = placement.batch(padded(ordered, first, micro, tokens=narrow if first else None))
        features = vision_encoder(PARTS[0])(trainable, frozen, prompt)
        batches.append(RolloutBatch([SimpleNamespace()] * len(indices), indices, prompt, features))
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
    groups = [SampledGroup(r.index, r.tokens, r.lengths, r.truncated) for r in records]
    fixed = update.fixed(trainable, batches, groups, int(lengths.max()))
    state, metrics = update(
        programs.initial_state(trainable, placement),
        StepRollout(batches=tuple(batches), records=tuple(records), rollout_seconds=0, judge_seconds=0),
        lengths,
        group_advantages(rewards, np.isfinite(rewards), config.advantages),
        fixed,
    )
    return state.params, metrics


@pytest.fixture(scope="module")
def whole() -> tuple[Any, dict[str, float]]:
    """All groups in one batch and one micro-batch, on one device."""
    return updated(GROUPS)


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


def test_each_micro_batch_is_padded_to_its_own_prompts(whole) -> None:
    """The longest prompts (12 tokens) come first; the batches behind them are padded to 11."""
    params, metrics = whole
    own, own_metrics = updated(2, order=(0, 3, 1, 4, 2), narrow=11)
    assert own_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(jax.tree.leaves(own), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


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
