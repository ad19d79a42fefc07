"""Evaluations of a run: made once, shared by processes, stopped and gone on with."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.evals import own_evaluators
from tests.processes_in_threads import in_threads
from vcap_jax.data.errors import MediaError
from vcap_jax.data.manifest import read_manifest
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.evals.config import GREEDY, EvaluationConfig, EvaluatorConfig
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.report.evaluations import evaluations_of
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.rollout.captioner import Captioned, ManifestCaptioner
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run import evaluation, run_captioner
from vcap_jax.run.config import LoggingConfig, RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.evaluation import Evaluations
from vcap_jax.system.json_values import JsonError
from vcap_jax.system.shutdown import Stopped, TrainingStopped, stop_on_signal
from vcap_jax.world.dataset import MANIFEST, write_dataset

NOTHING: Any = None


class Scripted(ManifestCaptioner):
    """A caption is the parameters, the seed and the sample's place; the second sample cannot be read."""

    def __init__(self, asked: list[int]) -> None:
        self._asked = asked

    def run(
        self, params, samples, *, seed, indices=None, on_bad=None, stop=lambda: False
    ) -> Iterator[Captioned]:
        self._asked.append(len(samples))
        for index, sample in zip(indices or range(len(samples)), samples, strict=True):
            if stop():
                return
            if index == 1:
                on_bad(BadSample(id=sample.id, reason="truncated"))
            else:
                text = f"{params} {seed} {index}"
                yield Captioned(sample, (text, "x"), (3, 1), (False, False))


@dataclasses.dataclass(frozen=True)
class Context(RunContext):
    asked: list[int] = dataclasses.field(default_factory=list)

    def own_params(self, params: Any) -> Any:
        return params

    def captioner(self, sampler: Any = None, load: Any = None) -> ManifestCaptioner:
        return Scripted(self.asked)


class Log:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def message(self, text: str) -> None: ...

    def evaluated(self, step: int, columns: Any) -> None:
        self.rows.append((step, {k: v for k, v in columns.items() if not k.startswith("seconds/")}))


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., tuple[Evaluations, Context]]:
    """Evaluations of six pictures by words of their captions."""
    manifest = write_dataset(tmp_path / "data", "image", "heldout", 6, seed=0)
    own = EvaluatorConfig(use="tests.evals.own_evaluators:Words", options={"manifest": str(manifest)})

    def make(
        folder: str, processes: Processes = ALONE, say: Callable[[str], None] = lambda text: None
    ) -> tuple[Evaluations, Context]:
        ctx = Context(
            RunConfig(seed=1, evaluation=EvaluationConfig(every=2, evaluators=(own,))),
            RunFolder(tmp_path / folder),
            *[NOTHING] * 3,
            say,
            processes,
        )
        return Evaluations(ctx, None), ctx

    return make


def files(folder: RunFolder) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder.root / "evaluations" / "words").iterdir()}


def test_a_run_of_any_number_of_processes_leaves_the_same_files(made) -> None:
    """Some of them have no sample to caption: they wait for the others."""
    evaluations, ctx = made("one")
    alone = evaluations.of_policy("start", "p", step=0)["words"]
    for count in (2, 5, 9):

        def share(processes: Processes, count: int = count) -> Any:
            return made(f"of-{count}", processes)[0].of_policy("start", "p", step=0)["words"]

        assert in_threads(count, share) == [alone] * count
        assert files(made(f"of-{count}")[1].folder) == files(ctx.folder)
    rows = [json.loads(line) for line in files(ctx.folder)["start.jsonl"].splitlines()]
    # Numbers of their own: the run's seed and 2000003, and another set for the evaluator's seed 1.
    assert [row.get("captions", [""])[0] for row in rows[:3]] == ["p 2000004 0", "", "p 2000004 2"]
    assert rows[6]["captions"][0] == "p 2000005 0"
    assert (alone.items, alone.failed, alone.metrics["words"].value) == (6, 1, 2.0)
    failed = json.loads(files(ctx.folder)["start.items.jsonl"].splitlines()[1])
    assert (failed["failure"], failed["values"]) == ("truncated", {})


