"""What an evaluator is: a captioner goes in; names, values, intervals and items come out.

A captioner is asked for captions of samples and says nothing of itself, so that a policy in training, a served model
and a folder of captions are evaluated alike. A sample brings its own question (``Sample.prompt``) where a benchmark
has one. How captions are drawn is the captioner's matter (``EvaluatorConfig``).

A value is a number or a failure. A sample without a caption, or whose judgement failed, is an item with a ``failure``:
it is counted, and enters no metric.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from vcap_jax.data.jsonl import without_nulls
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.asking import StageReport
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.report.intervals import Value, mean, ratio
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.session import RewardSession
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_records import as_record, parse_record
from vcap_jax.system.json_values import JsonDict, JsonObject
from vcap_jax.world.splits import EmbeddedData

_log = logging.getLogger(__name__)


class EvaluatorError(VCapError, ValueError):
    """An evaluator that cannot be used, or has failed; the message names it and what is wrong."""


class EvaluationFailed(EvaluatorError):
    """An evaluation that had begun. What was done before is kept, and gone on with once its cause is mended."""

    resumable = True


class NothingToEvaluate(Exception):
    """Raised by an evaluator's constructor where this run has nothing for it; the message says why. The run says so
    and goes on without it; without a word where the message is empty."""


@dataclass(frozen=True, kw_only=True)
class Captions:
    """What a captioner gave for a sample.

    texts: its captions. tokens: of each, the end token included; truncated: whether it was cut off; both empty where
    that is not known. failure: why there is no caption; None where there are some.
    """

    id: str
    texts: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    truncated: tuple[bool, ...] = ()
    failure: str | None = None

    def __post_init__(self) -> None:
        if bool(self.texts) == (self.failure is not None):
            raise ValueError(f"sample {self.id}: give captions, or why there are none")

    def row(self) -> JsonDict:
        """As a file of captions holds it; ``captions_of`` reads it."""
        if self.failure is not None:
            return {"id": self.id, "failure": self.failure}
        tokens: JsonDict = {"tokens": list(self.tokens)} if self.tokens else {}
        truncated: JsonDict = {"truncated": list(self.truncated)} if self.truncated else {}
        return {"id": self.id, "captions": list(self.texts), **tokens, **truncated}


def captions_of(row: JsonObject, where: str) -> Captions:
    """The entry of a row of a file of captions: "id", "captions" and, where they are known, "tokens" and "truncated",
    or "failure" (those of ``launch/caption.py`` have both where some of several captions are lacking: those that are
    there count). What is null is absent. where: it stands. Raises JsonError."""
    row = without_nulls(row)
    texts = row.get("captions", [])
    found: JsonDict = {
        **row,
        "id": str(row["id"]) if "id" in row else None,
        "texts": texts,
        "failure": None if texts else row.get("failure"),
    }
    return as_record(Captions, found, where)


def check_differ(samples: Sequence[Sample]) -> None:
    """Raises EvaluationFailed for samples of one id, of which no captioner could tell the captions."""
    ids = [sample.id for sample in samples]
    if len(set(ids)) < len(ids):
        twice = next(identity for identity in ids if ids.count(identity) > 1)
        raise EvaluationFailed(
            f"captions of {twice!r} are asked for twice at once: ids of samples must differ"
        )


class Captioner(Protocol):
    """Captions samples: a policy in a run, a served model, a folder."""

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """One entry for each sample, in their order.

        The same samples and seed give the same captions; another seed draws others, where they are drawn. Ids of the
        samples must differ. Raises Stopped if a signal has come.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Item:
    """A sample of an evaluation.

    values: what was measured of it, finite. failure: why nothing was; then there are no values. notes: texts for a page
    by their headings, such as a judge's analysis of the first caption. lacking: of a benchmark with several parts,
    those that failed, each with the reason; their values are not there. of: what it is of, where several items are of
    one thing (the picture of several questions) and so are not independent; None for the item itself.
    """

    id: str
    captions: tuple[str, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    of: str | None = None

    def __post_init__(self) -> None:
        if self.failure is not None and self.values:
            raise ValueError(f"item {self.id} has failed ({self.failure}), so it has no values")
        for name, value in self.values.items():
            if not math.isfinite(value):
                raise ValueError(
                    f"item {self.id}: {name} is {value}; a value is finite, or the item a failure"
                )

    @property
    def incomplete(self) -> bool:
        """Whether it lacks a part, and no more."""
        return bool(self.lacking) and self.failure is None

    def line(self) -> str:
        """As a file of items holds it, with its line end."""
        row: dict[str, object] = {
            "id": self.id,
            "captions": self.captions,
            "values": dict(self.values),
            "failure": self.failure,
        }
        row |= {"notes": dict(self.notes)} if self.notes else {}
        row |= {"lacking": dict(self.lacking)} if self.lacking else {}
        row |= {} if self.of is None else {"of": self.of}
        return json.dumps(row, ensure_ascii=False) + "\n"


def read_items(path: Path) -> list[Item]:
    """The items of a file of ``Item.line``. Raises OSError, and JsonError for other lines."""
    with path.open("rb") as lines:
        return [parse_record(Item, line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an evaluator found.

    metrics: by name, over the items without failure. items: one for each sample that was asked for, in order. stages:
    how questions to judges went, where there were any. about: what else decided the figures: judges, prompts, mode.
    shares: the metrics that are shares of a whole, 0 to 1, and so are drawn in per cent: numbers between 0 and 1 may as
    well be counts or scores.
    """

    metrics: Mapping[str, Value]
    items: tuple[Item, ...]
    stages: Mapping[str, StageReport] = field(default_factory=dict)
    about: JsonObject = field(default_factory=dict)
    shares: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """Items without a value."""
        return sum(item.failure is not None for item in self.items)

    @property
    def clusters(self) -> int:
        """Pictures or videos that the items are of, also those that failed."""
        return len({item.of or item.id for item in self.items})

    @property
    def measured(self) -> dict[str, int]:
        """Of metrics of the names of values: the items that have the value, where these are more than ``n``."""
        counts = {name: sum(name in item.values for item in self.items) for name in self.metrics}
        return {name: count for name, count in counts.items() if count > self.metrics[name].n}

    @property
    def incomplete(self) -> int:
        """Items that lack a part."""
        return sum(item.incomplete for item in self.items)

    def asked(self) -> JsonObject:
        """Who judged and how the questions went; empty where nobody was asked."""
        if not self.stages:
            return self.about
        return {**self.about, "stages": {name: stage.row() for name, stage in self.stages.items()}}


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """A run's held-out samples, and who scores their captions.

    references: of each sample what its captions are compared with; None where the reward compares with none. session:
    the run's own reward. media: reads what a judge is shown of a sample, and raises VCapError for one that cannot be
    read; called from several threads. seed: of the choice among a sample's references. other: the same reward by
    another judge. stop: whether a signal has come. threads: samples that are read at the same time.
    """

    samples: tuple[Sample, ...]
    references: ReferencePool | None
    session: RewardSession
    media: Callable[[Sample], EncodedMedia]
    seed: int = 0
    other: RewardSession | None = None
    stop: Callable[[], bool] = lambda: False
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class EvaluatorTools:
    """What an evaluator may use.

    modality: of the run's data. world: scenes with known facts, where the data are the embedded world's. judge: the
    endpoints that answer, where the run asks a judge. own: held-out samples of the user's, where the run has some.
    reasoner: those that answer questions from text alone; None for the judge's. store: where answers to an evaluator's
    questions are kept, so that none is asked twice; None keeps none. say: where progress is told.
    requests: what the captioner was trained to be asked for captions with, by modality, where that is known.
    captioning: whether captions are yet to be written, so that the media must be there.
    """

    modality: Literal["image", "video"]
    world: EmbeddedData | None = None
    judge: JudgeConfig | None = None
    own: OwnData | None = None
    reasoner: JudgeConfig | None = None
    store: Path | None = None
    say: Callable[[str], None] = _log.info
    requests: Mapping[Literal["image", "video"], str] = field(default_factory=dict)
    captioning: bool = True


class Evaluator(Protocol):
    """Measures a captioner. Depends on its settings and the captions alone, so that a resumed run repeats it.

    name: of its columns and folder, unless the configuration gives another: letters, digits, - and _.
    modality: what it captions; None for either. The constructor raises NothingToEvaluate, and ValueError and its kinds
    for settings that cannot work.
    """

    name: str
    modality: Literal["image", "video"] | None

    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None: ...

    def evaluate(self, captioner: Captioner) -> Evaluation:
        """Asks for captions, once or several times, and measures them.

        Called in one process, whoever else captions. Raises for what must end the run (JudgeUnavailable); what is
        lacking for single samples is a failure of their items.
        """
        ...


def measured(
    captions: Iterable[Captions], measure: Callable[[Captions], Mapping[str, float]]
) -> tuple[Item, ...]:
    """An item for each of ``captions``: its values by ``measure``, or the captioner's failure."""
    return tuple(
        Item(id=one.id, captions=one.texts, failure=one.failure)
        if one.failure is not None
        else Item(id=one.id, captions=one.texts, values=measure(one))
        for one in captions
    )


def mean_of(items: Iterable[Item], name: str) -> Value:
    """The mean of a value over the items that have it, with a bootstrap interval."""
    return mean(np.array([item.values[name] for item in items if name in item.values], np.float64))


def ratio_of(items: Iterable[Item], over: str, under: str) -> Value:
    """The ratio of the sums of two values over the items that have both, with a bootstrap interval over items."""
    both = [item.values for item in items if over in item.values and under in item.values]
    return ratio(np.array([values[over] for values in both]), np.array([values[under] for values in both]))
