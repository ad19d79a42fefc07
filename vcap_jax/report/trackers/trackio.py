"""trackio: a local database that ``trackio show`` opens as a page; no account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from PIL import Image

from vcap_jax.report.trackers.protocol import TrackedRun


class TrackioTracker:
    """Implements ``Tracker``. trackio knows runs by their names, so the id is part of it."""

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
