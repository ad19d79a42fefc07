"""before_after.html: a run's held-out samples before and after, side by side, sorted by gain or by loss.

One page, readable without any other file, drawn from the run's evaluations. The largest losses are as easy to find as
the largest gains: a mean that has risen says nothing of the samples that have become worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.judged import REWARD
from vcap_jax.evals.protocol import Item, OwnData
from vcap_jax.report.changes import Comparison, compared
from vcap_jax.report.evaluations import Results
from vcap_jax.report.intervals import Value
from vcap_jax.report.pages import write_page
from vcap_jax.report.samples import SampleCandidate, SampleFrame
from vcap_jax.report.samples_page import most_telling, report_templates
from vcap_jax.reward.aggregation import comparable
from vcap_jax.reward.group import compared_with
from vcap_jax.run.context import RunContext
from vcap_jax.run.judge_domain import domain_warning
from vcap_jax.run.observers import frames_of
from vcap_jax.system.errors import VCapError

MOST = 100
"""Samples on the page; of more, those that lost most and those that gained most."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    id: str
    before: SampleCandidate
    after: SampleCandidate
    frames: tuple[SampleFrame, ...] = ()
    prompt: str = ""
    reference: str | None = None

    @property
    def gain(self) -> float | None:
        return _gain(self.before.reward, self.after.reward)

    @property
    def words(self) -> Comparison:
        """The two captions, word by word."""
        return compared(self.before.caption, self.after.caption)


class BeforeAfterPage:
    """Draws the page of an evaluator's samples, again after every evaluation. name: of the evaluator."""

    def __init__(self, ctx: RunContext, own: OwnData, name: str) -> None:
        self._ctx, self._own, self._name = ctx, own, name
        self._frames: dict[str, tuple[SampleFrame, ...]] = {}

    def draw(self, start: Sequence[Item], now: Sequence[Item], results: Results) -> None:
        """start, now: items of the two evaluations; results: of the later one."""
        before = {item.id: item for item in start if item.failure is None}
        after = {item.id: item for item in now if item.failure is None}
        samples = {s.id: s for s in self._own.samples if s.id in before and s.id in after}
        gains = {
            name: _gain(before[name].values.get(REWARD), after[name].values.get(REWARD)) for name in samples
        }
        chosen = most_telling(gains, MOST)
        self._see([samples[name] for name in chosen])
        pairs = [self._pair(samples[name], before[name], after[name]) for name in chosen]
        write_before_after_page(
            pairs,
            self._ctx.folder.before_after_page(self._name),
            title=f"{self._ctx.folder.title}: held-out samples before and after",
            before="before training",
            after=f"after step {results.step}",
            counts=_counts(gains),
            changes=[(name, results.metrics[name], change) for name, change in results.changes.items()],
            of=len(samples),
            warning=domain_warning(self._ctx.config, self._ctx.folder),
        )

    def _see(self, chosen: Sequence[Sample]) -> None:
        """Reads the pictures that no earlier page has shown: a hundred videos take minutes, and the run waits."""
        new = [sample for sample in chosen if sample.id not in self._frames]
        with ThreadPoolExecutor(self._own.threads) as pool:
            frames = pool.map(lambda sample: shown_frames(self._own, sample), new)
            self._frames.update(zip((sample.id for sample in new), frames, strict=True))

    def _pair(self, sample: Sample, before: Item, after: Item) -> Pair:
        reference = None
        references = self._own.references
        if references is not None and sample.id in references:
            reference, _ = compared_with(references, sample.id, seed=self._own.seed, step=0)
        return Pair(
            id=sample.id,
            before=_side(before),
            after=_side(after),
            frames=self._frames[sample.id],
            prompt=sample.prompt or "",
            reference=reference,
        )


def write_before_after_page(
    pairs: Sequence[Pair],
    path: Path,
    *,
    title: str,
    before: str,
    after: str,
    counts: str,
    changes: Sequence[tuple[str, Value, Value]],
    of: int,
    warning: str | None = None,
) -> None:
    """Draws the page.

    pairs: in the order of ``most_telling``. before, after: names of the two times. counts: how many have become better
    and worse, in words. changes: metrics, their values after and how these differ from before, over the samples that
    have them both times. of: how many samples there are; the page says so if it shows fewer. warning: a line above
    everything.
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


def shown_frames(own: OwnData, sample: Sample) -> tuple[SampleFrame, ...]:
    """A sample's pictures for a page; none where they can no longer be read."""
    try:
        media: EncodedMedia = own.media(sample)
    except VCapError:  # it was captioned, and is gone since
        return ()
    return frames_of(media)


def _side(item: Item) -> SampleCandidate:
    # Shares that are usually 0 are shown where they are not.
    scores = {
        name: value
        for name, value in item.values.items()
        if name != REWARD and (value or name.rpartition("/")[2] not in ("judge_failed", "truncated"))
    }
    return SampleCandidate(
        caption=item.captions[0], reward=item.values.get(REWARD), scores=scores, notes=item.notes
    )


def _gain(before: float | None, after: float | None) -> float | None:
    """Of two rewards; 0 where only the rounding of their sums differs. None unless both were scored."""
    return None if before is None or after is None else comparable(after - before)


def _counts(gains: Mapping[str, float | None]) -> str:
    scored = [gain for gain in gains.values() if gain is not None]
    better, worse = sum(gain > 0 for gain in scored), sum(gain < 0 for gain in scored)
    text = f"{better} better, {worse} worse, {len(scored) - better - worse} equal by reward"
    if len(scored) < len(gains):
        text += f", {len(gains) - len(scored)} not scored both times"
    return text
