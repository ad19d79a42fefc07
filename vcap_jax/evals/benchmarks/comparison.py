"""Several captioners' results by the same benchmark side by side: figures, paired differences, published figures.

A difference is over the items that both have, drawn alike (``statistics.paired_differences``), so that easy and hard
samples cancel. It is computed only between results of the same judge, mode, prompts and options, and of the same
questions and answers as far as is known: others stand side by side, and what differs is said. Options that say which
samples there are, and where files and servers are, may differ; results beside which no request.json lies are taken to
have the same. Published figures stand apart, each table with its judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter

from vcap_jax.configuration.dialect import parse_yaml
from vcap_jax.evals.benchmarks.benchmark import Benchmark, Mode
from vcap_jax.evals.benchmarks.lmms_eval import SUITES
from vcap_jax.evals.benchmarks.lmms_eval import statistics as lmms_statistics
from vcap_jax.evals.benchmarks.results import ITEMS, REQUEST, RESULTS, scored_by
from vcap_jax.evals.benchmarks.vdc import ASPECTS
from vcap_jax.evals.config import BENCHMARKS, EvaluatorConfig
from vcap_jax.evals.protocol import Evaluation, EvaluatorError, Item, read_items
from vcap_jax.evals.registry import load_evaluator
from vcap_jax.evals.statistics import Cluster, Statistic, alone, of_smallest_part, paired_differences
from vcap_jax.report.intervals import Value
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import JsonDict, JsonError, JsonObject, as_object, as_text, read_json_object

VIDEO_QA = "video-qa"

LOWER_IS_BETTER = frozenset({"ir", "unmatched", "cannot_answer"})
"""Metrics of which less is better."""
NEITHER = frozenset({"words", "consistent"})
"""Metrics that say nothing of how good a caption is."""

_NO_MATTER = frozenset(
    [
        "mode",
        "limit",
        "subset",
        "domain",
        "data",
        "pictures",
        "prompts",
        "api_key_env",
        "judge",
        "judge_model",
        "reasoner",
        "reasoner_model",
    ]
)
"""Options that are compared otherwise (mode, texts, judges), choose samples (pairs do), or say where things are."""
_OF_THE_HARNESS = ("tasks", "fps", "max_frames", "max_pixels", "qwen3_vl", "max_new_tokens")
"""What decides the answers of ``VIDEO_QA``."""


@dataclass(frozen=True, kw_only=True)
class Result(Evaluation):
    """What a folder holds of one benchmark. label: what the captioner is called here. row: of results.json."""

    label: str
    benchmark: str
    mode: str
    folder: Path
    row: JsonObject

    @property
    def judges(self) -> str:
        """Who scored, in words."""
        endpoints = as_object(self.row.get("endpoints", {}), f"{self.folder}: endpoints")
        return scored_by(endpoints, self.folder)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """``result`` minus the first of a comparison.

    items: that both have. clusters: pictures or videos that these are of. values: by metric. smallest: by metric, see
    ``statistics.of_smallest_part``. unlike: why there are no values, "" where there are some.
    """

    result: Result
    items: int
    clusters: int
    values: Mapping[str, Value]
    smallest: Mapping[str, int]
    unlike: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Figures of one benchmark by one judge.

    metrics: names of our statistics. rows: by model, a figure for each metric, None where none is given. judge: who
    scored, in words. source: where it is printed. note: what to know of it, "" for nothing.
    """

    benchmark: str
    source: str
    judge: str
    metrics: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    note: str = ""

    def __post_init__(self) -> None:
        for model, figures in self.rows.items():
            if len(figures) != len(self.metrics):
                raise ValueError(
                    f"{self.benchmark}, {model}: {len(figures)} figures of {len(self.metrics)} metrics"
                )

    def of(self, model: str) -> dict[str, float]:
        """A model's figures by metric. Raises KeyError."""
        return {
            name: figure
            for name, figure in zip(self.metrics, self.rows[model], strict=True)
            if figure is not None
        }


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Figures that others have published (``published.yaml``)."""
    text = resources.files("vcap_jax.evals.benchmarks").joinpath("published.yaml").read_text(encoding="utf-8")
    return TypeAdapter(tuple[PublishedTable, ...]).validate_python(parse_yaml(text))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Results of one benchmark. differences: one for each result but the first. tables: published figures."""

    benchmark: str
    results: tuple[Result, ...]
    differences: tuple[Difference, ...]
    tables: tuple[PublishedTable, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that one of the results has a figure of."""
        names = dict.fromkeys(name for result in self.results for name in result.metrics)
        return tuple(
            name
            for name in names
            if any(not math.isnan(r.metrics[name].value) for r in self.results if name in r.metrics)
        )

    def row(self) -> dict[str, object]:
        """As JSON holds it."""
        return {
            "benchmark": self.benchmark,
            "results": [
                {
                    "label": result.label,
                    "folder": str(result.folder),
                    "mode": result.mode,
                    "judges": result.judges,
                    "items": len(result.items),
                    "failed": result.failed,
                    "incomplete": result.incomplete,
                    "metrics": {name: value.row() for name, value in result.metrics.items()},
                }
                for result in self.results
            ],
            "differences": [
                {
                    "of": difference.result.label,
                    "from": self.results[0].label,
                    "items": difference.items,
                    "unlike": difference.unlike,
                    "metrics": {name: value.row() for name, value in difference.values.items()},
                    "smallest_part": {name: difference.smallest[name] for name in difference.values},
                }
                for difference in self.differences
            ],
            "published": [
                {
                    "source": table.source,
                    "judge": table.judge,
                    "note": table.note,
                    "rows": {model: table.of(model) for model in table.rows},
                }
                for table in self.tables
            ],
        }


def read_results(folders: Mapping[str, Path]) -> list[Result]:
    """Every result of a benchmark below the folders, by label. Raises EvaluatorError for a folder without any, and for
    one that cannot be read."""
    found: list[Result] = []
    for label, folder in folders.items():
        if not folder.is_dir():
            raise EvaluatorError(f"{folder} is no folder: give what vcap evaluate wrote (its --out)")
        paths = sorted({*folder.glob(RESULTS), *folder.glob(f"*/{RESULTS}")})
        if not paths:
            raise EvaluatorError(
                f"{folder} holds no {RESULTS}, nor does a folder in it: give what vcap evaluate wrote (its --out)"
            )
        found += [result for path in paths if (result := _result(label, path)) is not None]
    if not found:
        raise EvaluatorError("there are results of evaluators of your own alone, and none of a benchmark")
    return found


def compare(results: Sequence[Result]) -> list[Comparison]:
    """A comparison for each benchmark, in the order in which it comes first. Raises EvaluatorError."""
    by_benchmark: dict[str, list[Result]] = {}
    for result in results:
        by_benchmark.setdefault(result.benchmark, []).append(result)
    return [
        Comparison(
            benchmark=name,
            results=tuple(several),
            differences=tuple(difference_of(several[0], other) for other in several[1:]),
            tables=tuple(table for table in published_tables() if table.benchmark == name),
        )
        for name, several in by_benchmark.items()
    ]


def difference_of(first: Result, second: Result) -> Difference:
    """``second`` minus ``first``, metric by metric, over the items that both have."""
    unlike = what_differs(first, second)
    pairs = _both(first.items, second.items)
    if unlike or not pairs:
        return Difference(
            result=second,
            items=len(pairs),
            clusters=0,
            values={},
            smallest={},
            unlike=unlike or "they have no item in common",
        )
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    statistics, cluster = _measured_by(first)
    values = paired_differences(ours, theirs, statistics, cluster=cluster)
    there = {name: value for name, value in values.items() if not math.isnan(value.value)}
    # Of ``theirs`` as of ``ours``, which have values of the same names.
    smallest = of_smallest_part(theirs, statistics, cluster=cluster)
    clusters = len({item.of or cluster(item.id) for item in theirs})
    return Difference(result=second, items=len(pairs), clusters=clusters, values=there, smallest=smallest)


def what_differs(first: Result, second: Result) -> str:
    """What keeps two results of a benchmark from being compared item by item; "" if nothing does."""
    found = []
    if first.judges != second.judges:
        found.append(f"the judges ({first.judges}; {second.judges})")
    if first.mode != second.mode:
        found.append(f"the mode ({first.mode}; {second.mode})")
    if _asked(first) != _asked(second):
        found.append("the texts of the questions")
    if first.row.get("reading", 1) != second.row.get("reading", 1):
        found.append("the readers of the answers")
    if _other_data(first, second):
        found.append("the benchmark's questions, answers or references")
    ours, theirs = _options(first), _options(second)
    found += [
        f"the option {name} ({ours[name]}; {theirs[name]})"
        for name in ours
        if name in theirs and ours[name] != theirs[name]
    ]
    return " and ".join(found) + " differ" if found else ""


def _measured_by(result: Result) -> tuple[Mapping[str, Statistic], Cluster]:
    """How the figures of a result come from its items, and what is drawn again for intervals."""
    if result.benchmark == VIDEO_QA:
        suites = [suite for name, suite in SUITES.items() if f"harness/{name}" in result.metrics]
        return lmms_statistics(suites), alone
    kind = cast(type[Benchmark[object]], load_evaluator(EvaluatorConfig(use=result.benchmark)))
    return kind.statistics(cast(Mode, result.mode)), kind.cluster


def _other_data(first: Result, second: Result) -> bool:
    """Whether the files said something else of the samples: they are revised under the same names. Digests are over all
    samples together, so of results of different ones nothing is known, nor where none was noted."""
    if {item.id for item in first.items} != {item.id for item in second.items}:
        return False
    digests = first.row.get("data"), second.row.get("data")
    return None not in digests and digests[0] != digests[1]


def _asked(result: Result) -> JsonDict:
    """Versions of the texts that the judges were asked with. What captions were asked for with may differ from one
    captioner to the next, but not its kind (one that was shown the question answers another task)."""
    prompts = as_object(result.row.get("prompts", {}), f"{result.folder}: prompts")
    return {
        name: "for captions" if name.startswith("caption") or name in ASPECTS else version
        for name, version in prompts.items()
    }


def _options(result: Result) -> JsonDict:
    """What was asked for beside judge, mode and texts, as far as it changes what a figure means; empty where it was not
    noted."""
    path = result.folder / REQUEST
    if not path.exists():
        return {}
    row = read_json_object(path)
    if result.benchmark == VIDEO_QA:
        return {name: row[name] for name in _OF_THE_HARNESS if name in row}
    options = as_object(row.get("options", {}), f"{path}: options")
    return {name: value for name, value in options.items() if name not in _NO_MATTER}


def _both(first: Sequence[Item], second: Sequence[Item]) -> list[tuple[Item, Item]]:
    """The items that both have a value of. A value that one side lacks is left out on the other, whether its part
    failed or there is none (the precision of a caption without events, a video that ``official`` drops); where single
    questions are lacking, the item is left out, for its values are of other questions then."""
    theirs = {item.id: item for item in second if item.failure is None}
    pairs = []
    for ours in first:
        other = theirs.get(ours.id)
        if ours.failure is not None or other is None or not _same_questions(ours, other):
            continue
        if ours.values.keys() != other.values.keys():
            names = ours.values.keys() & other.values.keys()
            ours, other = (
                replace(one, values={name: one.values[name] for name in sorted(names)})
                for one in (ours, other)
            )
        pairs.append((ours, other))
    return pairs


def _same_questions(first: Item, second: Item) -> bool:
    """Whether values are of the same questions, as far as that is known."""
    ours, theirs = (
        {name for name in item.lacking if name.startswith("question")} for item in (first, second)
    )
    # Which of a benchmark's "questions" that were is not noted.
    return ours == theirs and "questions" not in ours


def _result(label: str, path: Path) -> Result | None:
    """None for that of an evaluator of the user's own, of whose figures nobody knows how they are compared."""
    try:
        row = read_json_object(path)
        if "evaluator" in row:
            return None
        benchmark = as_text(row.get("benchmark"), f"{path}: benchmark")
        if benchmark not in BENCHMARKS and benchmark != VIDEO_QA:
            raise EvaluatorError(f"{path}: {benchmark!r} is no benchmark of this project")
        return Result(
            label=label,
            benchmark=benchmark,
            mode=as_text(row.get("mode"), f"{path}: mode"),
            folder=path.parent,
            metrics=as_record(dict[str, Value], row.get("metrics"), f"{path}: metrics"),
            items=tuple(read_items(path.with_name(ITEMS))),
            row=row,
        )
    except (OSError, JsonError, TypeError, KeyError, ValueError) as error:
        if isinstance(error, EvaluatorError):
            raise
        raise EvaluatorError(f"{path.parent} cannot be read as an evaluation: {error}") from error
