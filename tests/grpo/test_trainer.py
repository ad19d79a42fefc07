"""The loop itself: a run that had to stop, and was resumed, ends like one that was left alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.data.errors import MediaError
from vcap_jax.data.examples import Example
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import GroupBatch, GroupIterator, OnBadSample, PipelineSettings
from vcap_jax.grpo.advantages import AdvantageConfig, OverlongConfig
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.records import GroupRecord, StepRollout
from vcap_jax.grpo.trainer import Training
from vcap_jax.grpo.update import FixedLogprobs
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import CandidateScore, GroupScores
from vcap_jax.reward.statistics import StatisticsRecorder
from vcap_jax.reward.store import StoreError
from vcap_jax.rollout.engine import RolloutError
from vcap_jax.rollout.slots import SampledGroup
from vcap_jax.run.log import SilentLog
from vcap_jax.system.shutdown import Stopped, TrainingStopped
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError, DiskError
from vcap_jax.training.optimizer import TrainState
from vcap_jax.training.saving import NotFinite, no_work

STEPS = 4
SOME_STEPS = [0, *(pytest.param(step, marks=pytest.mark.slow) for step in range(1, STEPS - 1)), STEPS - 1]
"""All of a run's, and by default the first and the last."""
NOTHING = np.zeros(0, np.int32)
PROMPT = EncodedPrompt(
    NOTHING, np.zeros((3, 0), np.int32), (), np.zeros((0, 2), np.int32), NOTHING.astype(bool)
)
SAMPLES = [Sample(id=str(i), images=(Path(f"{i}.png"),)) for i in range(7)]


def load(sample: Sample) -> Example:
    media = EncodedMedia(modality="image", duration=0.0, pictures=())
    return Example(sample=sample, request="", prompt=PROMPT, media=media)


class DeviceBatch(SimpleNamespace):
    """In place of a step's prompts and features."""


class Collector:
    """Two captions a group, whose rewards follow from the parameter that drew them, which is their one token, from
    sample and step; none at all in step ``silent``, or ``error`` in their place."""

    asks_judge = True

    def __init__(self, silent: int | None, error: Exception | None = None) -> None:
        self.silent, self.error, self.asked = silent, error, []
        snapshot = StatisticsRecorder(("judge",)).snapshot
        self.session = SimpleNamespace(statistics=snapshot, asks_judge=self.asks_judge)

    def draw(
        self, params: Any, batch: GroupBatch, step: int, known: Any = None, make_room: Any = None
    ) -> Any:
        self.asked.append((step, [example.sample.id for example in batch.examples]))
        told = np.asarray(params["w"], np.float32).view(np.int32)
        drawn = {
            index: SampledGroup(index, np.full((2, 1), told), np.ones(2, np.int32), np.zeros(2, bool))
            for index in batch.indices
        }
        return SimpleNamespace(
            batches=(DeviceBatch(indices=batch.indices, examples=batch.examples),),
            groups=list((known or drawn).values()),
            batch=batch,
            step=step,
        )

    def judged(self, draw: Any) -> Any:
        return draw

    def scored(self, draw: Any) -> StepRollout:
        if draw.step == self.silent and self.error is not None:
            raise self.error
        return StepRollout(
            batches=(),
            records=tuple(
                GroupRecord(
                    index=group.index,
                    sample_id=example.sample.id,
                    captions=("a", "b"),
                    lengths=group.lengths,
                    truncated=group.truncated,
                    scores=self._scores(
                        example.sample.id, draw.step, float(group.tokens[0, 0].view(np.float32))
                    ),
                    example=example,
                    reference=None,
                    tokens=group.tokens,
                )
                for group, example in zip(draw.groups, draw.batch.examples, strict=True)
            ),
            rollout_seconds=1.0,
            judge_seconds=1.0,
        )

    def _scores(self, sample: str, step: int, w: float) -> GroupScores:
        if step == self.silent:
            failure = Failure(reason="http_status", detail="429: quota used up")
            candidates = (CandidateScore(reward=None, failure=failure),) * 2
        else:
            first = np.sin(w + float(sample) + step)
            candidates = (CandidateScore(reward=float(first)), CandidateScore(reward=float(first**2)))
        return GroupScores(sample_id=sample, step=step, candidates=candidates)


