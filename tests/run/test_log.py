"""The row of metrics of a step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from vcap_jax.grpo.advantages import group_advantages
from vcap_jax.grpo.records import GroupResult, StepOutcome, StepReport
from vcap_jax.recipes.sft import _Log
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.group import CandidateScore, GroupScores
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.run.config import LoggingConfig, RunConfig
from vcap_jax.run.log import RunLog
from vcap_jax.run.trackers import Trackers
from vcap_jax.world.captions import full_caption
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.splits import EmbeddedData


def run_log(config: RunConfig, folder: RunFolder, *, done: int, world: EmbeddedData | None = None) -> RunLog:
    """Of a run of three steps."""
    return RunLog(
        config,
        folder,
        total=3,
        done=done,
        learning_rate=lambda step: 0.0,
        world=world,
        second_judge=None,
        trackers=Trackers(config, folder, print, groups=2),
    )


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
    log.step(
        StepReport(
            step=1,
            records=(),
            outcome=StepOutcome(results=results, rollout_seconds=1.0, judge_seconds=1.0),
            advantages=group_advantages(rewards, np.ones_like(rewards, bool), config.grpo.advantages),
            update={},
            judge=JudgeStatistics(),
            skipped_samples=0,
            data_seconds=0.5,
            update_seconds=1.0,
            step_seconds=1.0,
            compiles=0,
        )
    )
    (row,) = read_metrics(folder.metrics)
    assert row["facts/coverage"] == 0.5
    assert row["seconds/data"] == 0.5
    log.evaluated(1, {"eval/heldout/coverage": 0.25})
    (row,) = read_metrics(folder.metrics)
    assert row["eval/heldout/coverage"] == 0.25


def test_an_evaluation_goes_without_a_row_that_was_lost(tmp_path: Path) -> None:
    """A run that was resumed at such a step ended in an error, at every start."""
    config, folder = RunConfig(), RunFolder(tmp_path)
    log = run_log(config, folder, done=2)
    log.evaluated(2, {"eval/heldout/coverage": 0.25})
    assert list(read_metrics(folder.metrics)) == []
    ctx: Any = SimpleNamespace(config=config, folder=folder)
    supervised = _Log(ctx, Trackers(config, folder, print, groups=2), total=3, done=2)
    supervised.evaluated(2, {"eval/heldout/coverage": 0.25})
    assert list(read_metrics(folder.metrics)) == []
