"""Evaluation of a captioner by public benchmarks: captions, then scores, each taken up again where it stopped.

OUT/NAME/request.json     what was asked for; another request for the same folder is refused
OUT/NAME/captioner.json   who captioned, with which weights and settings; another captioner is refused
OUT/NAME/captions.jsonl   a line per sample, as it is captioned
OUT/NAME/answers.sqlite   every answer of the judges, as it comes
OUT/NAME/items.jsonl      what was measured of each sample, or why nothing was
OUT/NAME/results.json     the figures; once it is there the evaluation is complete, for the judges that it names
OUT/NAME/worst.html       the samples with the lowest scores, with their pictures
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from vcap_jax.captioning.settings import Modality, is_served, own_requests
from vcap_jax.evals.asking import ROLES, Asker, RoleName
from vcap_jax.evals.benchmarks.benchmark import Benchmark
from vcap_jax.evals.benchmarks.comparison import VIDEO_QA
from vcap_jax.evals.benchmarks.results import (
    RESULTS,
    WORST,
    cut_off,
    lost,
    results_row,
    scored_by,
    told,
    unmeasured,
    write_results,
    write_worst_page,
)
from vcap_jax.evals.captions_file import CaptionsFile
from vcap_jax.evals.config import BENCHMARKS, EvaluatorConfig
from vcap_jax.evals.protocol import Captions, EvaluatorError, EvaluatorTools
from vcap_jax.evals.registry import load_evaluator
from vcap_jax.evals.templates import check_shared_texts
from vcap_jax.evals.written_captions import PredictionsCaptioner, of_no_sample, read_predictions
from vcap_jax.recipes.evaluation_captions import RequestedCaptioner, captions_are_of
from vcap_jax.recipes.evaluation_request import (
    CAPTIONER,
    CAPTIONS,
    EvaluationRefused,
    EvaluationRequest,
    Option,
    Say,
    how_captioned,
    remember_request,
    resolved,
)
from vcap_jax.report.pages import told_if_not_drawn
from vcap_jax.reward.client import model_now
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.system.digests import digest_of
from vcap_jax.system.file_locks import only_one
from vcap_jax.system.files import where_sought
from vcap_jax.system.json_values import JsonDict, JsonObject, as_object, read_json_object


class NothingMeasured(EvaluatorError):
    """An evaluation that is complete and has no figure, such as by a judge that refuses every question."""


def evaluate(request: EvaluationRequest, say: Say) -> dict[str, Path]:
    """Evaluates by each benchmark, or finds that this has been done; the folders with the results, by name.

    Everything that can be known before work is told before: names, files, options, captions that are missing, judges
    that do not answer. Raises EvaluatorError, ConfigError, JudgeUnavailable and its kinds, StoreError, what captioning
    raises, and Stopped if a signal came; NothingMeasured once all is done, where failures have taken a whole figure.
    """
    predictions = predictions_of(request)
    requests: Mapping[Modality, str] = {}
    if predictions is None:
        requests = own_requests(request.by, request.captioner)
        request = request if is_served(request.by) else resolved(request)
    if isinstance(prompts := request.options.get("prompts"), str):
        check_shared_texts(prompts, [kind.texts or one for one, kind in _kinds(request).items()])
    with ExitStack() as stack:
        works = [_Work.made(name, request, predictions, requests, say, stack) for name in request.benchmarks]
        _caption_and_score(works, request, predictions, say, stack)
    nothing: list[str] = []
    for work in works:
        say(f"{work.benchmark.name}: {work.folder / RESULTS}" + (" was there" if work.done else ""))
        # What a file of captions lacks, it will lack again.
        row = read_json_object(work.folder / RESULTS)
        if not request.retry_failed and lost(row, captions=predictions is None):
            say("  the same command with --retry-failed tries again what failed")
        if why := unmeasured(row):
            nothing.append(f"{work.benchmark.name}: {why}")
    if nothing:
        raise NothingMeasured(
            f"{'; '.join(nothing)}. Mend that; the same command with --retry-failed then asks again"
        )
    return {work.benchmark.name: work.folder for work in works}


def _caption_and_score(
    works: Sequence[_Work],
    request: EvaluationRequest,
    predictions: Mapping[str, str] | None,
    say: Say,
    stack: ExitStack,
) -> None:
    """What is not done yet. One captioner does for all works: it is loaded for the first whose captions are not there,
    and never where there are ``predictions``. What its captions depend on is noted in every folder before the first is
    drawn. stack: closes it.
    """
    for work in works:
        work.done = work.done and not work.to_score_anew(request)
    waiting = [work for work in works if not work.done]
    for work in waiting:
        ready: dict[RoleName, str] = {}
        for endpoints in work.benchmark.endpoints_by_temperature():
            with Asker(endpoints, say=say) as asker:
                ready |= asker.models
        for role, model in ready.items():
            say(f"{work.benchmark.name}: {role} {model} is ready")

    @functools.cache
    def captioner() -> RequestedCaptioner:
        return stack.enter_context(RequestedCaptioner(request, say))

    for work in works:
        if predictions is None and not captions_are_of(request, work.folder, say):
            captioner().remember(work.folder, len(work.benchmark.samples))
    for work in waiting:
        with CaptionsFile(work.folder / CAPTIONS) as captions:
            work.caption(captions, captioner, predictions, again=request.retry_failed)
            work.score(captions.of(work.benchmark.samples))


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
        held: ExitStack,
    ) -> _Work:
        """held: until when its folder is this process's."""
        if name not in BENCHMARKS:
            raise EvaluationRefused(
                f"--benchmark {name} is none of this project: give one of {', '.join((*BENCHMARKS, VIDEO_QA))}, or "
                "an evaluator of your own as package.module:Class"
            )
        folder = request.out / name
        data = request.data / name if (request.data / name).is_dir() else request.data
        judge = request.judges.judge
        if not judge.urls:
            raise EvaluationRefused("no judge is named: give the addresses of one with --judge URL[,URL]")
        reasoner, usual = request.judges.reasoner, vars(JudgeConfig())
        given = [name for name, value in vars(reasoner).items() if value != usual[name]]
        if given and not reasoner.urls:
            raise EvaluationRefused(
                f"reasoner.{given[0]} is of no address: the judge is asked in its place. Give --reasoner URL, which "
                "may be the judge's"
            )
        options = {"data": str(data), **_options_of(name, request)}
        config = EvaluatorConfig(use=name, captions=1, options=options)
        kind = cast(type[Benchmark[object]], load_evaluator(config))
        benchmark = kind(
            config,
            EvaluatorTools(
                modality=kind.modality or "image",
                judge=judge,
                reasoner=reasoner if reasoner.urls else None,
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
            if strange := of_no_sample(predictions, benchmark.samples):
                say(
                    f"{name}: left out: captions of {len(strange)} names that no sample has, the first: {strange[0]!r}"
                    f"{benchmark.hint(strange)}"
                )
        held.enter_context(only_one(folder, EvaluationRefused, "name another --out"))
        remember_request(folder, _request_row(request, benchmark, captioner))
        return cls(
            benchmark=benchmark,
            folder=folder,
            done=(folder / RESULTS).exists(),
            say=say,
            captioner=captioner,
        )

    def to_score_anew(self, request: EvaluationRequest) -> bool:
        """Whether the figures that are there are not those that are asked for: the benchmark's files said something
        else, an earlier version read the answers otherwise, other judges scored, or what failed is to be tried again.
        Captions and answers stay. Judges are looked at, and not waited for."""
        results = self.folder / RESULTS
        row = read_json_object(results)
        if row.get("data") != self.benchmark.data_digest:
            why = f"since {results} was written its questions, answers or references have changed"
            stay = ", and captions stay"
        # Captions and answers are kept as they came: only what was made of them is of the earlier version.
        elif row.get("reading", 1) != self.benchmark.reading:
            why = f"{results} is by an earlier version, which read the answers otherwise"
            stay = "; captions stay, and so do answers"
        elif before := self._other_judges(as_object(row.get("endpoints", {}), f"{results}: endpoints")):
            why, stay = f"{results} was scored by {before}", "; captions stay, and so do the answers of both"
        else:
            return request.retry_failed and lost(row)
        self.say(f"{self.benchmark.name}: {why}: it is scored anew{stay}")
        return True

    def _other_judges(self, stored: JsonObject) -> str:
        """Who scored, if it was somebody else than is asked for; else ""."""
        for role, config in self.benchmark.endpoints.items():
            was = as_object(stored.get(role, {}), role)
            now = asyncio.run(model_now(config, role=ROLES[role], say=self.say))
            if now is None:
                # It is the same as far as can be seen.
                same = list(config.urls) == was.get("urls") and config.model in (None, was.get("model"))
                if same:
                    self.say(f"{self.benchmark.name}: {role} {was.get('model')} does not answer now")
            else:
                same = now == was.get("model")
            if not same or any(was.get(key) != value for key, value in self.benchmark.drawn(role).items()):
                break
        else:
            if stored.keys() <= self.benchmark.endpoints.keys():
                return ""
        return scored_by(stored, self.folder / RESULTS)

    def caption(
        self,
        captions: CaptionsFile,
        captioner: Callable[[], RequestedCaptioner],
        predictions: Mapping[str, str] | None,
        *,
        again: bool,
    ) -> None:
        """The first stage. captioner: gives one that is ready. again: also captions that failed in an evaluation that
        is complete; where it is but scored anew, they stay as they are, and the captioner may be gone."""
        began = time.monotonic()
        complete = (self.folder / RESULTS).exists()
        missing = captions.missing(self.benchmark.samples, failed=again or not complete)
        path = self.folder / CAPTIONER
        if missing and predictions is not None:
            wanted = {sample.id for sample in missing}
            # Of all: whether a name is enough depends on the others.
            for one in PredictionsCaptioner(predictions).captions(self.benchmark.samples):
                if one.id in wanted:
                    captions.add(one)
        elif missing:
            samples = self.benchmark.samples
            captioner().remember(self.folder, len(samples))  # first: captions of two must not be mixed
            captioner().fill(captions, self.benchmark.name, samples)
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
        if cut := cut_off(captions):
            most = self.captioner.get("max_completion_length")
            self.say(
                f"  {cut} of {len(captions)} captions were cut off at {most} tokens, and what they had left to say is "
                "not there: rollout.max_completion_length=N and another --out let them end"
            )
        with told_if_not_drawn(self.folder / WORST, self.say):
            write_worst_page(
                self.folder / WORST,
                evaluation.items,
                # Not those that are captioned, of which there may be several for an item.
                [task.sample for task in self.benchmark.tasks],
                title=f"{name}: captions by {self.captioner['by']}",
                by=self.benchmark.worst,
            )
        row = results_row(evaluation, captions, captioner=self.captioner, seconds=self.seconds)
        write_results(self.folder, evaluation, row)


def _kinds(request: EvaluationRequest) -> dict[str, type[Benchmark[object]]]:
    """The classes of the benchmarks, by name; without names that are none of this project."""
    return {
        one: cast(type[Benchmark[object]], load_evaluator(EvaluatorConfig(use=one)))
        for one in request.benchmarks
        if one in BENCHMARKS
    }


def _options_of(name: str, request: EvaluationRequest) -> dict[str, Option]:
    """The options that a benchmark is given: not those that only others of the request know. What none of them knows
    is for the benchmark to refuse."""
    known = {
        one: {of.name for of in dataclasses.fields(kind.options_class)}
        for one, kind in _kinds(request).items()
    }
    foreign = set[str]().union(*known.values()) - known[name]
    return {key: value for key, value in request.options.items() if key not in foreign}


def _unheard(request: EvaluationRequest) -> str:
    """What is said of a captioner, the first of it; "" for nothing. Not a seed, which decides nothing here."""
    given = {
        "--step": request.step,
        "--temperature": request.temperature,
        "--served-model": request.served_model,
        "--api-key-env": request.api_key_env,
    }
    # As they were written (``split_settings``).
    words = (re.sub(r"^judge\.", "captioner.", word) for word in request.captioner)
    return next((name for name, value in given.items() if value is not None), next(words, ""))


def predictions_of(request: EvaluationRequest) -> dict[str, str] | None:
    """The captions of a file; None for a captioner. Raises EvaluationRefused for neither, and for settings of a
    captioner where the captions are there."""
    by = request.by
    if is_served(by) or by == "embedded" or Path(by).is_dir():
        return None
    if not Path(by).is_file():
        raise EvaluationRefused(
            f"--by {by}: neither a run, a checkpoint folder, an address nor a file of captions"
            f"{where_sought(by)}: check the path"
        )
    if unheard := _unheard(request):
        raise EvaluationRefused(
            f"{unheard} would change nothing: the captions of {by} are there already. Leave it out; a benchmark's own "
            "options are options.NAME=VALUE, such as options.limit=20"
        )
    return read_predictions(Path(by))


def _request_row(request: EvaluationRequest, benchmark: Benchmark[object], captioner: JsonObject) -> JsonDict:
    """What decides captions and scores, beside what the captioner says of itself."""
    options = dataclasses.asdict(benchmark.options) | {"data": None, "prompts": None}
    names = {sample.id: " ".join(path.name for path in sample.files) for sample in benchmark.samples}
    return {
        "benchmark": benchmark.name,
        # Those that a table holds are named by their content. Captions of a file are of the sample that they name.
        "pictures": None if "captions" in captioner else _digest(names),
        "samples": _digest({sample.id: sample.prompt or "" for sample in benchmark.samples}),
        "options": {key: value for key, value in options.items() if value is not None},
        "captioner": dict(captioner),
        **how_captioned(request),
        "prompts": {name: template.version for name, template in benchmark.templates.items()},
    }


def _digest(texts: Mapping[str, str]) -> str:
    return digest_of(json.dumps(sorted(texts.items()), ensure_ascii=False))
