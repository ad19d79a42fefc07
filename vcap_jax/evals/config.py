"""Settings of evaluation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vcap_jax.rollout.sampling import SamplingConfig

HELDOUT = "heldout"
"""The scenes that a run of the embedded world is compared on with its references (summary.json, comparison.png)."""

EVALUATORS: Mapping[str, str] = {HELDOUT: "vcap_jax.evals.heldout:HeldOut"}
"""Evaluators of this project, by name, with their import paths."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, kw_only=True)
class EvaluatorConfig:
    """An evaluator, and how captions are drawn for it.

    use: heldout (the held-out scenes of the embedded world), or the import path package.module:Class of another one
        (:mod:`vcap_jax.evals.protocol`).
    name: of its columns and its folder; null for the evaluator's own.
    captions: of each sample; null for as many as rollout.group_size.
    sampling: as in the rollout where null. max_completion_length: tokens; as in the rollout where null.
    options: settings for an evaluator of the user's own.
    """

    use: str
    name: str | None = None
    captions: int | None = None
    sampling: SamplingConfig | None = None
    max_completion_length: int | None = None
    options: dict[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.use in EVALUATORS and self.options:
            raise ValueError(
                f"options {sorted(self.options)} are for an evaluator of your own; use is {self.use}"
            )
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}; give letters, digits, - and _: it names a folder")
        if self.name in EVALUATORS and self.name != self.use:
            raise ValueError(f"name is {self.name!r}, an evaluator of this project; give another")
        for name in ("captions", "max_completion_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1, or null for that of the rollout")
        if self.sampling is not None and self.sampling.temperature == 0 and self.captions != 1:
            raise ValueError(
                "sampling.temperature is 0, so all captions of a sample are the same: set captions to 1"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What captions are measured by while a run goes on, beside its reward.

    every: steps between two evaluations; null evaluates at the start and at the end alone.
    evaluators: a list of sections with the keys use (heldout, or the import path package.module:Class of your own),
        name (of its columns and folder), captions (of each sample), sampling and max_completion_length (as in the
        rollout if left out), and options (of your own evaluator).
    """

    every: int | None = None
    evaluators: tuple[EvaluatorConfig, ...] = (EvaluatorConfig(use="heldout"),)

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ValueError(f"evaluation.every is {self.every}; it must be at least 1, or null")
