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
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Protocol

from vcap_jax.data.errors import NoUsableSamplesError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.captioners import PoolCaptioner
from vcap_jax.evals.config import BENCHMARKS, JUDGED
from vcap_jax.evals.protocol import (
    Captioner,
    Captions,
    EvaluatorError,
    EvaluatorTools,
    Item,
    OwnData,
    read_items,
)
from vcap_jax.evals.registry import NamedEvaluator, evaluated_by, made_evaluators
from vcap_jax.evals.statistics import changes_of_means
from vcap_jax.models.policy import Params
from vcap_jax.parallel.processes import PeerFailed
from vcap_jax.report.evaluations import Results, evaluations_of, read_results
from vcap_jax.report.intervals import Value
from vcap_jax.report.step_log import replace_file
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.run.before_after import BeforeAfterPage
from vcap_jax.run.context import RunContext, group_sampler
from vcap_jax.run.keeping_best import BestKeeper
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import (
    JsonDict,
    JsonObject,
    as_list,
    as_object,
    as_text,
    as_whole,
    parse_json,
)
from vcap_jax.system.shutdown import Stopped, TrainingStopped, finishing, requested
from vcap_jax.world.splits import EmbeddedData

START, TRAINED = "start", "trained"
"""Before the first step, and after the last."""
REFERENCES = "references"
"""What captions are compared with, evaluated as if they were captions."""

_SEED = 2_000_003
"""Added to the run's seed: never met by the training rollouts, whose fold is (seed, step)."""
_ON_A_LINE = 4
"""Metrics that are told on one line."""
_STOPPED = "stopped in an evaluation"


class EvaluationLog(Protocol):
    """Where evaluations between steps are told."""

    def message(self, text: str) -> None:
        """Something the user should know."""
        ...

    def evaluated(self, step: int, columns: Mapping[str, float]) -> None:
        """Columns for the row of ``step``, the last one."""
        ...


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
        tools = EvaluatorTools(
            modality=ctx.config.modality,
            world=world,
            judge=judge,
            own=own,
            store=ctx.own_file("evaluations.sqlite"),
            say=ctx.say,
        )
        self._ctx, self._own, self._on_results = ctx, own, on_results
        self._named = {one.name: one for one in made_evaluators(ctx.config.evaluation, tools, ctx.say)}
        self._best = BestKeeper(ctx.config.logging, ctx.folder, ctx.processes, self._named)
        self._pages: dict[str, BeforeAfterPage] = {}
        if own is not None:
            self._pages = {name: BeforeAfterPage(ctx, own, name) for name in self.using(JUDGED)}
        self._samplers: dict[str, GroupSampler] = {}

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
                captioner = PolicyCaptioner(self._ctx, self._sampler(named), own, self._file(name, when))
                results = self._shared(named, when, step, captioner)
                (say or self._ctx.say)(_told(results))
                self._draw(name, results)
            elif not self._ctx.folder.before_after_page(name).exists():  # killed before it was drawn
                self._draw(name, results)
            found[name] = results
            self._on_results(results)
        return found

    def of_pool(self, name: str, when: str, pool: ReferencePool, *, each: int) -> Results:
        """Evaluates a pool's captions by one evaluator, or finds that this has been done. each: see ``PoolCaptioner``.

        Raises what the evaluator raises.
        """

        def evaluate() -> JsonDict:
            return self._written(self._named[name], when, None, PoolCaptioner(pool, each=each)).row()

        results = self._known(name, when)
        if results is None:
            results = Results.of_row(
                self._ctx.processes.on_process_0(f"evaluation {name} of {when}", evaluate)
            )
            self._ctx.say(_told(results))
        self._on_results(results)
        return results

    def of_references(self) -> None:
        """Evaluates what captions of held-out samples are compared with, as if it were captions."""
        if self._own is not None and self._own.references is not None:
            for name in self.using(JUDGED):
                self.of_pool(name, REFERENCES, self._own.references, each=1)

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
        """Evaluates the trained policy, whose checkpoint is complete, after the last ``step``; by evaluator."""
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

    def _file(self, name: str, when: str) -> Path:
        return self._ctx.folder.evaluation(name) / f"{when}.jsonl"

    def _draw(self, name: str, results: Results) -> None:
        """The page of held-out samples before and after."""
        if name in self._pages and results.when != START and self._ctx.processes.first:
            self._pages[name].draw(self._items(name, START), self._items(name, results.when), results)

    def _known(self, name: str, when: str) -> Results | None:
        path = self._file(name, when).with_suffix(".json")

        def read() -> JsonDict | None:
            results = read_results(path)
            return None if results is None else results.row()

        row = self._ctx.processes.on_process_0(f"evaluation {name}, {when}", read)
        return None if row is None else Results.of_row(row)

    def _sampler(self, named: NamedEvaluator) -> GroupSampler:
        """The run's own, whose programs are compiled already, unless other captions are asked for."""
        if named.name not in self._samplers:
            asked, rollout = named.config, self._ctx.config.rollout
            wanted = dataclasses.replace(
                rollout,
                group_size=asked.captions or (1 if asked.use in BENCHMARKS else rollout.group_size),
                sampling=asked.sampling or rollout.sampling,
                max_completion_length=asked.max_completion_length or rollout.max_completion_length,
            )
            self._samplers[named.name] = (
                self._ctx.sampler
                if wanted == rollout
                else group_sampler(self._ctx.policy, wanted, self._ctx.processes)
            )
        return self._samplers[named.name]

    def _shared(
        self, named: NamedEvaluator, when: str, step: int | None, captioner: PolicyCaptioner
    ) -> Results:
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
            found = processes.all_gather_objects(f"results of {named.name}, {when}", row)[0]
            assert found is not None, "process 0 has them"
            return Results.of_row(found)

    def _written(self, named: NamedEvaluator, when: str, step: int | None, captioner: Captioner) -> Results:
        evaluation = evaluated_by(named, captioner)
        path = self._file(named.name, when)
        start = self._items(named.name, START) if when != START else []
        results = Results(
            evaluator=named.name,
            when=when,
            step=step,
            metrics=evaluation.metrics,
            items=len(evaluation.items),
            failed=evaluation.failed,
            changes=changes_of_means(start, evaluation.items, evaluation.metrics),
            asked=evaluation.asked(),
        )
        lines = [item.line() for item in evaluation.items]
        replace_file(path.with_suffix(".items.jsonl"), "".join(lines).encode())
        results.write(path.with_suffix(".json"))  # last: it says that all is there
        return results

    def _items(self, name: str, when: str) -> list[Item]:
        """What was measured of each sample; nothing where that evaluation has not been made."""
        path = self._file(name, when).with_suffix(".items.jsonl")
        return read_items(path) if path.exists() else []