class Update:
    """What it holds fixed is the parameter that drew."""

    def fixed(
        self,
        params: Any,
        batches: Any,
        groups: Any,
        longest: int,
        *,
        ahead: bool = False,
        old: Any = None,
    ) -> FixedLogprobs:
        assert longest == 1
        rows = [np.full((2, 1), params["w"]) for _ in groups] if old is None else list(old.values())
        return FixedLogprobs(width=1, reference=[None], old=[jnp.asarray(np.stack(rows))])

    def __call__(
        self, state: TrainState, rollout: StepRollout, _: Any, advantages: Any, fixed: FixedLogprobs
    ) -> tuple[TrainState, dict]:
        moved = sum(float(r.sample_id) for r in rollout.records) + float(advantages.advantages[:, 0].sum())
        (old,) = fixed.old
        assert old is not None
        w = state.params["w"] * 0.9 + moved / 7 + old[0, 0, 0] / 5
        return TrainState(step=state.step + 1, params={"w": w}, opt_state=()), {
            "drawn by": float(old[0, 0, 0])
        }


class Log(SilentLog):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def step(self, report: Any) -> None:
        skipped = {"step": report.step, "skipped": report.skipped_samples}
        self.rows.append(skipped | dict(report.update))


def run(
    folder: Path,
    silent: int | None = None,
    error: Exception | None = None,
    between: Callable[[int, Any], None] = no_work,
    config: GRPOConfig | None = None,
    ahead: int = 0,
    log: Log | None = None,
    update: Any = None,
    save_every: int = STEPS,
    broken: str | None = None,
    on_bad: OnBadSample = "refuse",
    short_length: int = 0,
) -> tuple[float, list[Any]]:
    """The parameter at the end, and the (step, samples) that were collected; resumes what is in ``folder``."""
    kept = None
    collector = Collector(silent, error)

    def read(sample: Sample) -> Example:
        if sample.id == broken:
            raise MediaError(f"{sample.id}.png: cut")
        return load(sample)

    data = GroupIterator(SAMPLES, read, PipelineSettings(batch_groups=2, on_bad_sample=on_bad))
    state = TrainState(step=jnp.zeros((), jnp.int32), params={"w": jnp.float32(0.3)}, opt_state=())
    with Checkpointer(folder) as checkpoints:
        if checkpoints.steps():
            state, place = checkpoints.restore(state)
            data.set_state(place)
            kept = checkpoints.ahead()
        training = Training(
            config=config or GRPOConfig(),
            max_completion_length=1,
            total_steps=STEPS,
            data=data,
            collector=collector,
            update=update or Update(),
            own_params=lambda params: params,
            give_up=lambda params: None,
            checkpoints=checkpoints,
            save_every=save_every,
            log=log or SilentLog(),
            between=between,
            ahead=ahead,
            saved_draw=kept,
            short_length=short_length,
        )
        try:
            return float(training.run(state).params["w"]), collector.asked
        finally:
            data.close()


