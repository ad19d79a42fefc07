"""before_after.html: a user's held-out samples before and after, side by side, sorted by gain or by loss.

One page, readable without any other file. The largest losses are as easy to find as the largest gains: a mean that has
risen says nothing of the samples that have become worse.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from vcap_jax.report.changes import Comparison, compared
from vcap_jax.report.intervals import Value
from vcap_jax.report.samples import SampleFrame
from vcap_jax.report.samples_page import report_templates
from vcap_jax.report.step_log import replace_file


@dataclass(frozen=True, kw_only=True)
class Side:
    """A sample at one time. reward: None where it was not scored. scores: what the reward is made of, and what was
    counted; notes: texts by their headings."""

    caption: str
    reward: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A sample before and after."""

    id: str
    before: Side
    after: Side
    frames: tuple[SampleFrame, ...] = ()
    prompt: str = ""
    reference: str | None = None

    @property
    def gain(self) -> float | None:
        """In reward; None unless both were scored."""
        if self.before.reward is None or self.after.reward is None:
            return None
        return self.after.reward - self.before.reward

    @property
    def words(self) -> Comparison:
        """The two captions, word by word."""
        return compared(self.before.caption, self.after.caption)


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """A metric of all samples after, and how it differs from before, over the samples that have it both times."""

    name: str
    after: Value
    change: Value


def most_telling(gains: Mapping[str, float | None], most: int) -> list[str]:
    """At most ``most`` samples, half of them for their losses and half for their gains, then those without a score.

    gains: by sample. In order: the largest loss first, the largest gain last, those without a score behind.
    """
    scored = sorted((gain, name) for name, gain in gains.items() if gain is not None)
    if len(scored) > most:
        half = most // 2
        scored = scored[:half] + scored[len(scored) - (most - half) :]
    unscored = [name for name, gain in gains.items() if gain is None]
    return [name for _, name in scored] + unscored[: most - len(scored)]


def write_before_after_page(
    pairs: Sequence[Pair],
    path: Path,
    *,
    title: str,
    before: str,
    after: str,
    counts: str,
    changes: Sequence[MetricChange],
    of: int,
    warning: str | None = None,
) -> None:
    """Draws the page.

    pairs: in the order of ``most_telling``. before, after: names of the two times. counts: how many have become better
    and worse, in words; changes: of the metrics; both over all samples. of: how many these are; the page says so if it
    shows fewer. warning: a line above everything.
    """
    gains = [pair.gain for pair in pairs if pair.gain is not None]
    page = _template().render(
        title=title,
        pairs=pairs,
        before=before,
        after=after,
        counts=counts,
        changes=changes,
        of=of,
        warning=warning,
        largest=max((abs(gain) for gain in gains), default=0.0) or 1.0,
    )
    replace_file(path, page.encode())


@functools.cache
def _template() -> jinja2.Template:
    return report_templates().get_template("before_after.html")
