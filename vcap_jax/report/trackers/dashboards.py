"""What a tracker is, and the three that there are. Each imports its package when a run uses it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from PIL import Image

STEP = "train/global_step"
"""The axis of all panels in W&B, whose own counter never goes back and knows nothing of a run that is resumed."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """name: for people. id: never that of another run; it is kept in the run folder, so that a resumed run goes on in
    the same place. folder: of the run. config: its settings. steps: those that the tracker has already."""

    name: str
    id: str
    project: str
    group: str | None
    folder: Path
    config: Mapping[str, object]
    steps: int = 0


class Tracker(Protocol):
    """A run in a dashboard, open. Whatever fails raises; the run goes on without it.

    rewinds: whether what it has of steps after ``TrackedRun.steps`` is replaced when they are logged again. One that
    does not is never given a step twice.
    """

    rewinds: ClassVar[bool]

    def __init__(self, run: TrackedRun) -> None: ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step."""

    def picture(self, step: int, name: str, picture: Image.Image, text: str) -> None:
        """A sample: its picture and, in Markdown, what was written about it. name: of the place that it is shown in."""

    def flush(self) -> None:
        """What was given is safe from a kill of this process, as far as the tracker can."""

    def close(self) -> None:
        """Ends it; waits for what is still sent."""


class TensorBoardTracker:
    """Event files in ``RUN/tensorboard``, written by tensorboardX. A resumed run writes another file, which tells
    TensorBoard to drop the steps that are done again."""

    rewinds: ClassVar[bool] = True

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(
            str(run.folder / "tensorboard"),
            # Also before any step counts: a start that was killed before its first checkpoint has left some.
            purge_step=run.steps + 1,
            # The name has the time in seconds alone, and a file of the same name would be replaced.
            filename_suffix=f".{secrets.token_hex(4)}",
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, step: int, name: str, picture: Image.Image, text: str) -> None:
        self._writer.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")
        self._writer.add_text(name, text, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """Weights & Biases: online, or offline with WANDB_MODE=offline and ``wandb sync`` later. A resumed run goes on
    under its id."""

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


class TrackioTracker:
    """A local database that ``trackio show`` opens as a page; no account. It knows runs by their names, so the id is
    part of it."""

    rewinds: ClassVar[bool] = False

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._image, self._markdown = trackio.Image, trackio.Markdown
        self._run = trackio.init(
            project=run.project,
            name=f"{run.name}-{run.id}",
            group=run.group,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def picture(self, step: int, name: str, picture: Image.Image, text: str) -> None:
        self._run.log({name: self._image(picture, caption=text)}, step=step)

    def flush(self) -> None:
        """Nothing: a thread of its own writes what was given."""

    def close(self) -> None:
        self._run.finish()
