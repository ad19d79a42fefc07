"""A captioner for tests that need no model: it reads the files as the real ones do, and says what it read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from PIL import Image

from vcap_jax.captioning.engines import Drawing, Part, Pixels, drawn_by, opened
from vcap_jax.captioning.settings import ASKING
from vcap_jax.data.errors import MediaError
from vcap_jax.data.pipeline import BadSample
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.system.json_values import JsonDict


class ReadingEngine:
    """Says a picture's size and mean (implements ``Engine``).

    batches: the indices of every part, in order. before: called before each caption.
    """

    asking: tuple[str, ...] = ASKING
    alike = True

    def __init__(self, name: str = "a reader", before: Callable[[int], None] = lambda index: None) -> None:
        self.config, self.name = RunConfig(), name
        self.batches: list[list[int]] = []
        self.closed = False
        self._before = before

    def weights(self) -> str | None:
        return f"weights of {self.name}"

    def rollout(self, drawing: Drawing, inputs: int) -> RolloutConfig:
        return drawn_by(self.config, drawing, drawing.groups or 1)

    def rules(self, rollout: RolloutConfig) -> JsonDict:
        return asdict(rollout.sampling)

    def shown(self) -> JsonDict:
        return {}

    def captions(
        self, parts: Iterable[Part], rollout: RolloutConfig, *, seed: int, pixels: Pixels
    ) -> Iterator[Captioned | BadSample]:
        for part in parts:
            assert len({sample.id for sample in part.samples}) == len(part.samples)
            self.batches.append(list(part.indices))
            for sample, index in zip(part.samples, part.indices, strict=True):
                self._before(index)
                try:
                    seen = [self._said(path, pixels) for path in sample.files]
                except MediaError as error:
                    yield BadSample(id=sample.id, reason=str(error))
                    continue
                count = rollout.group_size
                texts = tuple(f"{seen} {sample.prompt or ''} {index}/{seed}/{k}" for k in range(count))
                yield Captioned(sample, texts, (3,) * count, (False,) * count)

    def _said(self, path: Path, pixels: Pixels) -> str:
        if path.suffix == ".mp4":
            return f"clip {path.name}"
        picture = opened(pixels, path)
        return f"{picture.shape} {picture.mean():.1f}"

    def close(self) -> None:
        self.closed = True


def write_pictures(folder: Path, count: int) -> list[Path]:
    """PNG files of different sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:03d}.png" for index in range(count)]
    for index, path in enumerate(paths):
        Image.new("RGB", (8 + 7 * index % 20, 9), (index, 2 * index, 40)).save(path)
    return paths
