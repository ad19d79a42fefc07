"""Pages that are readable without any other file: samples.html of what the policy wrote and how it was judged,
rewards.html of captions with the lowest and the highest rewards."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np

from vcap_jax.report.changes import Change, by_reward, change
from vcap_jax.report.intervals import Value
from vcap_jax.report.pages import page_templates, write_page
from vcap_jax.report.samples import Sample, SampleCandidate, SampleFrame, SampleRow
from vcap_jax.system.words import word_count

# Displayed sizes in CSS pixels: a lone picture, and a frame among others.
_PICTURE, _FRAME = 288, 132


def write_samples_page(
    samples: Sequence[SampleRow],
    path: str | Path,
    *,
    title: str = "Samples",
    warning: str | None = None,
    limit: int = 150,
) -> None:
    """Draws the page of a run's samples, grouped by step, the last step shown first.

    What is shown again is laid beside what it was when it was first shown. warning: a line above everything.
    Of more than ``limit`` samples, those of evenly spaced steps are kept, first and last step included; the others are
    not read.
    """
    # Before any are left out: the first time may be among those.
    first: dict[str, SampleRow] = {}
    for sample in samples:
        first.setdefault(sample.id, sample)
    chosen = spread_over_steps(samples, limit)
    write_page(
        Path(path),
        report_templates(),
        "samples.html",
        title=title,
        warning=warning,
        shown=[_with_change(first[sample.id], sample) for sample in chosen],
        names=len({sample.id for sample in chosen}),
        steps=sorted({sample.step for sample in chosen}),
    )


def _with_change(then: SampleRow, row: SampleRow) -> tuple[Sample, Change | None]:
    """A sample, and what has changed since the step at which it was first shown; None for that step itself."""
    sample = row.read()
    return sample, None if then.step == row.step else change(then.read(), sample)


def spread_over_steps(samples: Sequence[SampleRow], limit: int) -> Sequence[SampleRow]:
    """At most about ``limit`` samples, whole steps only, evenly spaced from the first step to the last."""
    steps = sorted({sample.step for sample in samples})
    if len(samples) <= limit or len(steps) <= 2:
        return samples
    count = max(2, limit * len(steps) // len(samples))
    kept = {steps[i] for i in np.linspace(0, len(steps) - 1, count).round().astype(int)}
    return [sample for sample in samples if sample.step in kept]


def most_telling(values: Mapping[str, float | None], most: int) -> list[str]:
    """At most ``most`` samples: half of them those of the lowest values, half the highest, then those without a value.

    values: by sample, such as gains or rewards. In order: the lowest first, the highest last, those without one behind.
    """
    known = sorted((value, name) for name, value in values.items() if value is not None)
    if len(known) > most:
        half = most // 2
        known = known[:half] + known[len(known) - (most - half) :]
    unknown = [name for name, value in values.items() if value is None]
    return [name for _, name in known] + unknown[: most - len(known)]


@dataclass(frozen=True, kw_only=True)
class RewardedSample:
    """A sample with its captions. reward: the mean over those that were scored, None if none was. frames: empty if its
    pictures cannot be read any more."""

    id: str
    reward: float | None
    candidates: tuple[SampleCandidate, ...]
    frames: tuple[SampleFrame, ...] = ()
    reference: str | None = None


def write_rewards_page(
    shown: Sequence[RewardedSample],
    path: Path,
    *,
    title: str,
    metrics: Mapping[str, Value],
    of: int,
    warning: str | None = None,
) -> None:
    """Draws the page.

    shown: in the order of ``most_telling``, the lowest reward first. metrics: means over all samples, of which there
    are ``of``; the page says so if it shows fewer. warning: a line above everything.
    """
    values = {"title": title, "shown": shown, "metrics": metrics, "of": of, "warning": warning}
    write_page(path, report_templates(), "rewards.html", **values)


def _shown_width(frame: SampleFrame, alone: bool) -> int:
    """Small pictures grow by a whole factor, so that every pixel stays square; large ones shrink."""
    room = _PICTURE if alone else _FRAME
    if frame.width > room:
        return room
    return frame.width * max(1, room // max(frame.width, frame.height))


def _number(value: float, form: str) -> str:
    """A dash where nothing could be measured."""
    return "–" if math.isnan(value) else form % value


@functools.cache
def report_templates() -> jinja2.Environment:
    """The templates of this room's pages, and what they share (macros.html)."""
    environment = page_templates("vcap_jax.report")
    environment.globals["shown_width"] = _shown_width
    environment.filters.update(by_reward=by_reward, word_count=word_count, number=_number)
    return environment