class PolicyCaptioner:
    """The run's policy with given parameters (implements ``Captioner``). The first process asks for captions, the
    others ``serve`` until it says ``end``; each captions a share of the samples.

    own: parameters for this process's devices. path: where captions are kept, and found when they are asked for again.
    """

    def __init__(self, ctx: RunContext, sampler: GroupSampler, own: Params, path: Path) -> None:
        self._ctx, self._sampler, self._own, self._path = ctx, sampler, own, path
        self._over = False

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``. A caption depends on the run's seed, ``seed`` and the sample's place in ``samples``."""
        ids = [sample.id for sample in samples]
        if len(set(ids)) < len(ids):
            twice = next(identity for identity in ids if ids.count(identity) > 1)
            raise EvaluatorError(
                f"captions of {twice!r} are asked for twice at once: ids of samples must differ"
            )
        kept = self._kept()
        if any((seed, identity) not in kept for identity in ids):
            self._asked({"samples": [_sample_row(sample) for sample in samples], "seed": seed})
            for row in self._together(samples, seed):
                kept[seed, as_text(row["id"], "id of captions")] = row
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in kept.values()]
            replace_file(self._path, "".join(lines).encode())
        return [_captions(kept[seed, identity]) for identity in ids]

    def serve(self) -> None:
        """Captions this process's shares until the first process has what it needs.

        Raises Stopped if it was stopped there, EvaluatorError if it cannot go on.
        """
        while (asked := self._asked(None)) is not None:
            _raise_of(asked)
            samples = as_list(asked["samples"], "samples to caption")
            self._together([_sample(row) for row in samples], as_whole(asked["seed"], "seed of captions"))

    def end(self, error: BaseException | None = None) -> None:
        """Tells the other processes that no more captions are asked for, and what ended the evaluation if not its
        end."""
        if not self._over:
            self._asked(None if error is None else _reason(error))

    def _asked(self, what: JsonObject | None) -> JsonObject | None:
        """Of the first process: tells the others what it asks for. Of the others: what that is."""
        asked = self._ctx.processes.all_gather_objects("captions asked for", what)[0]
        return None if asked is None else as_object(asked, "captions asked for")

    def _together(self, samples: Sequence[Sample], seed: int) -> list[JsonDict]:
        """Rows of all processes' shares, in order. What ends the work of one of them is raised in all."""
        told = self._ctx.processes.all_gather_objects(
            f"captions, {self._path.stem}", self._share(samples, seed)
        )
        for process, share in enumerate(told):
            if "rows" not in share:
                self._over = True  # all know
                _raise_of(share, "" if len(told) == 1 else f"process {process}: ")
        return [as_object(row, "captions") for share in told for row in as_list(share["rows"], "captions")]

    def _share(self, samples: Sequence[Sample], seed: int) -> JsonObject:
        """This process's rows, or the reason why it has none."""
        processes, config = self._ctx.processes, self._ctx.config
        mine = processes.share(len(samples))
        own, bad = samples[mine.start : mine.stop], list[BadSample]()
        captioned = self._ctx.captioner(self._sampler).run(
            self._own,
            own,
            seed=config.seed + _SEED + seed,
            first=mine.start,
            on_bad=bad.append,
            stop=requested,
        )
        numbered: JsonDict = {} if seed == 0 else {"seed": seed}
        rows: dict[str, JsonDict] = {}
        try:
            with suppress(NoUsableSamplesError):  # then each of them is in ``bad``
                for c in captioned:
                    rows[c.sample.id] = {
                        "id": c.sample.id,
                        "captions": list(c.captions),
                        "tokens": list(c.lengths),
                        "truncated": list(c.truncated),
                        **numbered,
                    }
        except VCapError as error:
            return _reason(error)
        if requested():
            return _reason(Stopped(_STOPPED))
        rows |= {one.id: {"id": one.id, "failure": one.reason, **numbered} for one in bad}
        return {"rows": [rows[sample.id] for sample in own]}

    def _kept(self) -> dict[tuple[int, str], JsonDict]:
        if not self._path.exists():
            return {}
        where, kept = str(self._path), {}
        for line in self._path.read_text(encoding="utf-8").splitlines():
            row = as_object(parse_json(line), where)
            kept[as_whole(row.get("seed", 0), f"{where}: seed"), as_text(row["id"], f"{where}: id")] = row
        return kept