def test_what_needs_no_scores_is_computed_before_they_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    watched = [(Collector, "draw"), (Update, "fixed"), (Collector, "scored"), (Update, "__call__")]
    for owner, name in watched:
        work = getattr(owner, name)

        def noted(*given: Any, name: str = name, work: Any = work, **more: Any) -> Any:
            order.append(name)
            return work(*given, **more)

        monkeypatch.setattr(owner, name, noted)
    run(tmp_path / "newest")
    assert order == ["draw", "fixed", "scored", "__call__"] * STEPS
    order.clear()
    run(tmp_path / "ahead", ahead=1)
    step = ["draw", "fixed", "scored", "__call__"]
    assert order == [*step[:2], *step * (STEPS - 1), *step[2:]]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_steps_device_batches_are_gone_when_the_next_step_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Of an 8B run they are several GiB on each device, and a plan counts those of one step, or of two if one is
    drawn ahead."""
    draw, made, alive = Collector.draw, list[Any](), list[int]()

    def count() -> None:
        alive.append(sum(batch() is not None for batch in made))

    def counted(*given: Any, **more: Any) -> Any:
        count()
        drawn = draw(*given, **more)
        made.extend(weakref.ref(batch) for batch in drawn.batches)
        return drawn

    monkeypatch.setattr(Collector, "draw", counted)
    run(tmp_path, ahead=ahead, between=lambda *_: count())
    # Before each draw, and in what is done between the steps.
    assert len(alive) == 2 * STEPS + 1
    assert max(alive) == ahead


def test_a_step_drawn_ahead_is_drawn_by_the_weights_before_the_last_update(tmp_path: Path) -> None:
    states: list[float] = []
    for ahead in (0, 1):
        log = Log()
        states.clear()

        def note(done: int, params: Any) -> None:
            states.append(float(params["w"]))

        _, collected = run(tmp_path / str(ahead), between=note, ahead=ahead, log=log)
        assert [step for step, _ in collected] == list(range(STEPS))
        drew = [states[max(0, step - ahead)] for step in range(STEPS)]
        assert [row["drawn by"] for row in log.rows] == drew
        ages = [0, 1, 1, 1] if ahead else [None] * STEPS
        assert [row.get("rollout/age") for row in log.rows] == ages
    assert len(set(states)) == STEPS + 1


@pytest.mark.parametrize("kind", ["in the step", "between steps"])
@pytest.mark.parametrize("step", SOME_STEPS)
def test_a_run_that_draws_ahead_and_is_stopped_ends_like_one_that_was_left_alone(
    tmp_path: Path, step: int, kind: str
) -> None:
    def stop(done: int, params: Any) -> None:
        if done == step:
            raise Stopped("stopped in an evaluation")

    whole, first, second = Log(), Log(), Log()
    alone, collected = run(tmp_path / "alone", ahead=1, log=whole)
    if kind == "between steps":
        with pytest.raises(Stopped):
            run(tmp_path / "stopped", between=stop, ahead=1, log=first)
    else:
        error = StoreError("judgements.sqlite: a judgement cannot be written (database or disk is full)")
        with pytest.raises(TrainingStopped, match=f"^step {step + 1}: ") as stopped:
            run(tmp_path / "stopped", step, error, ahead=1, log=first)
        assert stopped.value.__cause__ is error
    resumed, repeated = run(tmp_path / "stopped", ahead=1, log=second)
    assert repeated == collected[step:]
    assert first.rows + second.rows == whole.rows
    assert resumed == alone


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_of_several_updates_a_step_goes_on_with_the_step_it_was_stopped_before(
    tmp_path: Path, ahead: int
) -> None:
    class Twice(Update):
        def __call__(self, *given: Any) -> tuple[TrainState, dict]:
            state, metrics = super().__call__(*given)
            return replace(state, step=state.step + 1), metrics

    def stop(done: int, params: Any) -> None:
        if done == 2:
            raise Stopped

    given: dict[str, Any] = {"config": GRPOConfig(num_iterations=2), "update": Twice(), "ahead": ahead}
    whole, first, second = Log(), Log(), Log()
    alone, collected = run(tmp_path / "alone", log=whole, **given)
    assert [step for step, _ in collected] == list(range(STEPS))
    with pytest.raises(Stopped):
        run(tmp_path / "stopped", between=stop, log=first, **given)
    resumed, repeated = run(tmp_path / "stopped", log=second, **given)
    assert repeated == collected[2:]
    assert first.rows + second.rows == whole.rows
    assert resumed == alone


@pytest.mark.parametrize("gone", ["then", "now"])
def test_captions_that_were_drawn_ahead_of_other_samples_are_not_trained_on(
    tmp_path: Path, gone: str
) -> None:
    """A file that was gone when they were drawn is there again, or the other way round: those behind it move."""
    done = 2
    _, collected = run(tmp_path / "alone", ahead=1)
    first = collected[done][1][0]
    assert all(first not in ids for _, ids in collected[:done])

    def stop(steps: int, params: Any) -> None:
        if steps == done:
            raise Stopped

    broken = {"then": first if gone == "then" else None, "now": first if gone == "now" else None}
    before, log = Log(), Log()
    with pytest.raises(Stopped):
        run(tmp_path / "run", between=stop, ahead=1, log=before, broken=broken["then"], on_bad="skip")
    _, repeated = run(tmp_path / "run", ahead=1, log=log, broken=broken["now"], on_bad="skip")
    if gone == "then":
        assert repeated == collected[done:]
    else:
        assert all(first not in ids for _, ids in repeated)
    # By the parameters that the checkpoint holds, and no others.
    with Checkpointer(tmp_path / "run", read_only=True) as checkpoints:
        held, _ = checkpoints.restore({"params": {"w": np.zeros((), np.float32)}}, done, partial=True)
    assert log.rows[0]["drawn by"] == held["params"]["w"]
    assert [row["rollout/age"] for row in log.rows] == [0, 1]
    told = [text for text in log.messages if "drawn anew" in text]
    assert len(told) == 1
    assert told[0].startswith(f"step {done + 1}: the captions that were drawn ahead are of other samples")


def test_a_checkpoint_without_the_captions_that_were_drawn_ahead_is_refused(tmp_path: Path) -> None:
    def stop(done: int, params: Any) -> None:
        if done == 2:
            raise Stopped

    with pytest.raises(Stopped):
        run(tmp_path, between=stop)
    with pytest.raises(CheckpointError, match=r"/2 lacks the captions of step 3, which rollout\.ahead"):
        run(tmp_path, ahead=1)


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize(
    "error",
    [
        FamilyError("reward.family 'own:Mine' failed on sample '3': KeyError: 'x' (own.py:9, in score)"),
        StoreError("judgements.sqlite: a judgement cannot be written (database or disk is full)"),
    ],
)
def test_a_step_that_the_reward_failed_in_is_the_only_one_repeated(
    tmp_path: Path, step: int, error: Exception
) -> None:
    alone, collected = run(tmp_path / "alone")
    with pytest.raises(TrainingStopped) as stopped:
        run(tmp_path / "stopped", step, error)
    assert str(stopped.value).startswith(f"step {step + 1}: {error}. ")
    assert "--resume" in str(stopped.value)
    assert stopped.value.__cause__ is error
    resumed, repeated = run(tmp_path / "stopped")
    assert repeated == collected[step:]
    assert resumed == alone


def test_a_step_whose_captions_cannot_be_drawn_is_the_only_one_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, collected = run(tmp_path / "alone")
    draw = Collector.draw

    def lost(self: Collector, params: Any, batch: GroupBatch, step: int, *more: Any) -> Any:
        if step == 2:
            raise RolloutError("the rollout server is gone")
        return draw(self, params, batch, step, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Collector, "draw", lost)
        with pytest.raises(TrainingStopped, match=r"^step 3: the rollout server is gone\. .*--resume"):
            run(tmp_path / "stopped")
    resumed, repeated = run(tmp_path / "stopped")
    assert repeated == collected[2:]
    assert resumed == alone


def test_a_group_that_was_not_scored_is_left_out_and_the_step_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, skipped = Collector._scores, list[list[bool]]()

    def some(self: Collector, sample: str, step: int, w: float) -> GroupScores:
        self.silent = step if sample == "3" else None
        return scores(self, sample, step, w)

    class Noted(Log):
        def step(self, report: Any) -> None:
            skipped.append(report.advantages.skipped.tolist())

    monkeypatch.setattr(Collector, "_scores", some)
    _, collected = run(tmp_path, log=Noted())
    assert skipped == [[sample == "3" for sample in ids] for _, ids in collected]
    assert sum(map(sum, skipped)) > 0


def test_what_is_taken_off_for_length_is_taken_off() -> None:
    """Of two captions with equal rewards the longer one is the worse."""
    overlong = OverlongConfig(weight=0.5, buffer=0.2)
    training: Any = SimpleNamespace(config=GRPOConfig(overlong=overlong), max_completion_length=100)
    failure = Failure(reason="timeout", detail="late")
    candidates = (*[CandidateScore(reward=1.0)] * 2, CandidateScore(reward=None, failure=failure))
    result: Any = SimpleNamespace(
        lengths=np.array([90, 80, 5], np.int32),
        scores=GroupScores(sample_id="a", step=0, candidates=candidates),
    )
    found = Training._advantages(training, [result])
    assert found.mean.tolist() == [1 - 0.25 / 2]
    assert found.contributes.tolist() == [[True, True, False]]
    assert found.advantages[0, 0] < 0 < found.advantages[0, 1]


def test_groups_with_a_caption_beyond_the_short_caches_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two groups one has a caption of three tokens, beside one of a single token; the other's just fit."""

    class OfAnyLength(Update):
        def fixed(self, params: Any, batches: Any, groups: Any, longest: int, **more: Any) -> FixedLogprobs:
            return super().fixed(params, batches, groups, 1, **more)

    draw, log = Collector.draw, Log()

    def longer(*given: Any) -> Any:
        drawn = draw(*given)
        for group, longest in enumerate((3, 2)):
            lengths = np.array([1, longest], np.int32)
            drawn.groups[group] = replace(drawn.groups[group], lengths=lengths)
        return drawn

    monkeypatch.setattr(Collector, "draw", longer)
    run(tmp_path / "short", log=log, update=OfAnyLength(), short_length=2)
    assert [row["rollout/outgrown"] for row in log.rows] == [0.5] * STEPS
    log = Log()
    run(tmp_path / "plain", log=log, update=OfAnyLength())
    assert all("rollout/outgrown" not in row for row in log.rows)


