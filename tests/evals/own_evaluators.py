"""Evaluators as a user would write them, good and bad, for tests of the import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vcap_jax.data.manifest import read_manifest
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.protocol import (
    Captioner,
    Captions,
    Evaluation,
    EvaluatorTools,
    NothingToEvaluate,
    mean_of,
    measured,
)
from vcap_jax.report.intervals import Value


class Words:
    """Words of the captions of a manifest; asks twice, with two seeds."""

    name: ClassVar[str] = "words"
    modality: ClassVar[Any] = None

    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        self.samples = read_manifest(str(config.options["manifest"]))

    def evaluate(self, captioner: Captioner) -> Evaluation:
        items = measured(captioner.captions(self.samples), self.measure)
        again = measured(captioner.captions(self.samples[:2], seed=1), self.measure)
        return Evaluation(
            metrics={"words": mean_of(items, "words"), "again": mean_of(again, "words")}, items=items
        )

    def measure(self, captions: Captions) -> Mapping[str, float]:
        return {"words": sum(len(text.split()) for text in captions.texts) / len(captions.texts)}


class Videos(Words):
    modality = "video"


class Twice(Words):
    def evaluate(self, captioner: Captioner) -> Evaluation:
        captioner.captions([*self.samples, *self.samples])
        raise AssertionError


class Bare:
    name, modality = "bare", None

    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        pass

    def evaluate(self, captioner: Captioner) -> Any:
        return {"words": 1.0}


class Plain(Bare):
    def evaluate(self, captioner: Captioner) -> Any:
        return Evaluation(metrics={"words": 1.0}, items=())  # type: ignore[dict-item]


class Infinite(Bare):
    def evaluate(self, captioner: Captioner) -> Any:
        value = Value(value=0.5, low=0.0, high=float("inf"), n=2, method="by hand")
        return Evaluation(metrics={"words": value}, items=())


class Shared(Bare):
    def evaluate(self, captioner: Captioner) -> Any:
        return Evaluation(metrics={}, items=(), shares=("said",))


class Raising(Bare):
    def evaluate(self, captioner: Captioner) -> Any:
        raise KeyError("of the user's")


class Unmade(Bare):
    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        raise ValueError("no such setting")


class Elsewhere(Bare):
    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        raise NothingToEvaluate("it is for another data set")


class Taken(Bare):
    name = "heldout"


class Nameless:
    modality = None

    def evaluate(self, captioner: Captioner) -> Any: ...


class Modeless:
    name = "modeless"

    def evaluate(self, captioner: Captioner) -> Any: ...


class Silent:
    name, modality = "silent", None


class Unmakeable(Bare):
    def __init__(self) -> None:
        pass


def function() -> None:
    pass