def test_an_evaluation_that_is_on_disk_is_not_made_again(made) -> None:
    evaluations, ctx = made("run")
    first = evaluations.of_policy("start", "p", step=0)
    asked, before = list(ctx.asked), files(ctx.folder)
    assert made("run")[0].of_policy("start", "another", step=0) == first
    # Killed between captions and measuring: the captions are kept.
    (ctx.folder.evaluation("words") / "start.json").unlink()
    (ctx.folder.evaluation("words") / "start.items.jsonl").unlink()
    again, later = made("run")
    assert again.of_policy("start", "another", step=0) == first
    assert (asked, later.asked) == ([6, 2], [])
    assert files(ctx.folder) == before


def test_between_steps_what_is_due_is_evaluated_and_gets_columns(made) -> None:
    evaluations, ctx = made("run")
    log = Log()
    for step in range(6):
        evaluations.after_step(step, f"p{step}", total=5, log=log)
    evaluations.after_step(4, "p4", total=4, log=log)
    assert [step for step, _ in log.rows] == [2, 4, 4]
    assert log.rows[0][1] == {
        "eval/words/words": 2.0,
        "eval/words/again": 2.0,
        "eval/words/failed": 1 / 6,
    }
    # The last step's evaluation is that of the trained policy.
    found = evaluations_of(ctx.folder)["words"]
    assert [(results.step, results.when) for results in found] == [
        (2, "step-2"),
        (4, "step-4"),
        (4, "trained"),
    ]
    assert evaluations.summary()["words"]["step-2"]["metrics"]["words"]["value"] == 2.0


def test_a_change_is_what_came_since_the_start(made) -> None:
    evaluations, _ = made("run")
    evaluations.of_policy("start", "p", step=0)
    trained = evaluations.of_policy("trained", "two more words", step=4)["words"]
    assert trained.metrics["words"].value == 3.0
    assert trained.changes["words"].value == 1.0


