"""Evaluations of a run: at the start, between steps, at the end, each kept in the run folder and made once.

    evaluations/NAME/WHEN.jsonl         the captions, a line per sample
    evaluations/NAME/WHEN.items.jsonl   what was measured of each sample, or why nothing was
    evaluations/NAME/WHEN.json          metrics with intervals; once it is there the evaluation is complete

Captions are written before they are measured, so that a start that comes after a kill asks for none of them twice.
Nothing of the training is touched: captions are drawn with numbers of their own, on this process's devices, while no
step is under way.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Protocol

from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.captioners import PoolCaptioner
from vcap_jax.evals.config import BENCHMARKS, JUDGED
from vcap_jax.evals.protocol import Captioner, Evaluation, EvaluatorTools, Item, OwnData, read_items
from vcap_jax.evals.registry import NamedEvaluator, evaluated_by, made_evaluators
from vcap_jax.evals.statistics import changes_of_means
from vcap_jax.models.policy import Params
from vcap_jax.parallel.processes import PeerFailed
from vcap_jax.report.evaluations import (
    REFERENCES,
    START,
    TRAINED,
    Results,
    evaluated_again,
    evaluations_of,
    read_results,
)
from vcap_jax.report.intervals import Value
from vcap_jax.report.pages import told_if_not_drawn
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.run.before_after import BeforeAfterPage
from vcap_jax.run.context import RunContext, group_sampler
from vcap_jax.run.keeping_best import BestKeeper
from vcap_jax.run.run_captioner import CaptionsLacking, KeptCaptions, RunCaptioner
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import replace_file
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import JsonDict, JsonError, JsonObject
from vcap_jax.system.shutdown import Stopped, TrainingStopped, finishing
from vcap_jax.world.splits import EmbeddedData

_ON_A_LINE = 4
"""Metrics that are told on one line."""


class EvaluationLog(Protocol):
    """Where evaluations between steps are told."""

    def message(self, text: str) -> None:
        """Something the user should know."""

    def evaluated(self, step: int, columns: Mapping[str, float]) -> None:
        """Columns for the row of ``step``, the last one."""


class Evaluations:
    """The evaluators of a run. All processes must call each method together.

    world: the scenes behind the data, where they are the embedded world's. judge: the endpoints that answer, where the
    run asks a judge. own: held-out samples of the user's own, where there are some.
    on_results: is given every evaluation that is asked for, made or found.
    Raises EvaluatorError and ConfigError for evaluators that cannot be used.
    """

    def __init__(
        self,
        ctx: RunContext,
        world: EmbeddedData | None,
        judge: JudgeConfig | None = None,
        own: OwnData | None = None,
        on_results: Callable[[Results], None] = lambda results: None,
    ) -> None:
        data, modality = ctx.config.data, ctx.config.modality
        tools = EvaluatorTools(
            modality=modality,
            world=world,
            judge=judge,
            own=own,
            store=ctx.own_file("evaluations.sqlite"),
            say=ctx.say,
            requests={modality: data.image_prompt if modality == "image" else data.video_prompt},
        )
        self._ctx, self._own, self._on_results = ctx, own, on_results
        self._named = {one.name: one for one in made_evaluators(ctx.config.evaluation, tools, ctx.say)}
        self._best = BestKeeper(ctx.config.logging, ctx.folder, ctx.processes, self._named)
        self._pages: dict[str, BeforeAfterPage] = {}
        if own is not None:
            self._pages = {name: BeforeAfterPage(ctx, own, name) for name in self.using(JUDGED)}
        self._samplers: dict[RolloutConfig, GroupSampler] = {}

    def __contains__(self, name: object) -> bool:
        """Whether an evaluator of that name has something to evaluate."""
        return name in self._named

    def using(self, use: str) -> list[str]:
        """The evaluators that ``EvaluatorConfig.use`` names so and that have something to evaluate."""
        return [name for name, named in self._named.items() if named.config.use == use]

    def of_policy(
        self,
        when: str,
        params: Params,
        *,
        step: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> dict[str, Results]:
        """Evaluates the policy with ``params`` (of the whole mesh), or finds that this has been done; by evaluator.

        when: names the files. step: updates that the policy has had. say: where it is told, ``ctx.say`` where None.
        Raises Stopped, in all processes, if a signal has come to one of them; what the evaluators raise.
        """
        own: Params | None = None
        found: dict[str, Results] = {}
        for name, named in self._named.items():
            results = self._known(name, when)
            if results is None:
                own = self._ctx.own_params(params) if own is None else own
                captioner = RunCaptioner(self._ctx, self._sampler(named), own, self._file(name, when))
                results = self._shared(named, when, step, captioner)
                (say or self._ctx.say)(_told(results))
                self._draw(name, results)
            elif self._ctx.processes.first and self._not_drawn(name, when):
                self._draw(name, results)
            found[name] = results
            self._on_results(results)
        if when == START:  # and not hours later, after the first steps
            self._best.check(found)
        return found

    def of_pool(self, name: str, when: str, pool: ReferencePool, *, each: int) -> Results:
        """Evaluates a pool's captions by one evaluator, or finds that this has been done. each: see ``PoolCaptioner``.

        Raises what the evaluator raises.
        """
        results = self._known(name, when)
        if results is None:
            captioner = PoolCaptioner(pool, each=each)
            row = self._ctx.processes.on_process_0(
                f"evaluation {name} of {when}",
                lambda: self._written(self._named[name], when, None, captioner).row(),
            )
            results = as_record(Results, row, f"evaluation {name} of {when}")
            self._ctx.say(_told(results))
        self._on_results(results)
        return results

    def of_references(self) -> None:
        """Evaluates what captions of held-out samples are compared with, as if it were captions."""
        if self._own is not None and self._own.references is not None:
            for name in self.using(JUDGED):
                self.of_pool(name, REFERENCES, self._own.references, each=0)

    def after_step(
        self, step: int, params: Params, *, total: int, log: EvaluationLog
    ) -> Callable[[], None] | None:
        """What is due after ``step`` updates of ``total``: an evaluation every ``evaluation.every`` steps. Returns what
        is to be done once a checkpoint of them is complete, if it is to be kept as the best so far.

        Raises TrainingStopped if it cannot be made, and Stopped, in all processes alike.
        """
        every = self._ctx.config.evaluation.every
        if every is None or not step or step % every or not self._named:
            return None
        begin = time.monotonic()
        when = TRAINED if step == total else f"step-{step}"
        try:
            found = self.of_policy(when, params, step=step, say=log.message)
            keeping = self._best.better(step, found, log.message)
        except PeerFailed:
            raise
        except VCapError as error:
            raise TrainingStopped(
                f"the evaluation after step {step}: {error}. The {step} steps before it are saved; once it is "
                "mended, continue with --resume"
            ) from error
        columns = {key: value for results in found.values() for key, value in results.columns().items()}
        log.evaluated(step, columns | {"seconds/evaluation": time.monotonic() - begin})
        return keeping

    def at_end(self, params: Params, *, step: int) -> dict[str, Results]:
        """Evaluates the trained policy, whose checkpoint is complete, after the last ``step``; by evaluator. Before it
        earlier steps whose results somebody has removed."""
        for name, named in self._named.items():
            self._ctx.processes.on_process_0(f"evaluations {name}, earlier", partial(self._removed, named))
        found = self.of_policy(TRAINED, params, step=step)
        if (keeping := self._best.better(step, found, self._ctx.say)) is not None:
            keeping()
        return found

    def summary(self) -> JsonObject:
        """Every evaluation that the folder holds, by evaluator and ``when``: metrics with intervals."""
        return {
            name: {results.when: results.row() for results in several}
            for name, several in evaluations_of(self._ctx.folder).items()
        }

    def _removed(self, named: NamedEvaluator) -> None:
        """Measures the captions of steps without results: no step is trained a second time for them."""
        for path in sorted(self._ctx.folder.evaluation(named.name).glob("step-*.jsonl")):
            when, number = path.stem, path.stem.removeprefix("step-")
            if number.isdecimal() and not path.with_suffix(".json").exists():
                try:
                    self._ctx.say(_told(self._written(named, when, int(number), KeptCaptions(path))))
                except CaptionsLacking as error:
                    self._ctx.say(f"{named.name}, {when}: not evaluated, as {error}")

    def _file(self, name: str, when: str) -> Path:
        return self._ctx.folder.evaluation(name) / f"{when}.jsonl"

    def _not_drawn(self, name: str, when: str) -> bool:
        """Whether an earlier start was killed between an evaluation and its page."""
        page, results = self._ctx.folder.before_after_page(name), self._file(name, when).with_suffix(".json")
        return not page.exists() or page.stat().st_mtime_ns < results.stat().st_mtime_ns

    def _draw(self, name: str, results: Results) -> None:
        """The page of held-out samples before and after."""
        if name in self._pages and results.when != START and self._ctx.processes.first:
            with told_if_not_drawn(self._ctx.folder.before_after_page(name), self._ctx.say):
                self._pages[name].draw(self._items(name, START), self._items(name, results.when), results)

    def _known(self, name: str, when: str) -> Results | None:
        path = self._file(name, when).with_suffix(".json")

        def read() -> JsonDict | None:
            results = read_results(path)
            if results is None:
                return None
            # What is damaged is told now, and not when the next evaluation is compared with it.
            self._items(name, when)
            return results.row()

        row = self._ctx.processes.on_process_0(f"evaluation {name}, {when}", read)
        return None if row is None else as_record(Results, row, f"evaluation {name}, {when}")

    def _sampler(self, named: NamedEvaluator) -> GroupSampler:
        """The run's own, whose programs are compiled already, unless other captions are asked for; one for all that ask
        for the same."""
        asked, rollout = named.config, self._ctx.config.rollout
        wanted = dataclasses.replace(
            rollout.limited_to(asked.max_completion_length or rollout.max_completion_length),
            group_size=asked.captions or (1 if asked.use in BENCHMARKS else rollout.group_size),
            sampling=asked.sampling or rollout.sampling,
        )
        if wanted == rollout:
            return self._ctx.sampler
        if wanted not in self._samplers:
            self._samplers[wanted] = group_sampler(self._ctx.policy, wanted, self._ctx.processes)
        return self._samplers[wanted]

    def _shared(self, named: NamedEvaluator, when: str, step: int | None, captioner: RunCaptioner) -> Results:
        """The first process evaluates and writes; the others caption their shares of what it asks for."""
        processes = self._ctx.processes
        row: JsonDict | None = None
        # Of several processes none may leave the others waiting.
        with finishing("the evaluation in work") if processes.count > 1 else nullcontext():
            if processes.first:
                try:
                    row = self._written(named, when, step, captioner).row()
                except PeerFailed:
                    raise  # there is nobody to be told
                except (Stopped, VCapError) as error:
                    captioner.end(error)
                    raise
                captioner.end()
            else:
                captioner.serve()
            results = f"results of {named.name}, {when}"
            return as_record(Results, processes.all_gather_objects(results, row)[0], results)

    def _written(self, named: NamedEvaluator, when: str, step: int | None, captioner: Captioner) -> Results:
        evaluation = evaluated_by(named, captioner)
        path = self._file(named.name, when)
        begun = read_results(self._file(named.name, START).with_suffix(".json")) if when != START else None
        changes: Mapping[str, Value] = {}
        if begun is not None:
            start = Evaluation(metrics=begun.metrics, items=tuple(self._items(named.name, START)))
            changes = changes_of_means(start, evaluation)
        results = Results(
            evaluator=named.name,
            when=when,
            step=step,
            metrics=evaluation.metrics,
            items=len(evaluation.items),
            failed=evaluation.failed,
            changes=changes,
            asked=evaluation.asked(),
            shares=evaluation.shares,
            measured=evaluation.measured,
        )
        lines = [item.line() for item in evaluation.items]
        replace_file(path.with_suffix(".items.jsonl"), "".join(lines).encode())
        results.write(path.with_suffix(".json"))  # last: it says that all is there
        return results

    def _items(self, name: str, when: str) -> list[Item]:
        """What was measured of each sample; nothing where that evaluation has not been made."""
        path = self._file(name, when).with_suffix(".items.jsonl")
        try:
            return read_items(path) if path.exists() else []
        except JsonError as error:
            raise JsonError(
                f"{error}; {evaluated_again(self._file(name, when).with_suffix('.json'))}"
            ) from error


def _told(results: Results) -> str:
    """A line, or one for each metric where there are many."""
    failed = f"; {results.failed} of {results.items} failed" if results.failed else ""
    lines = []
    for name, value in results.metrics.items():
        change = results.changes.get(name)
        lines.append(f"{name} {value}" + ("" if change is None else f", {_change(change)} since the start"))
    begin, between = ("\n  ", "\n  ") if len(lines) > _ON_A_LINE or results.changes else (" ", ", ")
    return f"{results.evaluator}, {results.when}:{begin}{between.join(lines)}{failed}"


def _change(value: Value) -> str:
    if math.isnan(value.value):
        return "no change measured"
    return f"{value.value:+.3g} ({value.low:+.3g} to {value.high:+.3g})"
