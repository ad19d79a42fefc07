"""The page of ``launch/score.py``: which samples it shows, and how they come to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vcap_jax.evals.judged import REWARD
from vcap_jax.evals.protocol import Item, OwnData
from vcap_jax.evals.scoring import Scored
from vcap_jax.report.intervals import Value
from vcap_jax.report.samples import SampleCandidate
from vcap_jax.report.samples_page import RewardedSample, most_telling, write_rewards_page
from vcap_jax.reward.group import compared_with
from vcap_jax.run.before_after import shown_frames

MOST = 100
"""Samples on the page; of more, those with the lowest and the highest rewards."""


class RewardsPage:
    """Takes scored samples as they come and holds those that the page will show, whatever their number."""

    def __init__(self, own: OwnData, most: int = MOST) -> None:
        self._own, self._most = own, most
        self._held: dict[str, tuple[Scored, float | None]] = {}
        self._count = 0

    def add(self, scored: Scored, item: Item) -> None:
        """item: ``judged_item(scored)``."""
        self._count += 1
        self._held[item.id] = scored, item.values.get(REWARD)
        if len(self._held) > 4 * self._most:
            self._held = self._telling()

    def draw(self, path: Path, *, title: str, metrics: Mapping[str, Value], warning: str | None) -> None:
        """metrics: over all samples. warning: a line above everything."""
        samples = {sample.id: sample for sample in self._own.samples}
        shown = []
        for name, (scored, reward) in self._telling().items():
            reference = None
            if self._own.references is not None:
                reference, _ = compared_with(self._own.references, name, seed=self._own.seed, step=0)
            shown.append(
                RewardedSample(
                    id=name,
                    reward=reward,
                    candidates=_candidates(scored),
                    frames=shown_frames(self._own, samples[name]),
                    reference=reference,
                )
            )
        write_rewards_page(shown, path, title=title, metrics=metrics, of=self._count, warning=warning)

    def _telling(self) -> dict[str, tuple[Scored, float | None]]:
        rewards = {name: reward for name, (_, reward) in self._held.items()}
        return {name: self._held[name] for name in most_telling(rewards, self._most)}


def _candidates(scored: Scored) -> tuple[SampleCandidate, ...]:
    if scored.scores is None:
        return tuple(
            SampleCandidate(caption=text, reward=None, failure=scored.unasked)
            for text in scored.captions.texts
        )
    window = scored.scores.window
    return tuple(
        SampleCandidate(
            caption=text,
            reward=one.reward,
            full_reward=scored.scores.full_reward,
            scores=dict(one.components),
            notes=dict(one.notes),
            failure=None if one.failure is None else str(one.failure),
            segment=None if window is None else (window.start, window.end),
        )
        for text, one in zip(scored.captions.texts, scored.scores.candidates, strict=True)
    )