def test_a_step_is_told_with_what_the_judge_was_asked_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, judged = Collector.scored, list[int]()

    def asked(collector: Collector, draw: Any) -> StepRollout:
        for _ in range(draw.step + 1):
            collector.session.statistics.__self__.judgement("judge", None)
        return scored(collector, draw)

    class OfTheJudge(Log):
        def step(self, report: Any) -> None:
            judged.append(report.judge.judged)

    monkeypatch.setattr(Collector, "scored", asked)
    run(tmp_path, log=OfTheJudge())
    assert judged == [1, 2, 3, 4]


def test_a_reward_without_components_cannot_be_normalised_by_component(tmp_path: Path) -> None:
    config = GRPOConfig(advantages=AdvantageConfig(per_component=True))
    with pytest.raises(
        TrainingStopped, match=r"step 1: .*GroupScores\.weights.*, or set it to false in a new run"
    ):
        run(tmp_path, config=config)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("step", SOME_STEPS)
def test_a_step_whose_sample_cannot_be_read_is_the_only_one_repeated(
    tmp_path: Path, step: int, ahead: int
) -> None:
    alone, collected = run(tmp_path / "alone", ahead=ahead)
    seen = [identity for _, ids in collected[:step] for identity in ids]
    new = next(
        identity for identity in collected[step][1] if identity not in seen
    )  # no second pass has begun
    done = max(0, step - ahead)
    with pytest.raises(
        TrainingStopped, match=rf"^step {done + 1}: sample {new}: {new}\.png: cut\..*--resume"
    ):
        run(tmp_path / "stopped", ahead=ahead, broken=new)
    with Checkpointer(tmp_path / "stopped", read_only=True) as checkpoints:
        assert checkpoints.steps() == ([done] if done else [])
    resumed, repeated = run(tmp_path / "stopped", ahead=ahead)
    assert repeated == collected[done:]
    assert resumed == alone


