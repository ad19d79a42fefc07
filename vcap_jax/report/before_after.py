"""before_after.html: a user's held-out samples before and after, side by side, sorted by gain or by loss.

One page, readable without any other file. The largest losses are as easy to find as the largest gains: a mean that has
risen says nothing of the samples that have become worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vcap_jax.report.changes import Comparison, compared
from vcap_jax.report.intervals import Value
from vcap_jax.report.pages import write_page
from vcap_jax.report.samples import SampleFrame
from vcap_jax.report.samples_page import report_templates


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
    write_page(
        path,
        report_templates(),
        "before_after.html",
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
