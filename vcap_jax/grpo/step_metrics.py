"""A step's scores and lengths as one flat row of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vcap_jax.grpo.advantages import GroupAdvantages
from vcap_jax.grpo.records import GroupResult
from vcap_jax.reward.statistics import JudgeStatistics

Row = dict[str, float | int | str]


def reward_metrics(records: Sequence[GroupResult], advantages: GroupAdvantages) -> Row:
    """Means over the candidates that were scored (NaN if none was): reward, its components by the family's names,
    lengths, failures.

    ``reward/std`` is the mean standard deviation within a group, which is what advantages come from, unless they are
    computed per component; ``groups/flat`` are then groups without any advantage.
    """
    candidates = [candidate for record in records for candidate in record.scores.candidates]
    scored = [c for c in candidates if c.reward is not None]
    row: Row = {"reward/mean": _mean([c.reward for c in scored])}
    row["reward/std"] = _mean(
        [s for s, skip in zip(advantages.std, advantages.skipped, strict=True) if not skip]
    )
    for name in dict.fromkeys(name for c in scored for name in c.components):
        row[f"reward/{name}"] = _mean([c.components[name] for c in scored if name in c.components])
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
    """What the judge had to do in a step; beside the totals ``judge/0/...`` and so on, where there are several
    endpoints, in the order of ``judge.urls``.

    ``rate`` is in requests per second of the time in which any was under way. ``cached`` is the share of
    prompt tokens that the server had in its prefix cache, ``media_named`` of pictures that needed no sending.
    """
    row: Row = {
        "judge/store_hits": judge.store_hits,
        "judge/waited_s": judge.waited_s,
        **_endpoint_metrics("judge", judge),
    }
    for number, one in enumerate(judge.endpoints.values()):
        row |= _endpoint_metrics(f"judge/{number}", one)
    return row


def _endpoint_metrics(area: str, judge: JudgeStatistics) -> Row:
    media = judge.media_sent + judge.media_named
    return {
        f"{area}/requests": judge.requests,
        f"{area}/retries": judge.retries,
        f"{area}/errors": sum(judge.errors.values()),
        f"{area}/failures": judge.failed,
        f"{area}/outages": judge.outages,
        f"{area}/latency_mean": judge.latency_sum_s / max(judge.requests, 1),
        f"{area}/rate": judge.requests / judge.busy_s if judge.busy_s > 0 else 0.0,
        f"{area}/prompt_tokens": judge.prompt_tokens,
        f"{area}/cached": judge.cached_tokens / max(judge.prompt_tokens, 1),
        f"{area}/media_named": judge.media_named / max(media, 1),
        f"{area}/media_resent": judge.media_resent,
    }


def _mean(values: Sequence[float | int | None]) -> float:
    numbers = [float(v) for v in values if v is not None]
    return float(np.mean(numbers)) if numbers else float("nan")
