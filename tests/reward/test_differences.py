"""What differences are worth, by hand, and which answers are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.reward.config import ClaimDifferencesConfig, RewardConfig
from vcap_jax.reward.differences import (
    Difference,
    Side,
    claim_reward,
    difference_components,
    differences_form,
    differences_schema,
    parse_differences,
)
from vcap_jax.reward.failures import Failure

RIGHT = Side(claim="a red car", error="none", severity=0)


def omits(severity: int) -> Side:
    return Side(claim="", error="omission", severity=severity)


def invents(severity: int) -> Side:
    return Side(claim="a blue car", error="invention", severity=severity)


OURS = (
    Difference(caption=invents(3), reference=RIGHT),
    Difference(caption=omits(1), reference=RIGHT),
    Difference(caption=RIGHT, reference=omits(2)),
    Difference(caption=RIGHT, reference=RIGHT),
)
"""Two errors of the caption, one of the reference, four differences."""
FORM = differences_form("template", 4)
WEIGHTED = {"severity_weights": (1.0, 1.25, 1.6)}


@pytest.mark.parametrize(
    ("settings", "reward"),
    [
        ({}, 0.5 - 0.5 * (2 - 1) / 4),
        ({"mode": "raw_diff"}, 0.5 - 0.5 * (2 - 1) / 10),
        ({"mode": "a_only"}, 1 - 2 / 10),
        ({"mode": "hall_vs_miss"}, 1 - 2 / 4),
        (
            {"mode": "normalized_a_only"},
            (0.05 + 0.95 * 0.5**2) * math.exp(-2 / 4) * (0.7 + 0.3 * math.log(5) / math.log(11)),
        ),
        # Weighted: 1.6 + 1 of the caption, 1.25 of the reference, each over 1.6.
        (WEIGHTED, 0.5 - 0.5 * (2.6 - 1.25) / (1.6 * 4)),
        ({"mode": "a_only", **WEIGHTED}, 1 - 2.6 / 16),
        ({"mode": "raw_diff", **WEIGHTED}, 0.5 - 0.5 * (2.6 - 1.25) / 10),
        (
            {"mode": "normalized_a_only", **WEIGHTED},
            (0.05 + 0.95 * (1 - 2.6 / 6.4) ** 2)
            * math.exp(-2.6 / 1.6 / 4)
            * (0.7 + 0.3 * math.log(5) / math.log(11)),
        ),
        # Omissions and inventions apart: an omission counts a quarter, then nothing.
        ({"omission": 0.25}, 0.5 - 0.5 * (1.25 - 0.25) / 4),
        ({"mode": "hall_vs_miss", "omission": 0.0}, 1 - 1 / 4),
        ({"mode": "hall_vs_miss", "invention": 0.0}, 1 - 1 / 4),
    ],
)
def test_rewards_by_hand(settings: dict[str, Any], reward: float) -> None:
    assert claim_reward(OURS, ClaimDifferencesConfig(**settings)) == pytest.approx(reward, abs=1e-12)


@pytest.mark.parametrize(
    ("mode", "reward"),
    [
        ("normalized_diff", 0.5),
        ("raw_diff", 0.5),
        ("normalized_a_only", 1.0),
        ("a_only", 1.0),
        ("hall_vs_miss", 1.0),
    ],
)
def test_captions_that_do_not_differ(mode: Any, reward: float) -> None:
    assert claim_reward((), ClaimDifferencesConfig(mode=mode)) == reward


def test_the_ends_of_the_scale() -> None:
    worst = (Difference(caption=invents(3), reference=RIGHT),) * 30
    best = (Difference(caption=RIGHT, reference=invents(3)),) * 30
    for mode in ("normalized_diff", "raw_diff", "a_only", "hall_vs_miss"):
        config = ClaimDifferencesConfig(mode=mode, severity_weights=(1.0, 1.25, 1.6))
        assert claim_reward(worst, config) == pytest.approx(0.0)
        assert claim_reward(best, config) == pytest.approx(1.0)
    smooth = ClaimDifferencesConfig(mode="normalized_a_only")
    assert 0 < claim_reward(worst, smooth) < 1e-4
    assert claim_reward(best, smooth) == pytest.approx(1.0)


def test_components_tell_omissions_from_inventions() -> None:
    expected = {"differences": 4, "omissions": 1, "inventions": 1, "reference_errors": 1}
    assert difference_components(OURS) == expected


def test_an_answer_is_read_and_kept() -> None:
    text = json.dumps(FORM.pack(OURS))
    assert FORM.read(text, "stop") == OURS
    assert FORM.unpack(json.loads(text)) == OURS
    assert parse_differences(f"Here they are:\n```json\n{text}\n```", 4, "stop") == OURS
    assert parse_differences('{"Differences": []}', 4, "stop") == ()


def answer(**changes: Any) -> str:
    side = {"Claim": "a", "Error": "omission", "Severity": 2}
    return json.dumps({"Differences": [{"Caption": {**side, **changes}, "Reference": side}]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing", "no_verdict"),
        (f'{{"Differences": {"[" * 100_000}{"]" * 100_000}}}', "broken_json"),
        ('{"Differences": [] } {"Differences": []}', "ambiguous"),
        ('{"Differences": {}}', "bad_answer"),
        ('{"Differences": [{"Caption": {}}]}', "missing_key"),
        ('{"Differences": ["none"]}', "bad_answer"),
        ('{"Differences": [], "Winner": "A"}', "unexpected_key"),
        (answer(Error="hallucination"), "bad_answer"),
        (answer(Error=None), "bad_answer"),
        (answer(Claim=3), "bad_answer"),
        (answer(Severity=0), "bad_score"),
        (answer(Severity=4), "bad_score"),
        (answer(Severity=True), "bad_score"),
        (answer(Severity=2.0), "bad_score"),
        (answer(Error="none", Severity=1), "bad_score"),
        (answer(Winner="A"), "unexpected_key"),
        (json.dumps(FORM.pack(OURS * 2)), "bad_answer"),  # more than were asked for
        (answer()[:-5], "cut_off"),
    ],
)
def test_answers_that_cannot_be_used_are_failures(text: str, reason: str) -> None:
    given = parse_differences(text, 7, "stop")
    assert isinstance(given, Failure)
    assert given.reason == reason


def test_the_schema_holds_a_server_to_the_form() -> None:
    schema: Any = differences_schema(5)["properties"]
    assert schema["Differences"]["maxItems"] == 5
    side = schema["Differences"]["items"]["properties"]["Caption"]
    assert side["properties"]["Error"]["enum"] == ["none", "omission", "invention"]
    assert side["additionalProperties"] is False


@pytest.mark.parametrize(
    "settings",
    ["{omission: 0, invention: 0}", "{severity_weights: [0, 0, 0]}", "{severity_weights: [1, -1, 1]}"],
)
def test_weights_that_say_nothing_are_refused(settings: str) -> None:
    with pytest.raises(ConfigError, match="every reward would be the same"):
        load_config(RewardConfig, [], [f"claim_differences={settings}"])
