"""What a training phase goes on from: its data, checkpoints and state, new or found again where they stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import GroupIterator, PipelineSettings
from vcap_jax.run.context import Workplace
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.training.optimizer import OptimizerPrograms, TrainState


@dataclass(frozen=True)
class Resumed:
    """data: at the place that ``state`` has come to. state: of the last checkpoint, or the initial one."""

    data: GroupIterator
    checkpoints: Checkpointer
    state: TrainState


def resume(
    stack: ExitStack,
    place: Workplace,
    samples: Sequence[Sample],
    programs: OptimizerPrograms,
    *,
    groups_per_step: int,
    total_steps: int,
) -> Resumed:
    """Opens data and checkpoints, which ``stack`` closes, and says what it found. All processes must call it together.

    A checkpoint may have been written by another number of processes and on another mesh.
    """
    config, folder, processes = place.config, place.folder, place.processes
    settings = PipelineSettings(
        batch_groups=groups_per_step,
        seed=config.seed,
        threads=config.data.threads,
        prefetch=config.data.prefetch,
        on_bad_sample=config.data.on_bad_sample,
    )
    data = stack.enter_context(closing(GroupIterator(samples, place.load, settings, processes=processes)))
    checkpoints = stack.enter_context(Checkpointer(folder.checkpoints, keep=config.logging.keep))
    state = programs.initial_state(place.policy.trainable, place.placement)
    latest = processes.by_first("latest checkpoint", checkpoints.latest_step) if folder.resumed else None
    if latest is not None:
        state, data_state = checkpoints.restore(place.placement.abstract(state), latest)
        data.set_state(data_state)
        place.say(f"resuming after step {latest} of {total_steps}")
    elif folder.resumed:
        place.say("no checkpoint yet: training begins anew")
    return Resumed(data, checkpoints, state)
