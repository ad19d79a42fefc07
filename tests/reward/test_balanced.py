"""The balanced family: shares by hand, answers that are refused, and a group through a scripted endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.patience import GUARD_S
from tests.reward.media import PICTURE
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.reward.balanced import Balance, CaptionClaim, ReferenceUnit, balance_form, length_counts
from vcap_jax.reward.config import BalancedConfig, RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import GroupForReward, GroupScores
from vcap_jax.reward.session import RewardSession

REFERENCE = "A red car on a wet road."


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


def written(**changes: Any) -> str:
    return json.dumps({**FORM.pack(GOOD), **changes})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing", "no_verdict"),
        (written() + written(), "ambiguous"),
        ('{"Claims": []}', "missing_key"),
        (written(Analysis="fine"), "unexpected_key"),
        (written(Clarity=11), "bad_score"),
        (written(Fluency="9"), "bad_score"),
        (written(Coherence=True), "bad_score"),
        (written(Claims="none"), "bad_answer"),
        (written(Claims=[{"Claim": "a", "True": 1, "Visible": True}]), "bad_answer"),
        (written(Claims=[{"Claim": "a", "True": True}]), "missing_key"),
        (written(Units=[{"Unit": 3, "Covered": True}]), "bad_answer"),
        (written(Units=[{"Unit": "a", "Covered": True, "True": True}]), "unexpected_key"),
        (written(Units=[{"Unit": "a", "Covered": True}] * 5), "bad_answer"),
        (written()[:-3], "cut_off"),
    ],
)
def test_answers_that_cannot_be_used_are_failures(text: str, reason: str) -> None:
    given = FORM.read(text, "stop")
    assert isinstance(given, Failure)
    assert given.reason == reason


def test_the_schema_holds_a_server_to_the_form() -> None:
    described: Any = balance_form("template", 5).response_format["json_schema"]
    schema = described["schema"]
    assert schema["required"] == ["Claims", "Units", "Clarity", "Fluency", "Coherence"]
    assert schema["properties"]["Units"]["maxItems"] == 5
    assert schema["properties"]["Claims"]["items"]["properties"]["True"] == {"type": "boolean"}


@pytest.fixture
def ask(settings: Callable[..., Any]) -> Callable[..., GroupScores]:
    def run(*captions: str, config: BalancedConfig | None = None, **judge: Any) -> GroupScores:
        reward = RewardConfig(family="balanced", balanced=config or BalancedConfig())
        with RewardSession(reward, settings(**judge), seed=0) as session:
            session.wait_until_ready(10)
            group = GroupForReward(
                sample_id="a", step=0, index=0, media=PICTURE, reference=REFERENCE, captions=captions
            )
            return session.submit(group).result(GUARD_S)

    return run


def takes_apart(replies: Any) -> Callable[[dict[str, Any], int], Any]:
    """A judge that takes every word for a claim, believes "red", "car" and "road", and knows four units."""

    def answer(body: dict[str, Any], n: int) -> Any:
        caption = replies.candidate_of(body)
        if "broken" in caption:
            return replies.Reply(content='{"Claims": []}')
        words = caption.split()
        true = ("red", "car", "road", "nice")
        units = [] if "unitless" in caption else ["red", "car", "wet", "road"]
        given = {
            "Claims": [{"Claim": w, "True": w in true, "Visible": w != "nice"} for w in words],
            "Units": [{"Unit": unit, "Covered": unit in words} for unit in units],
            **dict.fromkeys(("Clarity", "Fluency", "Coherence"), 6),
        }
        return replies.Reply(content=json.dumps(given))

    return answer


def test_components_and_reward_by_hand(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = takes_apart(replies)
    scores = ask("red car blue nice", "red car", "", "broken", "unitless", "red car blue nice", max_tries=2)
    # Two of four claims hold, two of four units are covered, four words beside seven are long enough.
    assert scores.candidates[0].components == {
        "precision": 0.5,
        "recall": 0.5,
        "text": 0.6,
        "of_length": 1.0,
        "claims": 4.0,
    }
    assert scores.rewards[0] == pytest.approx((0.5 + 0.5 + 0.6) / 3)
    # Two words beside seven are too few for the text to count.
    assert scores.candidates[1].components["text"] == 0
    assert scores.rewards[1] == pytest.approx((1 + 0.5) / 3)
    assert scores.rewards[2] == 0
    failures = [candidate.failure for candidate in scores.candidates]
    assert [failure.reason for failure in failures if failure] == ["missing_key", "no_reference"]
    assert scores.weights == pytest.approx(dict.fromkeys(("precision", "recall", "text"), 1 / 3))
    (notes,) = scores.candidates[0].notes.values()
    assert notes.splitlines() == [
        "false: blue",
        "not visible: nice",
        "not covered: wet; road",
        "clarity 6, fluency 6, coherence 6",
    ]
    # Equal captions once, the blank one never, the broken one twice; a reference without units is no fault of the
    # answer and not asked about again.
    assert len(judge.bodies) == 3 + 2


def test_weights_are_relative_and_add_up(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = takes_apart(replies)
    config = BalancedConfig(precision=3.0, recall=1.0, text=0.0)
    scores = ask("red car road nice", config=config)
    assert scores.weights == {"precision": 0.75, "recall": 0.25, "text": 0.0}
    assert scores.rewards == [pytest.approx(0.75 * 0.75 + 0.25 * 0.75)]


def test_the_text_counts_between_half_and_twice_the_length() -> None:
    reference = " ".join(["word"] * 10)
    counted = [n for n in range(30) if length_counts("x " * n, reference, BalancedConfig())]
    assert counted == list(range(5, 21))
    assert not length_counts(
        "一只红色的圆。", "一只红色的圆，在白色的方块左边，旁边有一条蓝色的线。", BalancedConfig()
    )


def test_answers_are_kept_and_not_asked_for_twice(judge: Any, replies: Any, ask: Any, tmp_path: Any) -> None:
    judge.answer, store = takes_apart(replies), str(tmp_path / "s")
    first, again = (ask("red car", "road", store=store) for _ in range(2))
    assert np.allclose(first.rewards, again.rewards)
    assert len(judge.bodies) == 2


def test_settings_that_cannot_work_are_refused() -> None:
    for settings, problem in (
        ("{precision: 0, recall: 0, text: 0}", "leave one above 0"),
        ("{shortest: 3}", r"longest 2 is less than reward\.balanced\.shortest 3"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load_config(RewardConfig, [], [f"balanced={settings}"])
