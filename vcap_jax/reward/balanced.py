"""The balanced family, after BalCapRL (arXiv 2605.07394): precision, recall and text quality beside each other.

The judge splits the candidate into claims and the reference into units and settles each of them: precision is the share
of the claims that are true and can be pointed at, recall the share of the units that the caption covers. The text's
quality, the mean of clarity, fluency and coherence, counts only for captions whose length is near the reference's. One
question for each candidate, over the whole picture or video, where the published method asks several; the rest of it is
a setting of the update: ``grpo.advantages.per_component`` normalises each component over the group alone
(``configs/rewards/balanced.yaml``). The published weights of the components are not known; by default they are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic
from pydantic import Field

from vcap_jax.reward.config import BalancedConfig, RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore
from vcap_jax.reward.judge_query import Form
from vcap_jax.reward.one_question import AS_ASKED, OneQuestionReward, load_question, masked, record_form
from vcap_jax.reward.prompts import object_schema
from vcap_jax.reward.question import Verdict
from vcap_jax.reward.scores import MAX_SCORE
from vcap_jax.reward.templates import CLAIMS_KEY, UNITS_KEY
from vcap_jax.system.json_values import JsonObject
from vcap_jax.system.words import word_count

_LONGEST_ITEM = 160
Score = Annotated[int, Field(ge=0, le=MAX_SCORE)]


@pydantic.with_config(AS_ASKED)
@dataclass(frozen=True, kw_only=True)
class CaptionClaim:
    """Something that the caption says. visible: whether it can be pointed at, true or not."""

    claim: str
    true: bool
    visible: bool


@pydantic.with_config(AS_ASKED)
@dataclass(frozen=True, kw_only=True)
class ReferenceUnit:
    """Something that the reference says, and whether the caption says it too."""

    unit: str
    covered: bool


@pydantic.with_config(AS_ASKED)
@dataclass(frozen=True, kw_only=True)
class Balance:
    """The verdict on one caption. clarity, fluency, coherence: 0 to 10."""

    claims: tuple[CaptionClaim, ...]
    units: tuple[ReferenceUnit, ...]
    clarity: Score
    fluency: Score
    coherence: Score

    @property
    def precision(self) -> float:
        """Share of the claims that are true and visible; 0 for a text that claims nothing."""
        return sum(one.true and one.visible for one in self.claims) / max(len(self.claims), 1)

    @property
    def recall(self) -> float | None:
        """Share of the reference's units that are covered; None where it has none."""
        return sum(one.covered for one in self.units) / len(self.units) if self.units else None

    @property
    def text(self) -> float:
        """0 to 1."""
        return (self.clarity + self.fluency + self.coherence) / (3 * MAX_SCORE)


_SILENT = Balance(claims=(), units=(), clarity=0, fluency=0, coherence=0)
"""Of a text without content: nobody is asked, and nothing is earned."""


class BalancedReward(OneQuestionReward[Balance]):
    """Components, 0 to 1: ``precision``, ``recall`` and ``text``, of which the reward is the weighted mean, and
    ``of_length``, whether the caption is of a length at which its text counts. ``claims`` is how many it makes.

    Raises TemplateError for an instruction that cannot be used.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self._config = config.balanced
        most = self._config.most_entries
        template = load_question("balanced", self._config.instruction, most=most)
        super().__init__(template, balance_form(template, most), tools, self._config.shares)

    def _candidate(self, verdict: Verdict[Balance] | None, caption: str, reference: str) -> CandidateScore:
        verdict = verdict or Verdict(result=_SILENT)
        balance = verdict.result
        if isinstance(balance, Failure):
            return masked(verdict, balance)
        recall = 0.0 if balance is _SILENT else balance.recall
        if recall is None:
            detail = "the judge found nothing that the reference states"
            return masked(verdict, Failure(reason="no_reference", detail=detail))
        counts = length_counts(caption, reference, self._config)
        components = {
            "precision": balance.precision,
            "recall": recall,
            "text": balance.text if counts else 0.0,
            "of_length": float(counts),
            "claims": float(len(balance.claims)),
        }
        return CandidateScore(
            reward=sum(share * components[name] for name, share in self._config.shares.items()),
            components=components,
            notes={} if balance is _SILENT else {"Claims and units": _told(balance)},
            keys={"global": verdict.key},
        )


def length_counts(caption: str, reference: str, config: BalancedConfig) -> bool:
    """Whether the caption has from ``config.shortest`` to ``config.longest`` times the reference's words."""
    words = word_count(reference)
    return config.shortest * words <= word_count(caption) <= config.longest * words


def _told(balance: Balance) -> str:
    """What fell and what was left out, in words."""

    def listed(heading: str, items: Sequence[str]) -> str:
        return f"{heading}: {'; '.join(items) or 'none'}"

    return "\n".join(
        [
            listed("false", [one.claim for one in balance.claims if not one.true]),
            listed("not visible", [one.claim for one in balance.claims if one.true and not one.visible]),
            listed("not covered", [one.unit for one in balance.units if not one.covered]),
            f"clarity {balance.clarity}, fluency {balance.fluency}, coherence {balance.coherence}",
        ]
    )


def balance_form(template: str, most: int) -> Form[Balance]:
    """The answer that the instruction ``template`` asks for: two lists of at most ``most`` entries, and three scores
    from 0 to 10."""
    text: JsonObject = {"type": "string", "maxLength": _LONGEST_ITEM}
    truth: JsonObject = {"type": "boolean"}
    score: JsonObject = {"type": "integer", "minimum": 0, "maximum": MAX_SCORE}
    claim = object_schema({"Claim": text, "True": truth, "Visible": truth})
    unit = object_schema({"Unit": text, "Covered": truth})
    schema = object_schema(
        {
            CLAIMS_KEY: {"type": "array", "maxItems": most, "items": claim},
            UNITS_KEY: {"type": "array", "maxItems": most, "items": unit},
            **dict.fromkeys(("Clarity", "Fluency", "Coherence"), score),
        }
    )
    return record_form(Balance, "balanced", template, schema, most=most)
