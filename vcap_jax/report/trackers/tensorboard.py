"""Event files for TensorBoard, in ``RUN/tensorboard``, written by tensorboardX."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from PIL import Image

from vcap_jax.report.trackers.protocol import TrackedRun

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Implements ``Tracker``. A resumed run writes another file, which tells TensorBoard to drop the steps that are
    done again."""

    rewinds: ClassVar[bool] = True

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(
            str(run.folder / FOLDER),
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
