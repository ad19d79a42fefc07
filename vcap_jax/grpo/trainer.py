"""The trainer: one linear loop of draw, score, advantage, update, log, save.

What a step does depends on the configuration, the state, the step number and the place in the data
alone. All four are in a checkpoint. So a run that was killed and resumed ends bit for bit like one
that was left alone. With ``rollout.ahead`` a step depends on the state before the last update as well;
in a checkpoint is what came of that: the captions that are drawn already. If the step's samples cannot
be read as they were, as a file has gone meanwhile, they are drawn anew.

Each of several processes goes through this loop. They exchange what they know at four points: when a
step's samples are read, when its captions are drawn, when they are scored, and when it ends; and they
meet before a checkpoint. Whatever makes one of them stop makes all stop at that point, with the same
state saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import jax
import numpy as np

from vcap_jax.data.errors import MediaError, NoUsableSamplesError, StorageError
from vcap_jax.data.examples import Example
from vcap_jax.data.pipeline import GroupBatch, GroupIterator
from vcap_jax.grpo.advantages import (
    GroupAdvantages,
    component_advantages,
    group_advantages,
    overlong_penalty,
)
from vcap_jax.grpo.ahead import KnownStep, kept_step, known_step
from vcap_jax.grpo.collect import Collector, StepDraw
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.gather import StepNotDone, end_of_step, longest_of_all, outcome_of_all
from vcap_jax.grpo.records import (
    GroupResult,
    NoComponents,
    StepOutcome,
    StepReport,
    StepRollout,
    weighted_components,
)
from vcap_jax.grpo.update import FixedLogprobs, StepUpdate
from vcap_jax.grpo.waiting import WaitingState, nothing_taken
from vcap_jax.models.policy import Params
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.reward.errors import FamilyError, JudgeUnavailable
from vcap_jax.reward.store import StoreError
from vcap_jax.rollout.config import Offloaded
from vcap_jax.rollout.engine import RolloutError
from vcap_jax.system.shutdown import TrainingStopped, finishing, requested
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError, HostArrays
from vcap_jax.training.compile_counter import CompileCounter
from vcap_jax.training.optimizer import TrainState
from vcap_jax.training.saving import (
    AfterKeeping,
    Place,
    between_steps,
    check_finite,
    no_work,
    save_before,
    save_step,
    stopped_in,
)


class Log(Protocol):
    """Where a run tells what it does."""

    def message(self, text: str) -> None:
        """Something the user should know."""

    def step(self, report: StepReport) -> None:
        """A step has ended; its checkpoint follows."""


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """A step whose captions are with the judge.

    place: the run's before it. age: how many steps' updates the weights that drew it lack. data_seconds: of waiting for
    its samples. seconds: of beginning what the update holds fixed.
    """

    place: Place
    draw: StepDraw
    fixed: FixedLogprobs
    age: int
    skipped_samples: int
    data_seconds: float
    seconds: float


@dataclass(frozen=True)
class Training:
    """Everything a run is made of; ``run`` goes through the steps.

    max_completion_length: tokens of a caption at most. own_params: the trained parameters as this process's devices
    decode with them. give_up: frees them, once captions are drawn with a copy. save_every: steps between checkpoints.
    between: is given the steps done and the trained parameters after each step, and where a run goes on, for work that
    leaves them as they are; all processes do it together. What it returns is called once these parameters' checkpoint
    is complete. ahead: steps that captions are drawn ahead, 0 or, for one process, 1. saved_draw: what the checkpoint
    that the run goes on from keeps of them. short_length: tokens that short caches hold
    (``RolloutConfig.short_length``), 0 where there are none. offload, taken: what waits in the host's memory while
    captions are drawn, and what cannot (``WaitingState``).
    """

    config: GRPOConfig
    max_completion_length: int
    total_steps: int
    data: GroupIterator[Example]
    collector: Collector
    update: StepUpdate
    own_params: Callable[[Params], Params]
    give_up: Callable[[Params], None]
    checkpoints: Checkpointer
    save_every: int
    log: Log
    processes: Processes = ALONE
    between: Callable[[int, Params], AfterKeeping] = no_work
    ahead: int = 0
    saved_draw: HostArrays | None = None
    short_length: int = 0
    offload: tuple[Offloaded, ...] = ()
    taken: Callable[[Params], Iterable[jax.Array]] = nothing_taken

    def run(self, state: TrainState) -> TrainState:
        """Trains from ``state`` (donated) to the last step and saves; returns the final state, whose parameters are on
        the devices.

        Raises TrainingStopped when data, rollout engine, judge, store or reward family cannot be used
        any more, or when nothing was scored in a step; Stopped after a signal. What was done is saved
        before. Raises NotFinite if the parameters have become no numbers, PeerFailed if another
        process ends, and CheckpointError if the checkpoint that it goes on from lacks the captions
        drawn ahead.
        """
        compiles, held = CompileCounter(), WaitingState(state, self.offload, self.taken)
        with compiles, finishing("the step in work"):
            done = int(held.state.step) // self.config.num_iterations
            resumed_draw = self._resumed_draw(done)
            place = Place(self.data.get_state(), lambda: self.saved_draw)
            # An earlier start may have been stopped in it.
            between_steps(self.between, self.checkpoints, done, held.state, place)
            upcoming: _Drawn | None = None  # with ``ahead``, of step + 1, drawn before this step's update
            for step in range(done, self.total_steps):
                begin = time.monotonic()
                compiled = compiles.count
                judge_before = self.collector.session.statistics()
                try:
                    now = upcoming or self._drawn(held, step, resumed_draw)
                    resumed_draw = upcoming = None
                    if self.ahead and step + 1 < self.total_steps:
                        upcoming = self._drawn(held, step + 1)
                    # While the judge gives its last answers.
                    held.due()
                    rollout, outcome = self._scored(now.draw)
                except (StepNotDone, NoComponents) as error:
                    save_before(self.checkpoints, step, held.state, place)
                    raise stopped_in(step, error) from (error.__cause__ or error)
                advantages = self._advantages(outcome.results)
                if advantages.skipped.all():
                    save_before(self.checkpoints, step, held.state, place)
                    self._stop_without_rewards(outcome, step)
                update_begin = time.monotonic()
                lengths = np.stack([result.lengths for result in outcome.results])
                state, update_metrics = self.update(held.state, rollout, lengths, advantages, now.fixed)
                held.updated(state)
                check_finite(update_metrics.get("grad_norm", 0.0), self.checkpoints, step + 1)
                update_seconds = now.seconds + time.monotonic() - update_begin
                place = Place(self.data.get_state()) if upcoming is None else upcoming.place
                drawing: dict[str, float] = {"rollout/age": now.age} if self.ahead else {}
                if self.short_length:
                    drawing["rollout/outgrown"] = float((lengths.max(-1) > self.short_length).mean())
                judge, stop = end_of_step(
                    self.processes,
                    self.collector.session.statistics().since(judge_before),
                    requested(),
                )
                self.log.step(
                    StepReport(
                        step=step + 1,
                        records=rollout.records,
                        outcome=outcome,
                        advantages=advantages,
                        update={**rollout.measured, **drawing, **update_metrics},
                        judge=judge,
                        skipped_samples=now.skipped_samples,
                        data_seconds=now.data_seconds,
                        update_seconds=update_seconds,
                        step_seconds=time.monotonic() - begin,
                        compiles=compiles.count - compiled,
                    )
                )
                save_step(
                    self.checkpoints,
                    step + 1,
                    self.total_steps,
                    held.state,
                    place,
                    every=self.save_every,
                    stop=stop,
                )
                # What the step has on the devices goes before the next one's pictures and prompts come.
                del now, rollout, outcome, advantages
                between_steps(self.between, self.checkpoints, step + 1, held.state, place)
            self.checkpoints.wait()
        return held.state

    def _resumed_draw(self, done: int) -> KnownStep | None:
        """The step after ``done`` ones, if it was drawn ahead by an earlier start. Raises CheckpointError."""
        if self.saved_draw is not None:
            return known_step(self.saved_draw)
        if self.ahead and 0 < done < self.total_steps:
            raise CheckpointError(
                f"{self.checkpoints.folder / str(done)} lacks the captions of step {done + 1}, which rollout.ahead has "
                "drawn before it was written: resume from another checkpoint, or start a new run folder"
            )
        return None

    def _drawn(self, held: WaitingState, step: int, resumed_draw: KnownStep | None = None) -> _Drawn:
        """The next samples' captions, of step ``step``, with the judge; judged, if the judge takes turns. resumed_draw:
        those that an earlier start has drawn ahead; None draws them with the state that is held. Raises StepNotDone.
        """
        place, begin = Place(self.data.get_state()), time.monotonic()
        try:
            batch = next(self.data)
        except (MediaError, NoUsableSamplesError, StorageError) as error:  # in all processes alike
            raise StepNotDone(str(error)) from error
        data_seconds = time.monotonic() - begin
        for bad in batch.skipped:
            self.log.message(str(bad))
        resumed_draw = self._if_of_these(resumed_draw, batch, step)
        groups, old = (None, None) if resumed_draw is None else (resumed_draw.groups, resumed_draw.old)
        draw: StepDraw | Exception
        own = self.own_params(held.state.params)

        def make_room() -> None:
            held.make_room()
            self.give_up(own)

        try:
            draw = self.collector.draw(own, batch, step, groups, make_room)
            draw = self.collector.judged(draw)
        except (RolloutError, JudgeUnavailable) as error:
            draw = error
        held.drawn()
        longest = longest_of_all(self.processes, draw if isinstance(draw, Exception) else draw.groups)
        assert not isinstance(draw, Exception)  # or the problem would have been told
        begin = time.monotonic()
        fixed = self.update.fixed(
            held.state.params, draw.batches, draw.groups, longest, ahead=self.ahead > 0, old=old
        )
        seconds = time.monotonic() - begin
        if self.ahead:
            place = replace(place, ahead=partial(kept_step, draw.batches, draw.groups, fixed.old))
        drawn_after = int(held.state.step) // self.config.num_iterations - (resumed_draw is not None)
        return _Drawn(
            place=place,
            draw=draw,
            fixed=fixed,
            age=step - drawn_after,
            skipped_samples=self.data.skipped_total,
            data_seconds=data_seconds,
            seconds=seconds,
        )

    def _if_of_these(
        self, resumed: KnownStep | None, batch: GroupBatch[Example], step: int
    ) -> KnownStep | None:
        """``resumed`` if its captions are of the samples that were read, in all processes; else None, which is said.
        The weights that drew it are gone, so that nothing else can be done for the samples that are there now."""
        if resumed is None:
            return None
        told = self.processes.all_gather_objects("samples drawn ahead", resumed.others_than(batch))
        others = [identity for share in told for identity in share]
        if not others:
            return resumed
        self.log.message(
            f"step {step + 1}: the captions that were drawn ahead are of other samples than are read now (such as "
            f"{others[0]}: a file is gone, or is there again). The step is drawn anew, by the policy as it is now"
        )
        return None

    def _scored(self, draw: StepDraw) -> tuple[StepRollout, StepOutcome]:
        """This process's groups, and what all need to know of everybody's. Raises StepNotDone and NoComponents."""
        rollout: StepRollout | Exception
        try:
            rollout = self.collector.scored(draw)
        except (JudgeUnavailable, FamilyError, StoreError) as error:
            rollout = error
        outcome = outcome_of_all(self.processes, rollout)
        if self.config.advantages.per_component:
            weighted_components(outcome.results)
        assert not isinstance(rollout, Exception)  # or the problem would have been told
        return rollout, outcome

    def _advantages(self, results: Sequence[GroupResult]) -> GroupAdvantages:
        rewards = np.array(
            [[np.nan if r is None else r for r in result.scores.rewards] for result in results]
        )
        lengths = np.stack([result.lengths for result in results])
        rewards = rewards + overlong_penalty(lengths, self.max_completion_length, self.config.overlong)
        valid, config = np.isfinite(rewards), self.config.advantages
        if config.per_component:
            return component_advantages(rewards, *weighted_components(results), valid, config)
        return group_advantages(rewards, valid, config)

    def _stop_without_rewards(self, outcome: StepOutcome, step: int) -> None:
        failures = [c.failure for result in outcome.results for c in result.scores.candidates if c.failure]
        shown = "; ".join(dict.fromkeys(f"{f.reason}: {f.detail}" for f in failures[:3]))
        asks = self.collector.session.asks_judge
        whose, mended = ("judge", "it answers again") if asks else ("reward", "their cause is mended")
        raise TrainingStopped(
            f"step {step + 1}: no group has two scored candidates, so there is nothing to learn from. "
            f"The {whose}'s last failures: {shown or 'none'}. The {step} steps before it are saved; once {mended}, "
            "continue with --resume"
        )
