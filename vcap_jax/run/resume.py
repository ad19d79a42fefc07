"""What a training phase goes on from: its data, checkpoints and state, new or found again where they stopped; and what
goes along with its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from vcap_jax.data.examples import Example
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import GroupIterator, PipelineSettings
from vcap_jax.models.family import Params
from vcap_jax.report.best_checkpoint import forget_best_after
from vcap_jax.report.evaluations import forget_after
from vcap_jax.run.context import RunContext
from vcap_jax.run.evaluation import Evaluations
from vcap_jax.run.keeping_best import kept_steps
from vcap_jax.run.log import MetricsLog, SilentLog
from vcap_jax.run.profiling import StepProfiles
from vcap_jax.system.json_values import as_object
from vcap_jax.training.checkpoint import Checkpointer, HostArrays
from vcap_jax.training.optimizer import OptimizerPrograms, TrainState
from vcap_jax.training.saving import AfterKeeping

Log_co = TypeVar("Log_co", bound=MetricsLog, covariant=True)


@dataclass(frozen=True)
class Resumed(Generic[Log_co]):
    """data: at the place that ``state`` has come to. state: of the last checkpoint, or the initial one. ahead: what
    that checkpoint keeps of the next step. between: the work between steps, ``Training.between``."""

    data: GroupIterator[Example]
    checkpoints: Checkpointer
    state: TrainState
    ahead: HostArrays | None
    log: Log_co | SilentLog
    between: Callable[[int, Params], AfterKeeping]


@contextmanager
def resume(
    ctx: RunContext,
    samples: Sequence[Sample],
    programs: OptimizerPrograms,
    evaluations: Evaluations,
    log: Callable[[int], Log_co],
    *,
    judged: bool,
    groups_per_step: int,
    total_steps: int,
) -> Iterator[Resumed[Log_co]]:
    """Opens data, checkpoints and log, and says what it found. All processes must enter the context together.

    evaluations: made between steps. log: opens that of the first process, given the updates done. judged: whether a
    judge is shown the samples.
    A checkpoint may have been written by another number of processes and on another mesh.
    """
    config, folder, processes = ctx.config, ctx.folder, ctx.processes
    settings = PipelineSettings(
        batch_groups=groups_per_step,
        seed=config.seed,
        threads=config.data.reading_threads,
        prefetch=config.data.read_ahead(groups_per_step // processes.count),
        on_bad_sample=config.data.on_bad_sample,
    )
    reader = ctx.reader(judged=judged)
    with (
        closing(GroupIterator(samples, reader, settings, processes=processes)) as data,
        Checkpointer(
            folder.checkpoints,
            keep=config.logging.keep,
            stays=partial(kept_steps, folder),
            meet=processes.barrier,
        ) as checkpoints,
    ):
        state, ahead = _state(ctx, programs, data, checkpoints, total_steps)
        own = log(int(state.step)) if processes.first else SilentLog()
        say = ctx.say if processes.first else None
        profiles = StepProfiles(config.logging.profile_steps, total_steps, folder.profile, say)
        between = profiles.between(partial(evaluations.after_step, total=total_steps, log=own))
        with closing(own), profiles:
            try:
                yield Resumed(data, checkpoints, state, ahead, own, between)
            except BaseException as error:
                # Before anything is closed: the others may be waiting for this process, and closing for them.
                processes.fail(error)
                raise


def _state(
    ctx: RunContext,
    programs: OptimizerPrograms,
    data: GroupIterator[Example],
    checkpoints: Checkpointer,
    total_steps: int,
) -> tuple[TrainState, HostArrays | None]:
    """The state to go on from, with ``data`` at its place, and what its checkpoint keeps of the next step."""
    folder = ctx.folder
    state = programs.initial_state(ctx.policy.trainable, ctx.placement)
    latest = (
        ctx.processes.on_process_0("latest checkpoint", checkpoints.latest_step) if folder.resumed else None
    )
    if folder.resumed:
        _forget_later_evaluations(ctx, latest or 0, total_steps)
    ahead: HostArrays | None = None
    if latest is not None:
        ahead = checkpoints.ahead(latest)
        template = ctx.placement.abstract(state)
        del state  # A device that trains has room for one, and a plan counts no more.
        state, data_state = checkpoints.restore(template, latest)
        data.set_state(as_object(data_state, f"{folder.checkpoints}: the place in the data"))
        ctx.say(f"resuming after step {latest} of {total_steps}")
    elif folder.resumed:
        ctx.say("no checkpoint yet: training begins anew")
    return state, ahead


def _forget_later_evaluations(ctx: RunContext, done: int, total: int) -> None:
    """Steps that are done again may come out otherwise: on other devices, or with a judge that varies."""

    def forget() -> tuple[tuple[str, ...], str | None]:
        best = forget_best_after(ctx.folder, done)
        return forget_after(ctx.folder, done, total=total), None if best is None else str(best)

    gone, best = ctx.processes.on_process_0("evaluations of steps that are done again", forget)
    if gone:
        ctx.say(f"evaluations of steps after {done} are made again: {', '.join(gone)}")
    if best is not None:
        ctx.say(f"the best checkpoint was of a step after {done} and counts no more: {best}")