@pytest.mark.parametrize("silent", SOME_STEPS)
def test_a_step_that_nothing_was_scored_in_is_the_only_one_repeated(tmp_path: Path, silent: int) -> None:
    alone, collected = run(tmp_path / "alone")
    with pytest.raises(TrainingStopped, match="429: quota used up") as stopped:
        run(tmp_path / "stopped", silent)
    assert f"step {silent + 1}: " in str(stopped.value)
    assert "--resume" in str(stopped.value)
    with Checkpointer(tmp_path / "stopped", read_only=True) as checkpoints:
        assert checkpoints.steps() == ([silent] if silent else [])
    resumed, repeated = run(tmp_path / "stopped")
    assert repeated == collected[silent:]
    assert resumed == alone


def test_rewards_that_all_failed_without_a_judge_are_not_told_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainingStopped, match=r"The judge's last failures: .*; once it answers again"):
        run(tmp_path / "asks", 0)
    monkeypatch.setattr(Collector, "asks_judge", False)
    with pytest.raises(TrainingStopped, match=r"The reward's last failures: .*; once their cause is mended,"):
        run(tmp_path / "asks-nobody", 0)


@pytest.mark.parametrize("ahead", [0, 1])
def test_parameters_that_are_no_numbers_are_neither_logged_nor_saved(tmp_path: Path, ahead: int) -> None:
    class Broken(Update):
        def __call__(self, state: TrainState, *given: Any) -> tuple[TrainState, dict]:
            state, metrics = super().__call__(state, *given)
            lost = int(state.step) == 3
            return replace(state, params={"w": state.params["w"] * (np.nan if lost else 1)}), {
                **metrics,
                "grad_norm": np.nan if lost else 1.0,
            }

    log = Log()
    with pytest.raises(NotFinite, match=r"^step 3: .* nan.* checkpoint of step 2 .*learning_rate"):
        run(tmp_path, ahead=ahead, log=log, update=Broken(), save_every=1)
    assert [row["step"] for row in log.rows] == [1, 2]
    with Checkpointer(tmp_path, read_only=True) as checkpoints:
        assert checkpoints.steps() == [1, 2]


