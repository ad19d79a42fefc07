"""Evaluation of a captioner by public benchmarks: captions, then scores, each taken up again where it stopped.

OUT/NAME/request.json     what was asked for; another request for the same folder is refused
OUT/NAME/captions.jsonl   a line per sample, as it is captioned
OUT/NAME/answers.sqlite   every answer of the judges, as it comes
OUT/NAME/items.jsonl      what was measured of each sample, or why nothing was
OUT/NAME/results.json     the figures; once it is there the evaluation is complete
OUT/NAME/worst.html       the samples with the lowest scores, with their pictures
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from vcap_jax.captioning.captioner import Captioner
from vcap_jax.captioning.engines import Drawing
from vcap_jax.captioning.settings import Modality, own_requests
from vcap_jax.configuration import ConfigError, load_config, settings
from vcap_jax.evals.asking import Asker
from vcap_jax.evals.benchmarks.benchmark import Benchmark
from vcap_jax.evals.benchmarks.files import read_predictions
from vcap_jax.evals.benchmarks.results import (
    RESULTS,
    WORST,
    results_row,
    told,
    write_results,
    write_worst_page,
)
from vcap_jax.evals.captioners import PredictionsCaptioner
from vcap_jax.evals.captions_file import CaptionsFile
from vcap_jax.evals.config import BENCHMARKS, EvaluatorConfig
from vcap_jax.evals.protocol import Captions, EvaluatorError, EvaluatorTools
from vcap_jax.evals.registry import load_evaluator
from vcap_jax.report.best_checkpoint import AskedStep
from vcap_jax.report.progress import PoolProgress
from vcap_jax.report.step_log import replace_file
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.system.json_values import JsonDict, JsonObject, read_json_object
from vcap_jax.system.shutdown import Stopped, requested

Say = Callable[[str], None]
Option = str | int | float | bool


@settings
class JudgesConfig:
    """How the endpoints that score are treated."""

    judge: JudgeConfig = JudgeConfig()
    """Judges, and answers what no reasoner is named for."""
    reasoner: JudgeConfig = JudgeConfig()
    """Answers questions from text alone; without urls the judge does."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is to be evaluated.

    benchmarks: their names. by: a run, a checkpoint folder, an address, or a file of captions (``read_predictions``).
    data: the folder with the public files of the one benchmark, or with a folder NAME for each of several. out: where
    results go. judges: see ``JudgesConfig``. options: of the benchmarks, each taken by those that know it. step: which
    of a run's checkpoints. captioner: its settings, ``section.key=value``. served_model, api_key_env: of a captioner
    behind an address. temperature: None captions greedily. seed: of the draws.
    """

    benchmarks: tuple[str, ...]
    by: str
    data: Path
    out: Path
    judges: JudgesConfig
    options: Mapping[str, Option] = field(default_factory=dict)
    step: AskedStep = None
    captioner: tuple[str, ...] = ()
    served_model: str | None = None
    api_key_env: str | None = None
    temperature: float | None = None
    seed: int = 0


class EvaluationRefused(EvaluatorError):
    """A request that cannot be fulfilled as it is; nothing was done."""

    resumable = False


def split_settings(words: Sequence[str]) -> tuple[JudgesConfig, dict[str, Option], tuple[str, ...]]:
    """Settings of the judges (``judge.*``, ``reasoner.*``), of the benchmarks (``options.*``), and the captioner's:
    all others, and ``captioner.*`` for how a served one is asked. Raises ConfigError."""
    judges, options, captioner = list[str](), dict[str, Option](), list[str]()
    for word in words:
        section, _, rest = word.partition(".")
        if section in ("judge", "reasoner"):
            judges.append(word)
        elif section == "options":
            key, equals, value = rest.partition("=")
            if not equals:
                raise ConfigError([f"{word!r}: an option has the form options.key=value"])
            options[key] = _value(value)
        elif section == "captioner":
            captioner.append(f"judge.{rest}")
        else:
            captioner.append(word)
    return load_config(JudgesConfig, (), judges), options, tuple(captioner)


def evaluate(request: EvaluationRequest, say: Say) -> dict[str, Path]:
    """Evaluates by each benchmark, or finds that this has been done; the folders with the results, by name.

    Everything that can be known before work is told before: names, files, options, captions that are missing, judges
    that do not answer. Raises EvaluatorError, ConfigError, JudgeUnavailable and its kinds, StoreError, what captioning
    raises, and Stopped if a signal came.
    """
    predictions = _predictions(request.by)
    requests = own_requests(request.by, request.captioner) if predictions is None else {}
    works = [_Work.made(name, request, predictions, requests, say) for name in request.benchmarks]
    waiting = [work for work in works if not work.done]
    for work in waiting:
        with Asker(work.benchmark.endpoints, say=say) as asker:
            for role, model in asker.models.items():
                say(f"{work.benchmark.name}: {role} {model} is ready")
    with ExitStack() as stack:
        captioner: _Captioner | None = None
        for work in waiting:
            with CaptionsFile(work.folder / "captions.jsonl") as captions:
                if captions.missing(work.benchmark.samples) and captioner is None and predictions is None:
                    captioner = stack.enter_context(_Captioner(request, say))
                work.caption(captions, captioner, predictions)
                work.score(captions.of(work.benchmark.samples))
    for work in works:
        say(f"{work.benchmark.name}: {work.folder / RESULTS}" + (" was there" if work.done else ""))
    return {work.benchmark.name: work.folder for work in works}


class _Captioner:
    """A policy or a served model, drawn from as the request says."""

    def __init__(self, request: EvaluationRequest, say: Say) -> None:
        self._request, self._say = request, say

    def __enter__(self) -> _Captioner:
        request = self._request
        self._captioner = Captioner.load(
            request.by,
            step=request.step,
            settings=request.captioner,
            served_model=request.served_model,
            api_key_env=request.api_key_env,
            say=self._say,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._captioner.close()

    def described(self, benchmark: Benchmark[object]) -> JsonDict:
        """What the captions depend on, beside what the request says."""
        drawing = Drawing(temperature=self._request.temperature)
        return self._captioner.described(drawing, len(benchmark.samples))

    def fill(self, captions: CaptionsFile, benchmark: Benchmark[object]) -> None:
        """Captions what is missing. Raises Stopped."""
        request, samples = self._request, benchmark.samples
        drawing = Drawing(temperature=request.temperature)
        index_of = {sample.id: index for index, sample in enumerate(samples)}
        missing = captions.missing(samples)
        progress = PoolProgress(self._say, seconds=10)
        done = len(samples) - len(missing)
        placed = ((index_of[sample.id], sample) for sample in missing)
        found = self._captioner.placed(placed, drawing=drawing, seed=request.seed, total=len(missing))
        for here, caption in enumerate(found, 1):
            captions.add(
                Captions(id=caption.id, failure=caption.error)
                if caption.error is not None
                else Captions(id=caption.id, texts=caption.texts, tokens=caption.tokens)
            )
            progress(f"captions for {benchmark.name}", done + here, len(samples), here)
        if requested():
            raise Stopped(
                f"stopped with {len(samples) - len(captions.missing(samples))} of {len(samples)} captions for "
                f"{benchmark.name}"
            )


@dataclass(kw_only=True)
class _Work:
    """A benchmark with its folder. captioner: what the captions depend on, once it is known."""

    benchmark: Benchmark[object]
    folder: Path
    done: bool
    say: Say
    captioner: JsonObject
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def made(
        cls,
        name: str,
        request: EvaluationRequest,
        predictions: Mapping[str, str] | None,
        requests: Mapping[Modality, str],
        say: Say,
    ) -> _Work:
        if name not in BENCHMARKS:
            raise EvaluationRefused(
                f"--benchmark {name} is none of this project: give one of {', '.join(BENCHMARKS)}"
            )
        folder = request.out / name
        data = request.data / name if (request.data / name).is_dir() else request.data
        judge = request.judges.judge
        if not judge.urls:
            raise EvaluationRefused("no judge is named: give the addresses of one with --judge URL[,URL]")
        config = EvaluatorConfig(use=name, captions=1, options={"data": str(data), **request.options})
        kind = cast(type[Benchmark[object]], load_evaluator(config))
        benchmark = kind(
            config,
            EvaluatorTools(
                modality=kind.modality or "image",
                judge=judge,
                reasoner=request.judges.reasoner if request.judges.reasoner.urls else None,
                store=folder / "answers.sqlite",
                say=say,
                requests=requests,
                captioning=predictions is None,
            ),
        )
        captioner: JsonDict = {"by": request.by}
        if predictions is not None:
            captioner["captions"] = _digest(predictions)
            found = PredictionsCaptioner(predictions).captions(benchmark.samples)
            there = sum(one.failure is None for one in found)
            if not there:
                raise EvaluationRefused(
                    f"{request.by}: of its {len(predictions)} captions none is of a sample of {name}, such as "
                    f"{benchmark.samples[0].id!r}"
                )
            if there < len(found):
                say(f"{name}: {request.by} has captions of {there} of {len(found)} samples")
        _remember(folder / "request.json", _request_row(request, benchmark, captioner))
        return cls(
            benchmark=benchmark,
            folder=folder,
            done=(folder / RESULTS).exists(),
            say=say,
            captioner=captioner,
        )

    def caption(
        self, captions: CaptionsFile, captioner: _Captioner | None, predictions: Mapping[str, str] | None
    ) -> None:
        """The first stage."""
        began = time.monotonic()
        missing = captions.missing(self.benchmark.samples)
        path = self.folder / "captioner.json"
        if missing and predictions is not None:
            for one in PredictionsCaptioner(predictions).captions(missing):
                captions.add(one)
        elif missing and captioner is not None:
            # First: captions by other weights must not be mixed with those that are there.
            _remember(path, captioner.described(self.benchmark))
            captioner.fill(captions, self.benchmark)
        if path.exists():
            self.captioner = {**self.captioner, **read_json_object(path)}
        self.seconds["captions"] = time.monotonic() - began

    def score(self, captions: Sequence[Captions]) -> None:
        """The second stage."""
        began = time.monotonic()
        evaluation = self.benchmark.score(captions)
        self.seconds["scores"] = time.monotonic() - began
        name = self.benchmark.name
        self.say(f"{name}, {self.benchmark.options.mode}:")
        told(evaluation, self.say)
        write_worst_page(
            self.folder / WORST,
            evaluation.items,
            self.benchmark.samples,
            title=f"{name}: captions by {self.captioner['by']}",
            by=self.benchmark.worst,
        )
        row = results_row(evaluation, captions, captioner=self.captioner, seconds=self.seconds)
        write_results(self.folder, evaluation, row)


def _predictions(by: str) -> dict[str, str] | None:
    """The captions of a file; None for a captioner."""
    if by.startswith(("http://", "https://")) or by == "embedded" or Path(by).is_dir():
        return None
    if not Path(by).is_file():
        raise EvaluationRefused(
            f"--by {by}: neither a run, a checkpoint folder, an address nor a file of captions: check the path"
        )
    return read_predictions(Path(by))


def _request_row(request: EvaluationRequest, benchmark: Benchmark[object], captioner: JsonObject) -> JsonDict:
    """What decides captions and scores, beside what the captioner says of itself."""
    options = dataclasses.asdict(benchmark.options) | {"data": None, "prompts": None}
    return {
        "benchmark": benchmark.name,
        "samples": _digest({sample.id: sample.prompt or "" for sample in benchmark.samples}),
        "options": {key: value for key, value in options.items() if value is not None},
        "captioner": dict(captioner),
        "step": request.step,
        "settings": [word for word in request.captioner if not word.startswith("judge.")],
        "temperature": request.temperature,
        "seed": request.seed,
        "prompts": {name: template.version for name, template in benchmark.templates.items()},
    }


def _remember(path: Path, row: Mapping[str, object]) -> None:
    """Writes what a folder is for, or raises EvaluatorError if it is for something else."""
    new = json.loads(json.dumps(row))
    if path.exists():
        old = read_json_object(path)
        differing = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        if differing:
            key = differing[0]
            raise EvaluationRefused(
                f"{path.parent} holds an evaluation with another {key} ({_short(old.get(key))}, now "
                f"{_short(new.get(key))}): name another --out, or move it away"
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(row, indent=2, ensure_ascii=False) + "\n").encode())


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _digest(texts: Mapping[str, str]) -> str:
    rows = json.dumps(sorted(texts.items()), ensure_ascii=False)
    return hashlib.blake2b(rows.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _value(text: str) -> Option:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool) else text