def test_an_evaluation_without_its_items_is_not_complete(made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes since the start are of these, and a kill may come between the files."""
    evaluations, ctx = made("run")

    def killed(path: Path, content: bytes) -> None:
        raise KeyboardInterrupt(path.name)

    monkeypatch.setattr(evaluation, "replace_file", killed)
    with pytest.raises(KeyboardInterrupt, match=r"start\.items\.jsonl"):
        evaluations.of_policy("start", "p", step=0)
    assert not (ctx.folder.evaluation("words") / "start.json").exists()


@pytest.mark.parametrize("count", [1, 3])
def test_results_of_an_earlier_step_that_were_removed_come_back_from_the_captions(count: int, made) -> None:
    """Its policy is gone. The page said to remove the file and resume, and the plots lost the step."""
    evaluations, ctx = made("run")
    evaluations.of_policy("start", "p", step=0)
    evaluations.after_step(2, "p2", total=4, log=Log())
    before, folder = files(ctx.folder), ctx.folder.evaluation("words")
    (folder / "step-2.json").unlink()

    def ended(processes: Processes) -> Any:
        return made("run", processes)[0].at_end("p4", step=4)["words"].step

    assert in_threads(count, ended) == [4] * count
    after = files(ctx.folder)
    assert {name: after[name] for name in before} == before
    assert {name.split(".")[0] for name in after} == {"start", "step-2", "trained"}


def test_an_earlier_step_of_which_captions_lack_is_left_out_and_told(made) -> None:
    """A kill in its evaluation, and another ``evaluation.every`` since: the later policy's are not its captions."""
    evaluations, ctx = made("run")
    evaluations.after_step(2, "p2", total=4, log=Log())
    folder = ctx.folder.evaluation("words")
    (folder / "step-2.json").unlink()
    kept = (folder / "step-2.jsonl").read_text().splitlines(keepends=True)[:3]
    (folder / "step-2.jsonl").write_text("".join(kept))
    told: list[str] = []
    evaluations, _ = made("run", say=told.append)
    evaluations.at_end("p4", step=4)
    assert (folder / "step-2.jsonl").read_text() == "".join(kept)
    assert not (folder / "step-2.json").exists()
    assert [line for line in told if "step-2" in line] == [
        f"words, step-2: not evaluated, as {folder / 'step-2.jsonl'} has no captions of 'heldout-000003'"
    ]


@pytest.mark.parametrize("name", ["step-2.json", "step-2.items.jsonl"])
def test_a_damaged_evaluation_is_made_again_as_its_error_says(name: str, made) -> None:
    """It said to remove the captions too, which of an earlier step nobody could draw again."""
    evaluations, ctx = made("run")
    evaluations.after_step(2, "p2", total=4, log=Log())
    before, folder = files(ctx.folder), ctx.folder.evaluation("words")
    (folder / name).write_text("{")
    with pytest.raises(JsonError, match=rf"evaluated again, remove {folder / 'step-2.json'} and resume"):
        made("run")[0].of_policy("step-2", "p2", step=2)
    (folder / "step-2.json").unlink()
    made("run")[0].of_policy("step-2", "p2", step=2)
    assert files(ctx.folder) == before


def test_a_best_checkpoint_by_a_metric_that_there_is_not_is_told_at_the_start(made) -> None:
    """It was told after the first ``evaluation.every`` steps, which may take hours."""
    _, ctx = made("run")
    config = dataclasses.replace(ctx.config, logging=LoggingConfig(keep_best="words/wrods"))
    evaluations = Evaluations(dataclasses.replace(ctx, config=config), None)
    with pytest.raises(
        EvaluatorError, match=r"logging.keep_best is words/wrods, and words gives words, again"
    ):
        evaluations.of_policy("start", "p", step=0)


def test_an_evaluation_counts_though_its_page_cannot_be_drawn(made) -> None:
    evaluations, ctx = made("run")

    class Broken:
        def draw(self, *arguments: Any) -> None:
            raise OSError("a picture is gone")

    evaluations._pages["words"] = Broken()
    log = Log()
    evaluations.after_step(2, "p2", total=4, log=log)
    assert [step for step, _ in log.rows] == [2]
    assert evaluations_of(ctx.folder)["words"][0].when == "step-2"


def test_a_page_that_a_kill_has_left_behind_its_evaluation_is_drawn_again(made) -> None:
    """After the last one it would show an earlier step for ever."""

    class Page:
        drawn: ClassVar[list[str]] = []

        def draw(self, before: Any, after: Any, results: Any) -> None:
            self.drawn.append(results.when)
            ctx.folder.before_after_page("words").touch()

    evaluations, ctx = made("run")
    evaluations._pages["words"] = Page()
    evaluations.of_policy("trained", "p")
    evaluations.of_policy("trained", "p")
    assert Page.drawn == ["trained"]
    os.utime(ctx.folder.before_after_page("words"), (0, 0))
    evaluations.of_policy("trained", "p")
    evaluations.of_policy("trained", "p")
    assert Page.drawn == ["trained", "trained"]


@pytest.mark.parametrize("count", [1, 3])
def test_a_signal_to_any_process_stops_all_and_leaves_nothing_half_done(
    count: int, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_captioner, "requested", lambda: True)

    def stopped(processes: Processes) -> bool:
        with pytest.raises(Stopped, match="stopped in an evaluation"):
            made("run", processes)[0].of_policy("start", "p")
        return True

    assert all(in_threads(count, stopped))
    assert not (made("run")[1].folder.root / "evaluations").exists()


def test_a_real_signal_in_a_runs_first_evaluation_keeps_what_is_drawn(
    made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There no step is in work, so that a signal ends what is done at once."""

    class Signalled(Scripted):
        def run(self, params, samples, **rest):
            for number, one in enumerate(super().run(params, samples, **rest)):
                yield one
                if number == 1:
                    os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Context, "captioner", lambda self, sampler=None, load=None: Signalled(self.asked))
    evaluations, ctx = made("run")
    with stop_on_signal(), pytest.raises(Stopped, match="stopped in an evaluation"):
        evaluations.of_policy("start", "p")
    rows = [json.loads(line) for line in files(ctx.folder)["start.jsonl"].splitlines()]
    assert [row.get("captions", [""])[0] for row in rows] == ["p 2000004 0", "", "p 2000004 2"]


def resumed(made, drawn: list[Any], processes: Processes) -> Any:
    """What is found when the run goes on, and into ``drawn`` how many captions are asked for."""
    evaluations, ctx = made("run", processes)
    results = evaluations.of_policy("start", "p")["words"]
    drawn.append(ctx.asked)
    return results


@pytest.mark.parametrize("count", [1, 2])
def test_captions_before_a_signal_are_kept_and_drawn_no_second_time(
    count: int, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations, undisturbed = made("undisturbed")
    found = evaluations.of_policy("start", "p")["words"]
    drawn = []

    def stopped(processes: Processes) -> Any:
        told = iter([False, False, True, True])
        monkeypatch.setattr(run_captioner, "requested", lambda: next(told, True))
        try:
            return made("run", processes)[0].of_policy("start", "p")["words"]
        except Stopped:
            return None

    assert in_threads(1, stopped) == [None]
    folder = made("run")[1].folder
    assert [path.name for path in folder.evaluation("words").iterdir()] == ["start.jsonl"]
    assert len(files(folder)["start.jsonl"].splitlines()) == 2
    monkeypatch.undo()
    assert in_threads(count, partial(resumed, made, drawn)) == [found] * count
    # Four of the first draw's six, and the second draw's two.
    assert [sum(shares) for shares in zip(*drawn, strict=True)] == [4, 2]
    assert files(folder) == files(undisturbed.folder)


@pytest.mark.parametrize("count", [1, 2])
def test_captions_before_a_kill_are_drawn_no_second_time(
    count: int, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations, undisturbed = made("undisturbed")
    found = evaluations.of_policy("start", "p")["words"]

    class Killed(Scripted):
        def run(self, params, samples, **rest):
            for number, one in enumerate(super().run(params, samples, **rest)):
                if number == 2:
                    raise KeyboardInterrupt  # whatever is not written by now is lost
                yield one

    with monkeypatch.context() as patched:
        patched.setattr(Context, "captioner", lambda self, sampler=None, load=None: Killed(self.asked))
        with pytest.raises(KeyboardInterrupt):
            made("run")[0].of_policy("start", "p")
    folder, drawn = made("run")[1].folder, []
    with (folder.evaluation("words") / "start.jsonl").open("a") as torn:
        torn.write('{"id": "torn')

    assert in_threads(count, partial(resumed, made, drawn)) == [found] * count
    # Two of the first draw's six are there; the one that nobody can caption is tried again.
    assert [sum(shares) for shares in zip(*drawn, strict=True)] == [4, 2]
    assert files(folder) == files(undisturbed.folder)


def test_an_evaluator_that_stops_stops_the_others_too(made, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(named: Any, captioner: Any) -> Any:
        raise Stopped("in the middle of it")

    monkeypatch.setattr(evaluation, "evaluated_by", stop)

    def stopped(processes: Processes) -> bool:
        with pytest.raises(Stopped):
            made("run", processes)[0].of_policy("start", "p")
        return True

    assert all(in_threads(3, stopped))


@pytest.mark.parametrize("count", [1, 3])
def test_a_failing_evaluation_ends_the_run_in_all_processes_alike(
    count: int, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that all save what was done before it."""

    def fails(self: Any, captions: Any) -> Any:
        raise KeyError("of the user's")

    monkeypatch.setattr(own_evaluators.Words, "measure", fails)

    def stopped(processes: Processes) -> str:
        with pytest.raises(TrainingStopped) as raised:
            made("run", processes)[0].after_step(2, "p", total=4, log=Log())
        return str(raised.value)

    told = set(in_threads(count, stopped))
    assert len(told) == 1
    assert (
        "the evaluation after step 2: the evaluation 'words' failed: KeyError: \"of the user's\""
        in told.pop()
    )


@pytest.mark.parametrize("ends", ["captioned", "first"])
def test_what_ends_one_process_in_its_share_ends_all(
    ends: str, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"first": 0, "captioned": 5}[ends]  # in the share of the first process, and of the last

    def run(self: Any, params, samples, *, seed, indices=None, on_bad=None, stop=None) -> Iterator[Captioned]:
        for index, sample in zip(indices, samples, strict=True):
            if index == place:
                raise MediaError(f"{sample.id} is cut")
            yield Captioned(sample, ("x",), (1,), (False,))

    monkeypatch.setattr(Scripted, "run", run)

    def stopped(processes: Processes) -> str:
        with pytest.raises(EvaluatorError) as raised:
            made("run", processes)[0].of_policy("start", "p")
        return str(raised.value)

    (told,) = set(in_threads(3, stopped))
    assert told.startswith(f"process {0 if ends == 'first' else 2}: ")
    assert told.endswith("is cut")


@pytest.mark.parametrize(("tokens", "short"), [(256, 0), (1000, 512), (None, 512)])
def test_short_caches_are_left_out_where_captions_are_as_short(
    tokens: int | None, short: int, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ctx = made("run")
    rollout = RolloutConfig(max_completion_length=1024, short_groups=8, short_length=512)
    entry = dataclasses.replace(ctx.config.evaluation.evaluators[0], captions=1, max_completion_length=tokens)
    config = dataclasses.replace(
        ctx.config, rollout=rollout, evaluation=EvaluationConfig(every=2, evaluators=(entry,))
    )
    drawn: list[RolloutConfig] = []
    monkeypatch.setattr(evaluation, "group_sampler", lambda policy, wanted, processes: drawn.append(wanted))
    Evaluations(dataclasses.replace(ctx, config=config), None).of_policy("start", "p")
    (wanted,) = drawn
    assert (wanted.max_completion_length, wanted.short_length) == (tokens or 1024, short)


def test_evaluators_that_draw_alike_share_the_compiled_programs(
    made, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ctx = made("run")
    one = dataclasses.replace(ctx.config.evaluation.evaluators[0], captions=1, sampling=GREEDY)
    others = (
        dataclasses.replace(one, name="again"),
        dataclasses.replace(one, name="two", captions=2, sampling=None),
    )
    config = dataclasses.replace(ctx.config, evaluation=EvaluationConfig(every=2, evaluators=(one, *others)))
    drawn: list[int] = []
    monkeypatch.setattr(
        evaluation, "group_sampler", lambda policy, wanted, processes: drawn.append(wanted.group_size)
    )
    evaluations = Evaluations(dataclasses.replace(ctx, config=config), None)
    for when in ("start", "step-2"):
        assert set(evaluations.of_policy(when, "p")) == {"words", "again", "two"}
    assert drawn == [1, 2]


def test_a_pool_is_evaluated_like_a_policy(made, tmp_path: Path) -> None:
    evaluations, _ = made("run")
    first = read_manifest(tmp_path / "data" / MANIFEST)[0].id
    pool = ReferencePool([PoolEntry(id=first, references=("three words here",))])
    results = evaluations.of_pool("words", "references", pool, each=1)
    assert (results.step, results.items, results.failed) == (None, 6, 0)
    assert results.metrics["words"].value == 0.5
    assert evaluations.of_pool("words", "references", ReferencePool([]), each=1) == results
