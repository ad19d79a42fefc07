"""What dashboards are given: numbers under our names and under those that users of TRL and ms-swift have their panels
for, and samples, each as one picture and a text.

Source of their names: the metrics that TRL 1.16 (trl/trainer/grpo_trainer.py) and ms-swift 4.6 log alike.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping

from PIL import Image

from vcap_jax.report.changes import by_reward
from vcap_jax.report.evaluations import Results
from vcap_jax.report.samples import Sample, evenly

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
_HEIGHT, _MOST = 192, 8
"""Of a strip of frames: pixels, and how many."""
_COMPONENT = re.compile(r"reward/(?!mean$|std$)(.+)")


def tracked(row: Mapping[str, object], *, groups: int) -> dict[str, float]:
    """The numbers of a row of metrics.jsonl under both names; what is no finite number is left out, and what the row
    has only after an evaluation: its seconds, and its columns, of which ``evaluation_values`` has more.

    groups: of a step. A component of the reward, ``reward/NAME``, is ``rewards/NAME/mean`` to them.
    """
    ours = {
        name: float(value)
        for name, value in row.items()
        if name not in ("step", "seconds/evaluation")
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


def strip(sample: Sample) -> Image.Image:
    """The sample's picture, or up to eight frames of its clip or pictures side by side, RGB."""
    pictures = []
    for frame in evenly(sample.frames, _MOST):
        with Image.open(io.BytesIO(base64.b64decode(frame.url.partition(",")[2]))) as opened:
            pictures.append(opened.convert("RGB"))
    if len(pictures) == 1:
        return pictures[0]
    pictures = [p.resize((max(1, round(p.width * _HEIGHT / p.height)), _HEIGHT)) for p in pictures]
    whole = Image.new("RGB", (sum(p.width for p in pictures), _HEIGHT))
    left = 0
    for picture in pictures:
        whole.paste(picture, (left, 0))
        left += picture.width
    return whole


def described(sample: Sample) -> str:
    """In Markdown: which sample, its best caption with reward and scores, the reference."""
    best = by_reward(sample.candidates)[0]
    reward = "not scored" if best.reward is None else f"reward {best.reward:.3f}"
    scores = "".join(f", {name.replace('_', ' ')} {value:.3g}" for name, value in best.scores.items())
    lines = [f"**{sample.id}**, step {sample.step}: {reward}{scores}", best.caption or "(empty)"]
    if sample.reference:
        lines.append(f"*Reference:* {sample.reference}")
    return "\n\n".join(lines)
