"""The row of metrics of a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vcap_jax.configuration import load_config
from vcap_jax.grpo.advantages import GroupAdvantages, group_advantages, overlong_penalty
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.records import GroupResult, StepOutcome, StepReport
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import CandidateScore, GroupScores
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.run.config import LoggingConfig, RunConfig
from vcap_jax.run.log import RunLog, SupervisedLog
from vcap_jax.run.trackers import Trackers
from vcap_jax.world.captions import full_caption
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.splits import EmbeddedData

LATE = Failure(reason="timeout", detail="late")


def run_log(
    config: RunConfig,
    folder: RunFolder,
    *,
    done: int,
    world: EmbeddedData | None = None,
    learning_rate: Callable[[int], float] = lambda update: 0.0,
) -> RunLog:
    """Of a run of three steps."""
    return RunLog(
        config,
        folder,
        total=3,
        done=done,
        learning_rate=learning_rate,
        world=world,
        second_judge=None,
        trackers=Trackers(config, folder, print, groups=2),
    )


def report(results: tuple[GroupResult, ...], advantages: GroupAdvantages, step: int = 1) -> StepReport:
    return StepReport(
        step=step,
        records=(),
        outcome=StepOutcome(results=results, rollout_seconds=2.0, judge_seconds=3.0),
        advantages=advantages,
        update={},
        judge=JudgeStatistics(),
        skipped_samples=0,
        data_seconds=0.5,
        update_seconds=4.0,
        step_seconds=8.0,
        compiles=0,
    )


def group_of(index: int, rewards: tuple[float | None, ...], lengths: tuple[int, ...]) -> GroupResult:
    """Of captions that are all different."""
    scores = GroupScores(
        sample_id=f"s{index}",
        step=0,
        candidates=tuple(CandidateScore(reward=r, failure=LATE if r is None else None) for r in rewards),
    )
    return GroupResult(
        index=index,
        sample_id=f"s{index}",
        captions=tuple(f"caption {k}" for k in range(len(rewards))),
        lengths=np.array(lengths, np.int32),
        truncated=np.zeros(len(rewards), bool),
        scores=scores,
    )


@pytest.mark.parametrize(("updates", "rates"), [(1, [0.0, 1.0, 2.0]), (2, [1.0, 3.0, 5.0])])
def test_the_learning_rate_is_that_of_the_update_that_the_row_s_numbers_are_of(
    tmp_path: Path, updates: int, rates: list[float]
) -> None:
    config = RunConfig(grpo=GRPOConfig(num_iterations=updates), logging=LoggingConfig(samples_every=9))
    rewards, folder = np.array([[0.0, 1.0]]), RunFolder(tmp_path)
    log = run_log(config, folder, done=0, learning_rate=float)
    advantages = group_advantages(rewards, np.ones_like(rewards, bool), config.grpo.advantages)
    for step in (1, 2, 3):
        log.step(report((group_of(0, (0.0, 1.0), (5, 5)),), advantages, step))
    assert [row["lr"] for row in read_metrics(folder.metrics)] == rates


def test_a_group_that_the_cost_of_length_tells_apart_is_not_without_spread(tmp_path: Path) -> None:
    """Of five groups one is left out, two differ by their lengths alone, one by rewards that its lengths make equal,
    and one is flat."""
    config = load_config(
        RunConfig,
        [],
        ["grpo.overlong={weight: 0.5, buffer: 0.2}", "rollout.max_completion_length=100"],
    )
    rewards: list[tuple[float | None, ...]] = [(0.5, None), (0.5, 0.5), (0.5, 0.5), (0.75, 0.5), (0.5, 0.5)]
    lengths = [(90, 90), (100, 80), (84, 81), (90, 80), (80, 80)]
    results = tuple(group_of(index, *both) for index, both in enumerate(zip(rewards, lengths, strict=True)))
    made_of = np.array(rewards, float) + overlong_penalty(np.array(lengths), 100, config.grpo.overlong)
    advantages = group_advantages(made_of, np.isfinite(made_of), config.grpo.advantages)
    folder = RunFolder(tmp_path)
    run_log(config, folder, done=0).step(report(results, advantages))
    (row,) = read_metrics(folder.metrics)
    assert (row["groups/dropped"], row["groups/flat"]) == (1, 2)
    assert row["alarms/no_spread"] == 0.5


def test_facts_are_counted_in_every_group_of_a_sample_that_occurs_twice(tmp_path: Path) -> None:
    scene = sample_image_scene(0, 0)
    full = full_caption(scene, np.random.default_rng(0))
    nowhere = Path("absent")
    world = EmbeddedData(
        train=nowhere, heldout=nowhere, train_scenes={"twice": scene}, heldout_scenes={"twice": scene}
    )
    scores = GroupScores(
        sample_id="twice", step=0, candidates=(CandidateScore(reward=0.0), CandidateScore(reward=1.0))
    )
    results = tuple(
        GroupResult(
            index=index,
            sample_id="twice",
            captions=captions,
            lengths=np.ones(2, np.int32),
            truncated=np.zeros(2, bool),
            scores=scores,
        )
        for index, captions in enumerate([(full, full), ("", "")])
    )
    rewards = np.array([scores.rewards] * 2, float)
    folder = RunFolder(tmp_path)
    config: Any = RunConfig(logging=LoggingConfig(samples_every=2))
    log = run_log(config, folder, done=0, world=world)
    log.step(report(results, group_advantages(rewards, np.ones_like(rewards, bool), config.grpo.advantages)))
    (row,) = read_metrics(folder.metrics)
    assert row["facts/coverage"] == 0.5
    assert row["seconds/data"] == 0.5
    log.evaluated(1, {"eval/heldout/coverage": 0.25})
    (row,) = read_metrics(folder.metrics)
    assert row["eval/heldout/coverage"] == 0.25


def test_a_row_tells_seconds_and_rates_and_alarms_see_all_of_it(tmp_path: Path) -> None:
    config = load_config(RunConfig, [], ["alarms.baseline_steps=1", "logging.samples_every=9"])
    folder, rewards = RunFolder(tmp_path), np.array([[0.0, 1.0]])
    log = run_log(config, folder, done=0)
    advantages = group_advantages(rewards, np.ones_like(rewards, bool), config.grpo.advantages)
    for step, length in ((1, 5), (2, 20)):
        log.step(report((group_of(0, (0.0, 1.0), (length, length)),), advantages, step))
    row = read_metrics(folder.metrics)[-1]
    names = ("data", "rollout", "judge", "update", "step")
    assert [row[f"seconds/{name}"] for name in names] == [0.5, 2.0, 3.0, 4.0, 8.0]
    assert (row["tokens_per_s/rollout"], row["tokens_per_s/update"]) == (20.0, 10.0)
    # Of the lengths in the row, which no update tells.
    assert row["alarms/length_ratio"] == 4.0


def test_an_evaluation_goes_without_a_row_that_was_lost(tmp_path: Path) -> None:
    """A run that was resumed at such a step ended in an error, at every start."""
    config, folder = RunConfig(), RunFolder(tmp_path)
    log = run_log(config, folder, done=2)
    log.evaluated(2, {"eval/heldout/coverage": 0.25})
    assert list(read_metrics(folder.metrics)) == []
    trackers = Trackers(config, folder, print, groups=2)
    supervised = SupervisedLog(config, folder, total=3, done=2, trackers=trackers)
    supervised.evaluated(2, {"eval/heldout/coverage": 0.25})
    assert list(read_metrics(folder.metrics)) == []