def _reason(error: BaseException) -> dict[str, str]:
    """What ended the work of a process, as the others are told."""
    return {"stopped" if isinstance(error, Stopped) else "failed": str(error)}


def _raise_of(told: JsonObject, where: str = "") -> None:
    """Raises what ``_reason`` told, if that is what was told."""
    if "stopped" in told:
        raise Stopped(as_text(told["stopped"], "stopped"))
    if "failed" in told:
        raise EvaluatorError(f"{where}{told['failed']}")


def _captions(row: JsonObject) -> Captions:
    """A row as ``_share`` makes it, or as an older version did, without ``truncated``."""
    where = f"captions of {row['id']!r}"
    failure = row.get("failure")
    return Captions(
        id=as_text(row["id"], where),
        texts=tuple(as_text(text, where) for text in as_list(row.get("captions", []), where)),
        tokens=tuple(as_whole(tokens, where) for tokens in as_list(row.get("tokens", []), where)),
        truncated=tuple(bool(cut) for cut in as_list(row.get("truncated", []), where)),
        failure=None if failure is None else as_text(failure, where),
    )


def _sample_row(sample: Sample) -> JsonDict:
    return {
        **vars(sample),
        "images": [str(path) for path in sample.images],
        "video": None if sample.video is None else str(sample.video),
        "references": list(sample.references),
    }


def _sample(sent: object) -> Sample:
    """The sample whose ``_sample_row`` came over from the first process."""
    row = as_object(sent, "a sample to caption")
    where = f"sample {row['id']!r} to caption"

    def texts(key: str) -> tuple[str, ...]:
        return tuple(as_text(text, where) for text in as_list(row[key], where))

    def optional(key: str) -> str | None:
        return None if row[key] is None else as_text(row[key], where)

    video = optional("video")
    return Sample(
        id=as_text(row["id"], where),
        images=tuple(map(Path, texts("images"))),
        video=None if video is None else Path(video),
        prompt=optional("prompt"),
        references=texts("references"),
        extra=as_object(row["extra"], where),
        origin=as_text(row["origin"], where),
    )


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