def test_training_is_not_over_before_its_last_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes then, as an evaluation and the summary, would take hours or call the run complete."""
    train, done = Training.run, list[TrainState]()

    def full(checkpoints: Checkpointer) -> None:
        raise DiskError("no space left")

    def watched(training: Training, state: TrainState) -> TrainState:
        done.append(train(training, state))
        return done[-1]

    monkeypatch.setattr(Checkpointer, "wait", full)
    monkeypatch.setattr(Training, "run", watched)
    with pytest.raises(DiskError):
        run(tmp_path)
    assert not done


@pytest.mark.parametrize("kind", [Stopped, TrainingStopped])
@pytest.mark.parametrize("step", [0, 2, pytest.param(STEPS, marks=pytest.mark.slow)])
def test_work_between_steps_that_is_stopped_costs_no_step(
    tmp_path: Path, step: int, kind: type[BaseException]
) -> None:
    """It is given every state once, and the one that it was stopped with again."""

    def seen(states: list[tuple[int, float]], stop: int | None = None) -> Callable[[int, Any], None]:
        def work(done: int, params: Any) -> None:
            states.append((done, float(params["w"])))
            if done == stop:
                raise kind("stopped in an evaluation")

        return work

    whole: list[tuple[int, float]] = []
    parts: list[tuple[int, float]] = []
    alone, collected = run(tmp_path / "alone", between=seen(whole))
    assert [done for done, _ in whole] == list(range(STEPS + 1))
    where = f" after step {step}, which is saved" if step and kind is Stopped else ""
    with pytest.raises(kind, match=f"^stopped in an evaluation{where}$"):
        run(tmp_path / "stopped", between=seen(parts, stop=step))
    resumed, repeated = run(tmp_path / "stopped", between=seen(parts))
    assert repeated == collected[step:]
    assert resumed == alone
    assert parts == whole[: step + 1] + whole[step:]
