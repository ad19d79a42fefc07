"""Settings of evaluation."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.sampling import SamplingConfig

HELDOUT = "heldout"
"""The scenes that a run of the embedded world is compared on with its references (summary.json, comparison.png)."""

JUDGED = "judged"
"""The held-out samples of a user's own data, scored as the run's reward scores."""

BENCHMARKS: Mapping[str, str] = {
    "capmas": "vcap_jax.evals.benchmarks.capmas:CapMas",
    "decapbench": "vcap_jax.evals.benchmarks.decapbench:DeCapBench",
    "vcapsbench": "vcap_jax.evals.benchmarks.vcapsbench:VCapsBench",
    "vdc": "vcap_jax.evals.benchmarks.vdc:Vdc",
    "prism-ai2d": "vcap_jax.evals.benchmarks.prism:PrismAi2d",
    "prism-mmstar": "vcap_jax.evals.benchmarks.prism:PrismMmstar",
    "prism-realworldqa": "vcap_jax.evals.benchmarks.prism:PrismRealWorldQa",
    "prism-vstar": "vcap_jax.evals.benchmarks.prism:PrismVStar",
    "captionqa": "vcap_jax.evals.benchmarks.captionqa:CaptionQa",
    "caparena-auto": "vcap_jax.evals.benchmarks.caparena:CapArenaAuto",
    "dream1k": "vcap_jax.evals.benchmarks.dream1k:Dream1k",
}
"""Public benchmarks, by name, with their import paths (docs/evaluate.md)."""

EVALUATORS: Mapping[str, str] = {
    HELDOUT: "vcap_jax.evals.heldout:HeldOut",
    JUDGED: "vcap_jax.evals.judged:Judged",
    **BENCHMARKS,
}
"""Evaluators of this project, by name, with their import paths."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@settings
class EvaluatorConfig:
    """An evaluator, and how captions are drawn for it."""

    use: str
    """heldout (the held-out scenes of the embedded world), judged (data.heldout or
    data.heldout_share, scored as the reward scores), a benchmark (docs/evaluate.md), or the import
    path package.module:Class of another one (vcap_jax.evals.protocol)."""
    name: str | None = None
    """Name of its columns and its folder; null for the evaluator's own."""
    captions: int | None = Field(default=None, ge=1)
    """Captions of each sample; null for as many as rollout.group_size, and one for a benchmark."""
    sampling: SamplingConfig | None = None
    """null draws as the rollout does."""
    max_completion_length: int | None = Field(default=None, ge=1)
    """Tokens of a caption at most; null takes rollout.max_completion_length."""
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Settings of a benchmark (data, mode and so on, docs/evaluate.md), or of an evaluator of your
    own."""

    def __post_init__(self) -> None:
        if self.use in (HELDOUT, JUDGED) and self.options:
            raise ValueError(
                f"options {sorted(self.options)} are for a benchmark or an evaluator of your own; use is {self.use}"
            )
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}; give letters, digits, - and _: it names a folder")
        if self.name in EVALUATORS and self.name != self.use:
            raise ValueError(f"name is {self.name!r}, an evaluator of this project; give another")
        one = self.captions == 1 or (self.captions is None and self.use in BENCHMARKS)
        if self.sampling is not None and self.sampling.temperature == 0 and not one:
            raise ValueError(
                "sampling.temperature is 0, so all captions of a sample are the same: set captions to 1"
            )


GREEDY = SamplingConfig(temperature=0.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
"""One caption of a sample: the likeliest token each time, without a penalty. ``launch/caption.py`` keeps the run's own
repetition penalty (``rollout.sampling``)."""


@settings
class EvaluationConfig:
    """What captions are measured by while a run goes on, beside its reward."""

    every: int | None = Field(default=None, ge=1)
    """Steps between two evaluations; null evaluates at the start and at the end alone."""
    evaluators: tuple[EvaluatorConfig, ...] = (
        EvaluatorConfig(use=HELDOUT),
        EvaluatorConfig(use=JUDGED, captions=1, sampling=GREEDY),
    )
    """A list of sections with the keys use (heldout, judged, a benchmark, or the import path
    package.module:Class of your own), name (of its columns and folder), captions (of each sample),
    sampling and max_completion_length (as in the rollout if left out), and options (of a benchmark
    or your own evaluator). One that has nothing to evaluate is left out."""
    other_judge: JudgeConfig | None = None
    """Another judge that scores the held-out captions of judged as well, with the same
    instructions; null for none. It shows whether the run has learnt the weaknesses of its own."""

    def __post_init__(self) -> None:
        if self.other_judge is not None and not self.other_judge.urls:
            raise ValueError(
                "evaluation.other_judge.urls is empty: give the address of another judge, or leave out "
                "evaluation.other_judge"
            )
