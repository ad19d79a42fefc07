"""Names of metrics in dashboards: ours, and beside them those that users of TRL and ms-swift have their panels for.

Source of theirs: the metrics that TRL 1.16 (trl/trainer/grpo_trainer.py) and ms-swift 4.6 log alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from vcap_jax.report.evaluations import Results

THEIRS: Mapping[str, str] = {
    "reward/mean": "reward",
    "reward/std": "reward_std",
    "lr": "learning_rate",
    "length/mean": "completions/mean_length",
    "length/max": "completions/max_length",
    "length/truncated": "completions/clipped_ratio",
    "clip/low": "clip_ratio/low_mean",
    "clip/high": "clip_ratio/high_mean",
    "seconds/step": "step_time",
    "nll": "loss",
}
"""Our column -> their name. ``kl``, ``loss``, ``entropy`` and ``grad_norm`` are called so by both."""

FLAT, THEIR_FLAT = "groups/flat", "frac_reward_zero_std"
"""Groups whose captions all have the same reward: we count them, they give the share."""
_COMPONENT = re.compile(r"reward/(?!mean$|std$)(.+)")


def tracked(row: Mapping[str, object], *, groups: int) -> dict[str, float]:
    """The numbers of a row of metrics.jsonl under both names; what is no finite number is left out, and columns of
    evaluations, of which ``evaluation_values`` has more.

    groups: of a step. A component of the reward, ``reward/NAME``, is ``rewards/NAME/mean`` to them.
    """
    ours = {
        name: float(value)
        for name, value in row.items()
        if name != "step"
        and not name.startswith("eval/")
        and isinstance(value, int | float)
        and math.isfinite(value)
    }
    theirs = {THEIRS[name]: value for name, value in ours.items() if name in THEIRS}
    theirs |= {
        f"rewards/{found[1]}/mean": ours[name] for name in ours if (found := _COMPONENT.fullmatch(name))
    }
    if FLAT in ours and groups > 0:
        theirs[THEIR_FLAT] = ours[FLAT] / groups
    return theirs | ours


def evaluation_values(results: Results) -> dict[str, float]:
    """An evaluation's figures: ``eval/NAME/METRIC`` as in metrics.jsonl, its interval and its change since the start
    under ``eval_intervals/`` and ``eval_changes/``. What captioned without being the run's policy stands apart, under
    its own name: ``eval/NAME/references/METRIC``."""
    area = results.evaluator if results.step is not None else f"{results.evaluator}/{results.when}"
    values: dict[str, float] = {f"eval/{area}/failed": results.columns()[f"eval/{results.evaluator}/failed"]}
    for name, value in results.metrics.items():
        values[f"eval/{area}/{name}"] = value.value
        values |= {f"eval_intervals/{area}/{name}/{end}": getattr(value, end) for end in ("low", "high")}
    values |= {f"eval_changes/{area}/{name}": value.value for name, value in results.changes.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}
