"""Signs that a policy has found a way to please the judge without describing better, or that a run has gone astray.

Numbers under ``alarms/`` for every step, and a line for the user where one passes its limit. All of it follows from the
step's own groups, the configuration and the rows of earlier steps, so a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.report.metrics import Row
from vcap_jax.reward.contradictions import contradiction
from vcap_jax.reward.group import GroupScores

PREFIX = "alarms/"
_ROUNDING = 1e-9


@settings
class AlarmConfig:
    """Limits of the alarms; null switches one off."""

    saturated: float | None = Field(default=0.9, gt=0, le=1)
    """Share of scored candidates with the full reward, at which the judge tells nothing apart any
    more; of families that know a full reward."""
    no_spread: float | None = Field(default=0.8, gt=0, le=1)
    """Share of groups whose rewards, with the cost of length, are all equal, from which nothing is
    learned; with grpo.advantages.per_component, of groups without any advantage."""
    length_ratio: float | None = Field(default=3.0, gt=1)
    """Mean caption length over that of the first baseline_steps steps."""
    truncated: float | None = Field(default=0.25, gt=0, le=1)
    """Share of captions that rollout.max_completion_length cut off."""
    duplicates: float | None = Field(default=0.8, gt=0, le=1)
    """Share of the captions after the first of their group that repeat an earlier one."""
    mismatch: float | None = Field(default=0.1, gt=0, le=1)
    """Share of judgements whose analysis and scores contradict each other
    (vcap_jax.reward.contradictions); of families that ask for verdicts."""
    engine_mismatch: float | None = Field(default=5.0, gt=1)
    """How far the log-probabilities of the sampler or of vLLM (rollout/mismatch_mean) lie from the
    trainer's, over that of the first baseline_steps steps, which counts as 1e-4 nats at least, and
    as 0.02 at most: what is wrong from the start is no rounding."""
    adapters_lost: float | None = Field(default=0.1, gt=0, le=1)
    """Share of what LoRA adapters add that rounding takes away in the weights that a rollout engine
    of its own is given (1 - rollout/adapters_kept)."""
    baseline_steps: int = Field(default=10, ge=1)
    """Steps at the beginning that length_ratio and engine_mismatch compare with."""
    every_steps: int = Field(default=25, ge=1)
    """An alarm that stays is repeated in the output after so many steps."""

    def limits(self) -> dict[str, float]:
        """The limits that are set, by the name of their metric without its prefix."""
        return {name: float(limit) for name in _MEANINGS if (limit := getattr(self, name)) is not None}


_MEANINGS: Mapping[str, str] = {
    "saturated": "{value:.0%} of the scored captions have the full reward: it tells good from better no more",
    "no_spread": "{value:.0%} of the groups have captions of one and the same reward: there is little to learn from",
    "length_ratio": "captions are {value:.1f} times as long as in the first steps: look whether they say more",
    "truncated": (
        "{value:.0%} of the captions were cut off: see in samples.html whether they need a larger "
        "rollout.max_completion_length, or repeat themselves or end in noise (configs/updates/overlong.yaml)"
    ),
    "duplicates": (
        "{value:.0%} of the captions after their group's first repeat an earlier one: the policy loses its variety"
    ),
    "mismatch": "{value:.0%} of the judgements contradict their own analysis: read some of them in samples.html",
    "engine_mismatch": (
        "the rollout engine's log-probabilities lie {value:.1f} times as far from the trainer's as in the first steps, "
        "or as rounding explains (0.02 nats): look whether a server takes the new weights, or whether "
        "model.decode_attention=dense mends the JAX sampler"
    ),
    "adapters_lost": (
        "rounding takes {value:.0%} of what the adapters add out of the weights that the rollout servers hold, and "
        "captions come from nearer the base: set model.dtype=float32 for both commands, or rollout.engine=jax"
    ),
}


_GROWTHS: Mapping[str, tuple[str, float, float]] = {
    "length_ratio": ("length/mean", 0.0, math.inf),
    "engine_mismatch": ("rollout/mismatch_mean", 1e-4, 0.02),
}
"""Alarms about a metric that should not grow beyond its mean over the first steps, which counts as so much at least and
at most."""


def step_alarms(
    groups: Sequence[GroupScores], captions: Sequence[Sequence[str]], flat: Sequence[bool]
) -> Row:
    """The alarm metrics of a step that its groups tell; a share of nothing is left out.

    captions: the texts of each group. flat: of each group whose captions can be compared, whether it gives no
    advantages.
    """
    candidates = [candidate for group in groups for candidate in group.candidates]
    row: Row = {}
    limited = [(group.full_reward, group.rewards) for group in groups if group.full_reward is not None]
    _put(
        row, "saturated", [r >= full - _ROUNDING for full, earned in limited for r in earned if r is not None]
    )
    _put(row, "no_spread", flat)
    repeated = [(len(texts) - len(set(texts))) / (len(texts) - 1) for texts in captions if len(texts) > 1]
    _put(row, "duplicates", repeated)
    verdicts = [scores for candidate in candidates for scores in candidate.verdicts.values()]
    _put(row, "mismatch", [contradiction(scores) is not None for scores in verdicts])
    return row


def raised(row: Mapping[str, object], config: AlarmConfig) -> dict[str, str]:
    """The alarms that a row of metrics raises, by name, each with its line for the user."""
    found = {}
    for name, limit in config.limits().items():
        value = row.get(PREFIX + name)
        if isinstance(value, int | float) and value >= limit:
            found[name] = f"alarm: {_MEANINGS[name].format(value=value)} (alarms.{name} is {limit:g})"
    return found


class AlarmWatch:
    """Goes with a run from step to step.

    rows: the metrics of the steps that are done. The same rows give the same watch, whoever wrote them.
    """

    def __init__(self, config: AlarmConfig, rows: Sequence[Mapping[str, object]] = ()) -> None:
        self._config = config
        self._first: dict[str, list[float]] = {name: [] for name in _GROWTHS}
        self._said: dict[str, int] = {}
        for row in rows:
            step = row["step"]
            assert isinstance(step, int)
            self._remember(step, row)

    def step(
        self,
        step: int,
        groups: Sequence[GroupScores],
        captions: Sequence[Sequence[str]],
        flat: Sequence[bool],
        measured: Mapping[str, object],
    ) -> tuple[Row, list[str]]:
        """The metrics of a step, and what to tell the user.

        step: from 1. groups, captions, flat: as ``step_alarms`` takes them. measured: the step's other metrics.
        """
        row = step_alarms(groups, captions, flat)
        kept = _finite(measured.get("rollout/adapters_kept"))
        if kept is not None:
            row[PREFIX + "adapters_lost"] = max(0.0, 1 - kept)
        cut = _finite(measured.get("length/truncated"))
        if cut is not None:
            row[PREFIX + "truncated"] = cut
        for name, (metric, least, most) in _GROWTHS.items():
            value, first = _finite(measured.get(metric)), self._first[name]
            if value is not None and len(first) == self._config.baseline_steps:
                baseline = min(max(fmean(first), least), most)
                if baseline > 0:
                    row[PREFIX + name] = value / baseline
        lines = raised(row, self._config)
        row[f"{PREFIX}raised"] = len(lines)
        return row, [lines[name] for name in self._remember(step, {**measured, **row})]

    def _remember(self, step: int, row: Mapping[str, object]) -> list[str]:
        """Takes a step into account; the alarms that are to be said about it."""
        for name, (metric, *_) in _GROWTHS.items():
            value, first = _finite(row.get(metric)), self._first[name]
            if value is not None and len(first) < self._config.baseline_steps:
                first.append(value)
        due = []
        for name in raised(row, self._config):
            last = self._said.get(name)
            if last is None or step - last >= self._config.every_steps:
                self._said[name] = step
                due.append(name)
        return due


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _put(row: Row, name: str, values: Sequence[float]) -> None:
    if values:
        row[PREFIX + name] = fmean(values)
