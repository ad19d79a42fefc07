"""A user's held-out samples: captions scored as the run's reward scores them, so that one sees whether training helped.

What is trained on says little: a policy may have learnt its samples, or its judge's weaknesses. So the same judge, with
the same instructions and weights, scores captions of samples that were never trained on, against the same references
each time; another judge may score them beside it; and lengths, repetition and what was cut off are counted, for a
reward that grows with them has grown too easily.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from statistics import fmean
from typing import ClassVar, NoReturn

from vcap_jax.data.manifest import Sample
from vcap_jax.evals.config import JUDGED, EvaluatorConfig
from vcap_jax.evals.protocol import (
    Captioner,
    Captions,
    Evaluation,
    EvaluatorTools,
    Item,
    NothingToEvaluate,
    OwnData,
)
from vcap_jax.evals.statistics import evaluated, mean
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores, compared_with
from vcap_jax.reward.ngrams import tokens
from vcap_jax.reward.segments import Segment
from vcap_jax.reward.session import RewardSession
from vcap_jax.system.errors import VCapError
from vcap_jax.system.shutdown import Stopped

REWARD, FAILED = "reward", "judge_failed"
OTHER = "other/"
"""Before the names of what another judge gave."""
NOT_SCORED = "Not scored"
_UNDER_WAY = 32
"""Samples whose pictures are held at once."""
_LOOK_EVERY_S = 1.0
"""Between two looks at whether the run was asked to end, while scores are waited for."""
_GRAM = 4

Pending = tuple[Captions, "Future[GroupScores] | str", "Future[GroupScores] | None"]
"""Captions, and what becomes of them by the run's judge and by another; a text says why nobody was asked."""


class Judged:
    """Held-out samples, scored by the run's reward (implements ``Evaluator``).

    Values of a sample are means over its captions: ``reward`` and the reward's components by their names, over those
    that were scored; ``judge_failed``, the share that was not; ``tokens`` (model's own), ``words``; ``repetition``, the
    share of a caption's 4-grams of words that it has already had (rep-4 of Welleck et al. 2020, Neural text generation
    with unlikelihood training); ``truncated``, the share that was cut off; ``other/...`` of another judge. Metrics are
    their means over samples. A sample that nobody could caption is a failure.
    """

    name: ClassVar[str] = JUDGED
    modality: ClassVar[None] = None

    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        del config
        if tools.own is None:
            if tools.world is not None:
                raise NothingToEvaluate
            raise NothingToEvaluate(
                "nothing is held out: set data.heldout=FILE or data.heldout_share=0.02 to be told whether training "
                "has helped"
            )
        self._own = tools.own

    @property
    def own(self) -> OwnData:
        """What is evaluated."""
        return self._own

    def evaluate(self, captioner: Captioner) -> Evaluation:
        """See the class. Raises JudgeUnavailable where a judge is gone for too long, Stopped if a signal has come."""
        captions = captioner.captions(self._own.samples)
        items = tuple(self._items(captions))
        names = dict.fromkeys(name for item in items for name in item.values)
        return Evaluation(metrics=evaluated(items, {name: mean(name) for name in names}), items=items)

    def _items(self, captions: Sequence[Captions]) -> Iterator[Item]:
        """In order; few samples are under way at a time, for each holds its pictures."""
        under_way: deque[Pending] = deque()
        for index, (sample, one) in enumerate(zip(self._own.samples, captions, strict=True)):
            under_way.append(self._asked(sample, one, index))
            if len(under_way) == _UNDER_WAY:
                yield self._item(*under_way.popleft())
        while under_way:
            yield self._item(*under_way.popleft())

    def _asked(self, sample: Sample, captions: Captions, index: int) -> Pending:
        own = self._own
        if captions.failure is not None:
            return captions, captions.failure, None
        reference: str | None = None
        references: tuple[str, ...] = ()
        segments: tuple[Segment, ...] = ()
        try:
            media = own.media(sample)
            if own.references is not None:
                # Always of step 0: whatever the policy has learnt, it is compared with the same.
                reference, segments = compared_with(own.references, sample.id, seed=own.seed, step=0)
                references = own.references[sample.id].references
        except (VCapError, KeyError) as error:
            return captions, str(error.args[0] if isinstance(error, KeyError) else error), None
        group = GroupForReward(
            sample_id=sample.id,
            step=0,
            index=index,
            media=media,
            reference=reference,
            captions=captions.texts,
            references=references,
            reference_segments=segments,
        )
        other = None if own.other is None else own.other.submit(group, trained_on=False)
        return captions, own.session.submit(group, trained_on=False), other

    def _item(
        self, captions: Captions, scored: Future[GroupScores] | str, other: Future[GroupScores] | None
    ) -> Item:
        if captions.failure is not None:
            return Item(id=captions.id, captions=(), failure=captions.failure)
        values = _text_values(captions)
        if isinstance(scored, str):
            values |= {FAILED: 1.0}
            return Item(id=captions.id, captions=captions.texts, values=values, notes={NOT_SCORED: scored})
        candidates = self._result(scored, self._own.session).candidates
        values = _score_values(candidates) | values
        if other is not None and self._own.other is not None:
            theirs = self._result(other, self._own.other).candidates
            values |= {OTHER + name: value for name, value in _score_values(theirs).items()}
        return Item(id=captions.id, captions=captions.texts, values=values, notes=_notes(candidates[0]))

    def _result(self, future: Future[GroupScores], session: RewardSession) -> GroupScores:
        while not wait([future], timeout=_LOOK_EVERY_S).done:
            if self._own.stop():
                self._give_up(session)
        return future.result()

    def _give_up(self, session: RewardSession) -> NoReturn:
        # Its answers are in the store, so what has been asked is not asked again.
        gone = session.unreachable
        raise Stopped("stopped in an evaluation" + ("" if gone is None else f" while {gone}"))


def repetition(text: str) -> float:
    """The share of a text's 4-grams of words that occur earlier in it; 0 for one without any 4-gram."""
    words = tokens(text)
    grams = [tuple(words[first : first + _GRAM]) for first in range(len(words) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _score_values(candidates: Sequence[CandidateScore]) -> dict[str, float]:
    scored = [c for c in candidates if c.reward is not None]
    values: dict[str, float] = {}
    if scored:
        values[REWARD] = fmean(c.reward for c in scored if c.reward is not None)
    for name in dict.fromkeys(name for c in scored for name in c.components):
        values[name] = fmean(c.components[name] for c in scored if name in c.components)
    return values | {FAILED: 1 - len(scored) / len(candidates)}


def _text_values(captions: Captions) -> dict[str, float]:
    values: dict[str, float] = {}
    if captions.tokens:
        values["tokens"] = fmean(captions.tokens)
    values["words"] = fmean(len(tokens(text)) for text in captions.texts)
    values["repetition"] = fmean(map(repetition, captions.texts))
    if captions.truncated:
        values["truncated"] = fmean(captions.truncated)
    return values


def _notes(first: CandidateScore) -> Mapping[str, str]:
    notes = {heading: text for heading, text in first.notes.items() if text}
    if first.failure is not None:
        notes[NOT_SCORED] = f"{first.failure.reason}: {first.failure.detail}"
    return notes
