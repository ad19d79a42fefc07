"""Names in dashboards: ours and theirs, from one row."""

from __future__ import annotations

import math

from vcap_jax.report.evaluations import Results
from vcap_jax.report.intervals import Value
from vcap_jax.report.trackers.contents import evaluation_values, tracked


def value(number: float) -> Value:
    return Value(value=number, low=number - 1, high=number + 1, n=3, method="m")


def test_a_row_is_given_under_both_names() -> None:
    row = {
        "step": 7,
        "reward/mean": 0.5,
        "reward/std": 0.25,
        "reward/correctness": 8,
        "reward/local/correctness": 6.0,
        "length/mean": 40.0,
        "length/truncated": 0.125,
        "groups/flat": 3,
        "kl": 0.01,
        "lr": 1e-6,
        "note": "text",
        "judge/0/rate": math.inf,
        "eval/judged/reward": 0.9,
        "seconds/evaluation": 3.0,
    }
    assert tracked(row, groups=12) == {
        "reward": 0.5,
        "reward_std": 0.25,
        "rewards/correctness/mean": 8,
        "rewards/local/correctness/mean": 6.0,
        "completions/mean_length": 40.0,
        "completions/clipped_ratio": 0.125,
        "frac_reward_zero_std": 0.25,
        "learning_rate": 1e-6,
        "reward/mean": 0.5,
        "reward/std": 0.25,
        "reward/correctness": 8,
        "reward/local/correctness": 6.0,
        "length/mean": 40.0,
        "length/truncated": 0.125,
        "groups/flat": 3,
        "kl": 0.01,
        "lr": 1e-6,
    }


def test_an_evaluation_has_values_intervals_and_changes_and_references_stand_apart() -> None:
    results = Results(
        evaluator="judged",
        when="step-4",
        step=4,
        metrics={"reward": value(2.0), "tokens": value(math.nan)},
        items=4,
        failed=1,
        changes={"reward": value(1.0)},
    )
    assert evaluation_values(results) == {
        "eval/judged/failed": 0.25,
        "eval/judged/reward": 2.0,
        "eval_intervals/judged/reward/low": 1.0,
        "eval_intervals/judged/reward/high": 3.0,
        "eval_changes/judged/reward": 1.0,
    }
    pool = Results(
        evaluator="judged", when="references", step=None, metrics={"reward": value(2.0)}, items=4, failed=0
    )
    assert evaluation_values(pool)["eval/judged/references/reward"] == 2.0
