"""Samples of a run: what the policy was shown, what it wrote, how it was judged."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import pydantic
from PIL import Image

from vcap_jax.report.step_log import LogError, StepLog, StepRow, complete_rows

T = TypeVar("T")
Verdict = Literal["true", "false", "missing"]


@dataclass(frozen=True, kw_only=True)
class SampleFact:
    """A fact in words: claimed and true, claimed and false, or true and missing from the caption."""

    text: str
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class SampleFrame:
    """A picture as a data URL, with its size in pixels and, in a video, its time in seconds."""

    url: str
    width: int
    height: int
    timestamp: float | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith("data:image/"):
            raise ValueError(
                f"a frame must be a data URL of an image, so that pages need no other file: {self.url[:60]}"
            )


@dataclass(frozen=True, kw_only=True)
class SampleCandidate:
    """One caption of a group. ``reward`` is None where it could not be scored, and ``failure`` then says why.

    full_reward: the most it could be, where there is a limit. scores: the reward's components by name.
    notes: texts by their headings, such as the judge's analysis. segment: of a video, in seconds, that a part of the
    reward was judged on.
    """

    caption: str
    reward: float | None
    full_reward: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None
    advantage: float | None = None
    truncated: bool = False
    segment: tuple[float, float] | None = None
    facts: tuple[SampleFact, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One group at one step."""

    step: int
    id: str
    frames: tuple[SampleFrame, ...]
    candidates: tuple[SampleCandidate, ...]
    reference: str | None = None
    prompt: str = ""
    reference_facts: tuple[SampleFact, ...] = ()


_SAMPLE = pydantic.TypeAdapter(Sample)


def picture(pixels: np.ndarray, *, timestamp: float | None = None, longest: int = 512) -> SampleFrame:
    """A frame of uint8 [H, W, 3] pixels as a data URL, shrunk to ``longest`` pixels: PNG if small, JPEG if large."""
    image = Image.fromarray(pixels)
    image.thumbnail((longest, longest))
    content = io.BytesIO()
    if max(image.size) <= 160:
        image.save(content, "PNG", optimize=True)
        kind = "png"
    else:
        image.save(content, "JPEG", quality=82)
        kind = "jpeg"
    url = f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
    return SampleFrame(url=url, width=image.width, height=image.height, timestamp=timestamp)


def evenly(items: Sequence[T], most: int) -> Sequence[T]:
    """At most so many, evenly spaced, the first and the last included."""
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    return [items[round(i * step)] for i in range(most)]


class SamplesWriter(StepLog):
    """Appends samples to samples.jsonl, from which the page can be drawn again at any time."""

    def write(self, samples: Iterable[Sample]) -> None:
        """Appends samples of one or more steps. Raises ValueError if a step goes back."""
        self.append(_SAMPLE.dump_python(sample, mode="json") for sample in samples)


@dataclass(frozen=True)
class SampleRow:
    """A sample in a samples.jsonl, which holds its pictures: it is read when it is asked for. begin: its first byte."""

    step: int
    id: str
    path: Path
    begin: int

    def read(self) -> Sample:
        """Raises LogError for a row that is no longer there."""
        for row in complete_rows(self.path, self.begin):
            return _sample(self.path, row)
        raise LogError(
            f"{self.path}: the sample {self.id} of step {self.step} is no longer at byte {self.begin}"
        )


class SampleRows:
    """Which samples a samples.jsonl holds. Each row is read once; of a long run of videos they are a gigabyte."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._end = Path(path), 0
        self._rows: list[SampleRow] = []

    def update(self) -> Sequence[SampleRow]:
        """All, with those that were appended since. Raises LogError for a row that is not a sample."""
        for row in complete_rows(self._path, self._end):
            sample = _sample(self._path, row)
            self._rows.append(SampleRow(sample.step, sample.id, self._path, row.begin))
            self._end = row.end
        return self._rows


def _sample(path: Path, row: StepRow) -> Sample:
    try:
        return _SAMPLE.validate_python(row.values)
    except pydantic.ValidationError as error:
        raise LogError(f"{path}: a row of step {row.step} is not a sample: {error}") from error
