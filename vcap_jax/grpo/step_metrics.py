"""A step's scores and lengths as one flat row of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vcap_jax.grpo.advantages import GroupAdvantages
from vcap_jax.grpo.collect import GroupRecord
from vcap_jax.reward.statistics import JudgeStatistics

Row = dict[str, float | int | str]


def reward_metrics(records: Sequence[GroupRecord], advantages: GroupAdvantages) -> Row:
    """Means over the candidates that were scored (NaN if none was): reward, each score, lengths, failures.

    ``reward/std`` is the mean standard deviation within a group: what the update has to go by.
    """
    candidates = [candidate for record in records for candidate in record.scores.candidates]
    scored = [c for c in candidates if c.reward is not None]
    row: Row = {"reward/mean": _mean([c.reward for c in scored])}
    row["reward/std"] = _mean(
        [s for s, skip in zip(advantages.std, advantages.skipped, strict=True) if not skip]
    )
    passes = [c.global_scores for c in scored if c.global_scores is not None]
    row["reward/correctness"] = _mean([s.correctness for s in passes])
    row["reward/completeness"] = _mean([s.completeness for s in passes])
    row["reward/third"] = _mean([s.third for s in passes])
    local = [c.local_scores for c in scored if c.local_scores is not None]
    if local:
        row["reward/local"] = _mean([(s.correctness + s.completeness) / 20 for s in local])
        row["reward/local_correctness"] = _mean([s.correctness for s in local])
        row["reward/local_completeness"] = _mean([s.completeness for s in local])
    lengths = np.concatenate([record.lengths for record in records])
    truncated = np.concatenate([record.truncated for record in records])
    texts = [len(set(record.captions)) / len(record.captions) for record in records]
    row |= {
        "length/mean": float(lengths.mean()),
        "length/max": int(lengths.max()),
        "length/truncated": float(truncated.mean()),
        "captions/distinct": _mean(texts),
        "judge/failed": 1 - len(scored) / len(candidates),
        "groups/dropped": int(np.sum(advantages.skipped)),
        "groups/flat": int(np.sum(advantages.flat)),
    }
    return row


def judge_metrics(judge: JudgeStatistics) -> Row:
    """What the judge had to do in a step."""
    answered = max(judge.requests, 1)
    return {
        "judge/requests": judge.requests,
        "judge/retries": judge.retries,
        "judge/latency_mean": judge.latency_sum_s / answered,
    }


def _mean(values: Sequence[float | int | None]) -> float:
    numbers = [float(v) for v in values if v is not None]
    return float(np.mean(numbers)) if numbers else float("nan")
