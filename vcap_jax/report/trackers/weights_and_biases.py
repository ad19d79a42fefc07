"""Weights & Biases: online, or offline with WANDB_MODE=offline and ``wandb sync`` later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from PIL import Image

from vcap_jax.report.trackers.protocol import TrackedRun

STEP = "train/global_step"
"""The axis of all panels: W&B's own counter never goes back and knows nothing of a run that is resumed."""


class WandbTracker:
    """Implements ``Tracker``. A resumed run goes on under its id."""

    rewinds: ClassVar[bool] = False

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._image = wandb.Image
        self._run = wandb.init(
            project=run.project,
            group=run.group,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            settings=wandb.Settings(console="off"),  # the terminal is the run's own
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, STEP: step})

    def picture(self, step: int, name: str, picture: Image.Image, text: str) -> None:
        self._run.log({name: self._image(picture, caption=text), STEP: step})

    def flush(self) -> None:
        """Nothing: a process of its own sends what was given."""

    def close(self) -> None:
        self._run.finish()
