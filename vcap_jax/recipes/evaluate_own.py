"""Evaluation of a captioner by an evaluator of a user's own, as a run would make it (docs/add_an_evaluation.md).

OUT/NAME/request.json       who captioned and how; another request for the same folder is refused
OUT/NAME/captions-ID.jsonl  a line per sample, as it is captioned; ID is of the samples and the seed they are asked with
OUT/NAME/items.jsonl        what was measured of each sample, or why nothing was
OUT/NAME/results.json       the figures

Captions stay. Figures are made anew at every start, since nobody knows whether the evaluator is what it was.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from vcap_jax.captioning.settings import Modality, is_served, own_requests
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.benchmarks.results import (
    REQUEST,
    RESULTS,
    lost,
    results_row,
    told,
    unmeasured,
    write_results,
)
from vcap_jax.evals.captions_file import CaptionsFile
from vcap_jax.evals.config import EvaluationConfig, EvaluatorConfig
from vcap_jax.evals.protocol import Captions, EvaluatorTools, check_differ
from vcap_jax.evals.registry import evaluated_by, load_evaluator, made_evaluators
from vcap_jax.evals.written_captions import PredictionsCaptioner
from vcap_jax.recipes.evaluate import NothingMeasured, predictions_of
from vcap_jax.recipes.evaluation_captions import RequestedCaptioner, captions_are_of
from vcap_jax.recipes.evaluation_request import (
    CAPTIONER,
    EvaluationRefused,
    EvaluationRequest,
    Say,
    how_captioned,
    remember,
    resolved,
)
from vcap_jax.system.digests import digest_of
from vcap_jax.system.file_locks import only_one
from vcap_jax.system.json_values import JsonDict, read_json_object


def evaluate_own(request: EvaluationRequest, say: Say) -> Path:
    """Evaluates by the class that the request's one benchmark names by its import path; the folder with the results.

    The evaluator is given ``request.options``, and the judges if any are named. Raises what ``evaluate`` raises, and
    EvaluationRefused where the evaluator has nothing to evaluate.
    """
    (use,) = request.benchmarks
    entry = EvaluatorConfig(use=use, captions=1, options=dict(request.options))
    kind = load_evaluator(entry)
    predictions = predictions_of(request)
    requests: Mapping[Modality, str] = {}
    if predictions is None:
        requests = own_requests(request.by, request.captioner)
        request = request if is_served(request.by) else resolved(request)
    modality: Modality = next(iter(requests), "image") if kind.modality is None else kind.modality
    folder, judges = request.out / kind.name, request.judges
    tools = EvaluatorTools(
        modality=modality,
        judge=judges.judge if judges.judge.urls else None,
        reasoner=judges.reasoner if judges.reasoner.urls else None,
        store=folder / "answers.sqlite",
        say=say,
        requests=requests,
        captioning=predictions is None,
    )
    with ExitStack() as stack:
        stack.enter_context(only_one(folder, EvaluationRefused, "name another --out"))
        made = made_evaluators(EvaluationConfig(evaluators=(entry,)), tools, say)
        if not made:
            raise EvaluationRefused(f"--benchmark {use} has nothing to evaluate")
        captioner = _Captioner(request, kind.name, predictions, say, stack)
        began = time.monotonic()
        evaluation = evaluated_by(made[0], captioner)
        say(f"{kind.name}:")
        told(evaluation, say)
        by: JsonDict = {"by": request.by}
        if predictions is None and (folder / CAPTIONER).exists():
            by |= read_json_object(folder / CAPTIONER)
        seconds = {"captions and scores": time.monotonic() - began}
        row = results_row(evaluation, captioner.given, captioner=by, seconds=seconds)
        about = {"evaluator": use, "options": dict(request.options), "shares": list(evaluation.shares)}
        write_results(folder, evaluation, about | row)
    found = read_json_object(folder / RESULTS)
    say(f"{kind.name}: {folder / RESULTS}")
    if not request.retry_failed and lost(found, captions=predictions is None):
        say("  the same command with --retry-failed tries again what failed")
    if why := unmeasured(found):
        raise NothingMeasured(f"{kind.name}: {why}. Mend that, and give the same command with --retry-failed")
    return folder


class _Captioner:
    """Who the request says, with captions kept as they come (implements ``Captioner``). given: all that was asked
    for."""

    def __init__(
        self,
        request: EvaluationRequest,
        name: str,
        predictions: Mapping[str, str] | None,
        say: Say,
        stack: ExitStack,
    ) -> None:
        self._request, self._name, self._folder = request, name, request.out / name
        self._written = None if predictions is None else PredictionsCaptioner(predictions)
        self._loaded = functools.cache(lambda: stack.enter_context(RequestedCaptioner(request, say)))
        self._again = request.retry_failed or not (self._folder / RESULTS).exists()
        self.given: list[Captions] = []
        if self._written is not None:
            return
        if not any(path.stat().st_size for path in self._folder.glob("captions-*.jsonl")):
            for note in (REQUEST, CAPTIONER):  # of a start that a mistake ended
                (self._folder / note).unlink(missing_ok=True)
        remember(
            self._folder / REQUEST,
            {"evaluator": request.benchmarks[0], "by": request.by, **how_captioned(request)},
        )
        if not captions_are_of(request, self._folder, say):
            self._loaded().remember(self._folder, 1)

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``."""
        check_differ(samples)
        found = self._drawn(samples, seed) if self._written is None else self._written.captions(samples)
        self.given += found
        return found

    def _drawn(self, samples: Sequence[Sample], seed: int) -> list[Captions]:
        # In their order: a draw depends on a sample's place.
        named = [(sample.id, sample.prompt, [str(file) for file in sample.files]) for sample in samples]
        asked = digest_of(json.dumps([seed, named]))
        with CaptionsFile(self._folder / f"captions-{asked[:12]}.jsonl") as kept:
            if kept.missing(samples, failed=self._again):
                self._loaded().remember(self._folder, len(samples))
                self._loaded().fill(kept, self._name, samples, seed=self._request.seed + seed)
            return kept.of(samples)
