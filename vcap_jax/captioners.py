"""A captioner from whatever holds one: a Hugging Face folder, an Orbax checkpoint folder, or a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.checkpoint import Checkpointer
from vcap_jax.config import RunConfig
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.policy import Policy, checkpoint_folder, load_policy
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.sharding import Placement


@dataclass(frozen=True, kw_only=True)
class CaptionerSource:
    """Where parameters come from.

    path: as the user named it; folder: of the checkpoint; run: it is a run; step: of a run's checkpoint.
    """

    path: str
    folder: Path
    run: bool
    step: int | None = None

    def __str__(self) -> str:
        return f"{self.path} at step {self.step}" if self.run else self.path


def captioner_source(path: str, step: int | None = None) -> CaptionerSource:
    """What ``path`` is. A run's step is ``step`` or that of its last checkpoint.

    Raises CheckpointError if a run has no such checkpoint, ConfigError for a step of something that is no run.
    """
    folder = checkpoint_folder(path)
    run = RunFolder(folder)
    if not (run.config.exists() and run.checkpoints.is_dir()):
        if step is not None:
            raise ConfigError([f"{path} is a single checkpoint, not a run: leave the step out"])
        return CaptionerSource(path=path, folder=folder, run=False)
    # Read only: the run may still be going on.
    with Checkpointer(run.checkpoints, read_only=True) as checkpoints:
        return CaptionerSource(path=path, folder=folder, run=True, step=checkpoints.existing_step(step))


def load_captioner(config: RunConfig, path: str, placement: Placement, *, step: int | None = None) -> Policy:
    """The policy at ``path``, in the precision and with the visual budget of ``config``.

    A run holds what it trained; what it froze comes from the checkpoint that it started from.
    """
    source = captioner_source(path, step)
    # Adapters belong to the model they were trained on.
    lora = config.model.lora if path == config.model.path else None
    model = dataclasses.replace(config.model, path=path, lora=lora)
    if source.run:
        theirs = load_config(RunConfig, [RunFolder(source.folder).config]).model.for_restoring()
        model = dataclasses.replace(
            theirs,
            dtype=config.model.dtype,
            param_dtype=config.model.param_dtype,
            frozen_dtype=config.model.frozen_dtype,
            attention=config.model.attention,
            remat=config.model.remat,
        )
    policy = load_policy(
        model,
        placement=placement,
        max_pixels=config.data.max_pixels,
        max_frames=config.data.max_frames,
        max_frame_tokens=config.data.max_frame_tokens,
        fps=config.data.fps,
    )
    if not source.run:
        return policy
    with Checkpointer(RunFolder(source.folder).checkpoints, read_only=True) as checkpoints:
        template = {"params": placement.abstract(policy.trainable)}
        restored, _ = checkpoints.restore(template, source.step, partial=True)
    return policy.with_trainable(restored["params"])
