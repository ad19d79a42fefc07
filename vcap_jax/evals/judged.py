"""A user's held-out samples: captions scored as the run's reward scores them, so that one sees whether training helped.

What is trained on says little: a policy may have learnt its samples, or its judge's weaknesses. So the same judge, with
the same instructions and weights, scores captions of samples that were never trained on, against the same references
each time; another judge may score them beside it; and lengths, repetition and what was cut off are counted, for a
reward that grows with them has grown too easily.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import ClassVar

from vcap_jax.data.holding_out import shown_together
from vcap_jax.evals.config import JUDGED, EvaluatorConfig
from vcap_jax.evals.protocol import Captioner, Captions, Evaluation, EvaluatorTools, Item, NothingToEvaluate
from vcap_jax.evals.scoring import Scored, scored
from vcap_jax.evals.statistics import evaluated, mean
from vcap_jax.reward.group import CandidateScore
from vcap_jax.reward.ngrams import tokens

REWARD, FAILED = "reward", "judge_failed"
_REPETITION, _TRUNCATED = "repetition", "truncated"
_SHARES = (FAILED, _REPETITION, _TRUNCATED)
"""What is a share whatever the reward; of its components nobody says what they are."""
OTHER = "other/"
"""Before the names of what another judge gave."""
NOT_SCORED = "Not scored"
_GRAM = 4


class Judged:
    """Held-out samples, scored by the run's reward (implements ``Evaluator``).

    Values of a sample are means over its captions: ``reward`` and the reward's components by their names, over those
    that were scored; ``judge_failed``, the share that was not; ``tokens`` (model's own), ``words``; ``repetition``, the
    share of a caption's 4-grams of words that it has already had (rep-4 of Welleck et al. 2020, Neural text generation
    with unlikelihood training); ``truncated``, the share that was cut off; ``other/...`` of another judge. Metrics are
    their means over samples. A sample that nobody could caption is a failure. Samples of one picture or video are drawn
    together.
    """

    name: ClassVar[str] = JUDGED
    modality: ClassVar[None] = None

    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        if tools.own is None:
            if tools.world is not None:
                raise NothingToEvaluate
            raise NothingToEvaluate(
                "nothing is held out: set data.heldout=FILE or data.heldout_share=0.02 to be told whether training "
                "has helped"
            )
        self._own = tools.own

    @cached_property
    def _of(self) -> Mapping[str, str]:
        return shown_together(self._own.samples)

    def evaluate(self, captioner: Captioner) -> Evaluation:
        """See the class. Raises JudgeUnavailable where a judge is gone for too long, Stopped if a signal has come."""
        captions = captioner.captions(self._own.samples)
        found = scored(self._own, captions)
        return evaluation(judged_item(one, self._of.get(one.captions.id)) for one in found)


def evaluation(items: Iterable[Item]) -> Evaluation:
    """The means over ``judged_item``s, with their intervals."""
    items = tuple(items)
    names = dict.fromkeys(name for item in items for name in item.values)
    return Evaluation(
        metrics=evaluated(items, {name: mean(name) for name in names}),
        items=items,
        shares=tuple(name for name in names if name.removeprefix(OTHER) in _SHARES),
    )


def judged_item(scored: Scored, of: str | None = None) -> Item:
    """The values of a sample, see ``Judged``; a failure where nobody could caption it. of: see ``Item``."""
    captions = scored.captions
    if captions.failure is not None:
        return Item(id=captions.id, captions=(), failure=captions.failure, of=of)
    values = _text_values(captions)
    if scored.scores is None:
        notes = {NOT_SCORED: str(scored.unasked)}
        return Item(
            id=captions.id, captions=captions.texts, values=values | {FAILED: 1.0}, notes=notes, of=of
        )
    candidates = scored.scores.candidates
    values = _score_values(candidates) | values
    if scored.other is not None:
        values |= {OTHER + name: value for name, value in _score_values(scored.other.candidates).items()}
    return Item(id=captions.id, captions=captions.texts, values=values, notes=_notes(candidates[0]), of=of)


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
    values[_REPETITION] = fmean(map(repetition, captions.texts))
    if captions.truncated:
        values[_TRUNCATED] = fmean(captions.truncated)
    return values


def _notes(first: CandidateScore) -> Mapping[str, str]:
    notes = {heading: text for heading, text in first.notes.items() if text}
    if first.failure is not None:
        notes[NOT_SCORED] = str(first.failure)
    return notes
