"""rewards.html: captions with their rewards, the lowest and the highest, readable without any other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.report.intervals import Value
from vcap_jax.report.pages import write_page
from vcap_jax.report.samples import SampleCandidate, SampleFrame
from vcap_jax.report.samples_page import report_templates


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
