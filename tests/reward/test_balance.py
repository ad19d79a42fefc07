"""Claims, units and text: the shares by hand, and which answers are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vcap_jax.reward.balance import (
    Balance,
    CaptionClaim,
    ReferenceUnit,
    balance_form,
    balance_schema,
    parse_balance,
)
from vcap_jax.reward.failures import Failure

GOOD = Balance(
    claims=(
        CaptionClaim(claim="a red car", true=True, visible=True),
        CaptionClaim(claim="it is fast", true=True, visible=False),
        CaptionClaim(claim="a blue dog", true=False, visible=True),
        CaptionClaim(claim="a road", true=True, visible=True),
    ),
    units=(ReferenceUnit(unit="a red car", covered=True), ReferenceUnit(unit="rain", covered=False)),
    clarity=9,
    fluency=8,
    coherence=7,
)
FORM = balance_form("template", 4)


def test_shares_by_hand() -> None:
    # Of four claims two are both true and visible; of two units one is covered; the text is 24 of 30.
    assert (GOOD.precision, GOOD.recall, GOOD.text) == (0.5, 0.5, 0.8)


def test_shares_of_nothing() -> None:
    silent = Balance(claims=(), units=(), clarity=0, fluency=0, coherence=0)
    assert (silent.precision, silent.recall, silent.text) == (0.0, None, 0.0)


def test_an_answer_is_read_and_kept() -> None:
    text = json.dumps(FORM.pack(GOOD))
    assert FORM.read(text, "stop") == GOOD
    assert FORM.unpack(json.loads(text)) == GOOD


def answer(**changes: Any) -> str:
    return json.dumps({**FORM.pack(GOOD), **changes})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing", "no_verdict"),
        (answer() + answer(), "ambiguous"),
        ('{"Claims": []}', "missing_key"),
        (answer(Analysis="fine"), "unexpected_key"),
        (answer(Clarity=11), "bad_score"),
        (answer(Fluency="9"), "bad_score"),
        (answer(Coherence=True), "bad_score"),
        (answer(Claims="none"), "bad_answer"),
        (answer(Claims=[{"Claim": "a", "True": 1, "Visible": True}]), "bad_answer"),
        (answer(Claims=[{"Claim": "a", "True": True}]), "missing_key"),
        (answer(Units=[{"Unit": 3, "Covered": True}]), "bad_answer"),
        (answer(Units=[{"Unit": "a", "Covered": True, "True": True}]), "unexpected_key"),
        (answer(Units=[{"Unit": "a", "Covered": True}] * 5), "bad_answer"),
        (answer()[:-3], "cut_off"),
    ],
)
def test_answers_that_cannot_be_used_are_failures(text: str, reason: str) -> None:
    given = parse_balance(text, 4, "stop")
    assert isinstance(given, Failure)
    assert given.reason == reason


def test_the_schema_holds_a_server_to_the_form() -> None:
    schema: Any = balance_schema(5)
    assert schema["required"] == ["Claims", "Units", "Clarity", "Fluency", "Coherence"]
    assert schema["properties"]["Units"]["maxItems"] == 5
    assert schema["properties"]["Claims"]["items"]["properties"]["True"] == {"type": "boolean"}
