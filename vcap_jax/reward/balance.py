"""A caption's claims, the reference's units and the text, each settled on its own. Pure.

The three components of BalCapRL (arXiv 2605.07394): precision is the share of the caption's claims that are true and
can be pointed at, recall the share of the reference's units that the caption covers, and the text's quality is the mean
of clarity, fluency and coherence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pydantic
from pydantic import Field

from vcap_jax.reward.failures import Failure
from vcap_jax.reward.judge_query import Form, schema_form
from vcap_jax.reward.one_question import AS_ASKED, read_answer, too_many
from vcap_jax.reward.prompts import object_schema
from vcap_jax.reward.scores import MAX_SCORE
from vcap_jax.reward.templates import CLAIMS_KEY, UNITS_KEY
from vcap_jax.system.json_records import as_record, record_values
from vcap_jax.system.json_values import JsonObject

TEXT_KEYS = ("Clarity", "Fluency", "Coherence")
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


def balance_schema(most: int) -> JsonObject:
    """JSON schema of the answer: two lists of at most ``most`` entries, and three scores from 0 to 10."""
    text: JsonObject = {"type": "string", "maxLength": _LONGEST_ITEM}
    truth: JsonObject = {"type": "boolean"}
    score: JsonObject = {"type": "integer", "minimum": 0, "maximum": MAX_SCORE}
    claim = object_schema({"Claim": text, "True": truth, "Visible": truth})
    unit = object_schema({"Unit": text, "Covered": truth})
    return object_schema(
        {
            CLAIMS_KEY: {"type": "array", "maxItems": most, "items": claim},
            UNITS_KEY: {"type": "array", "maxItems": most, "items": unit},
            **dict.fromkeys(TEXT_KEYS, score),
        }
    )


def balance_form(template: str, most: int) -> Form[Balance]:
    """The answer that the instruction ``template`` asks for."""
    return schema_form(
        "balanced",
        template,
        balance_schema(most),
        read=lambda content, finish: parse_balance(content, most, finish),
        pack=record_values,
        unpack=lambda kept: as_record(Balance, kept, "a kept answer"),
    )


def parse_balance(text: str | None, most: int, finish_reason: str | None) -> Balance | Failure:
    """Read an answer; a Failure unless both lists and all three scores are as the schema says."""

    balance = read_answer(Balance, text, finish_reason)
    if isinstance(balance, Failure):
        return balance
    return too_many({CLAIMS_KEY: balance.claims, UNITS_KEY: balance.units}, most) or balance
