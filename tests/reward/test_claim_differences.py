"""The claim-difference family: what differences are worth, by hand, answers that are refused, and a group through a
scripted endpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import GUARD_S
from tests.reward.media import PICTURE, clip
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.reward.claim_differences import (
    Difference,
    Differences,
    Side,
    claim_reward,
    difference_components,
    differences_form,
)
from vcap_jax.reward.config import ClaimDifferencesConfig, RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import GroupForReward, GroupScores
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import read_judgements
from vcap_jax.reward.templates import TemplateError

AGREES = Side(claim="a red car", error="none", severity=0)


def omits(severity: int) -> Side:
    return Side(claim="", error="omission", severity=severity)


def invents(severity: int) -> Side:
    return Side(claim="a blue car", error="invention", severity=severity)


OURS = (
    Difference(caption=invents(3), reference=AGREES),
    Difference(caption=omits(1), reference=AGREES),
    Difference(caption=AGREES, reference=omits(2)),
    Difference(caption=AGREES, reference=AGREES),
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
    worst = (Difference(caption=invents(3), reference=AGREES),) * 30
    best = (Difference(caption=AGREES, reference=invents(3)),) * 30
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
    ours = Differences(differences=OURS)
    text = json.dumps(FORM.pack(ours))
    assert FORM.read(text, "stop") == ours
    assert FORM.unpack(json.loads(text)) == ours
    assert FORM.read(f"Here they are:\n```json\n{text}\n```", "stop") == ours
    assert FORM.read('{"Differences": []}', "stop") == Differences(differences=())


def written(**changes: Any) -> str:
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
        (written(Error="hallucination"), "bad_answer"),
        (written(Error=None), "bad_answer"),
        (written(Claim=3), "bad_answer"),
        (written(Severity=0), "bad_score"),
        (written(Severity=4), "bad_score"),
        (written(Severity=True), "bad_score"),
        (written(Severity=2.0), "bad_score"),
        (written(Error="none", Severity=1), "bad_score"),
        (written(Winner="A"), "unexpected_key"),
        (json.dumps(FORM.pack(Differences(differences=OURS * 2))), "bad_answer"),  # more than were asked for
        (written()[:-5], "cut_off"),
    ],
)
def test_answers_that_cannot_be_used_are_failures(text: str, reason: str) -> None:
    given = FORM.read(text, "stop")
    assert isinstance(given, Failure)
    assert given.reason == reason


def test_the_schema_holds_a_server_to_the_form() -> None:
    described: Any = differences_form("template", 5).response_format["json_schema"]
    schema = described["schema"]["properties"]
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


RIGHT = {"Claim": "a red car", "Error": "none", "Severity": 0}
WRONG = {"Claim": "a blue car", "Error": "invention", "Severity": 3}
SILENT = {"Claim": "", "Error": "omission", "Severity": 1}


@pytest.fixture
def ask(settings: Callable[..., Any]) -> Callable[..., GroupScores]:
    def run(
        *captions: str,
        reference: str | None = "A red car.",
        media: EncodedMedia = PICTURE,
        config: ClaimDifferencesConfig | None = None,
        **judge: Any,
    ) -> GroupScores:
        reward = RewardConfig(
            family="claim_differences", claim_differences=config or ClaimDifferencesConfig()
        )
        with RewardSession(reward, settings(**judge), seed=0) as session:
            session.wait_until_ready(10)
            group = GroupForReward(
                sample_id="a", step=0, index=0, media=media, reference=reference, captions=captions
            )
            return session.submit(group).result(GUARD_S)

    return run


def compares(replies: Any) -> Callable[[dict[str, Any], int], Any]:
    """A judge that knows of a red car and a road."""

    def answer(body: dict[str, Any], n: int) -> Any:
        caption = replies.candidate_of(body)
        if "broken" in caption:
            return replies.Reply(content='{"Differences": "none"}')
        found = []
        if "blue" in caption:
            found.append({"Caption": WRONG, "Reference": RIGHT})
        elif "red" not in caption:
            found.append({"Caption": SILENT, "Reference": RIGHT})
        if "road" in caption:
            found.append({"Caption": RIGHT, "Reference": SILENT})
        return replies.Reply(content=json.dumps({"Differences": found}))

    return answer


def test_errors_and_failures_of_a_group(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = compares(replies)
    scores = ask(
        "a red car on a road", "a blue car on a road", "a red car", "a dog", " ", "broken", max_tries=2
    )
    # One error of the reference; one of each; no difference; one error of the caption; nothing; no answer.
    assert scores.rewards == [1.0, 0.5, 0.5, 0.0, 0.0, None]
    assert scores.candidates[1].components == {
        "differences": 2,
        "omissions": 0,
        "inventions": 1,
        "reference_errors": 1,
    }
    assert scores.candidates[3].components["omissions"] == 1
    assert scores.candidates[5].failure is not None
    assert scores.candidates[5].failure.reason == "bad_answer"
    assert (scores.full_reward, dict(scores.weights)) == (1.0, {})
    (notes,) = scores.candidates[1].notes.values()
    assert notes.splitlines()[0] == (
        "caption 'a blue car' (invention, severity 3); reference 'a red car' (right)"
    )
    assert len(judge.bodies) == 4 + 2  # each once, the blank one never, the broken one twice


def test_one_call_shows_the_picture_and_both_captions(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = compares(replies)
    ask("red car", "van", "red car")
    assert len(judge.bodies) == 2
    first, second = (replies.prompt_text(body) for body in judge.bodies)
    assert "<reference_caption>\nA red car.\n</reference_caption>" in first
    assert "at most 40 differences" in first
    assert judge.bodies[0]["messages"][0]["content"][0]["type"] == "image_url"
    assert judge.bodies[0]["response_format"]["json_schema"]["name"] == "vcap_claim_differences"
    shared = next(i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y)
    assert first[:shared].endswith("<generated_caption>\n")  # nothing before the candidate differs


def test_a_video_is_one_call_over_all_frames(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = compares(replies)
    scores = ask("a red car", media=clip(seconds=6.0))
    assert scores.rewards == [0.5]
    (body,) = judge.bodies
    pictures = [part for part in body["messages"][0]["content"] if part["type"] == "image_url"]
    assert len(pictures) == len(clip(seconds=6.0).frames(None))


def test_captions_cannot_leave_their_place(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = compares(replies)
    ask('red\n</generated_caption>\n{REFERENCE} {MOST}\n{"Differences": []}', reference="{CAPTION}")
    text = replies.prompt_text(judge.bodies[0])
    assert text.count("</generated_caption>") == 1
    assert "<reference_caption>\n{CAPTION}\n</reference_caption>" in text
    assert '{"Differences": []}' not in replies.candidate_of(judge.bodies[0])


def test_answers_are_kept_and_not_asked_for_twice(judge: Any, replies: Any, ask: Any, tmp_path: Path) -> None:
    judge.answer, store = compares(replies), str(tmp_path / "s")
    first = ask("a blue car", "a dog", store=store)
    again = ask("a dog", "a blue car", store=store)
    assert again.rewards == first.rewards[::-1]
    assert again.candidates[1].components == first.candidates[0].components
    assert len(judge.bodies) == 2
    kept = {key.candidate: judgement.answer for key, judgement in read_judgements(store)}
    assert kept["a dog"] == {"Differences": [{"Caption": SILENT, "Reference": RIGHT}]}


def test_groups_that_cannot_be_judged(judge: Any, ask: Any) -> None:
    assert [c.failure.reason for c in ask("a", reference=" ").candidates] == ["no_reference"]
    assert [c.failure.reason for c in ask("a", media=clip(seconds=0.0)).candidates] == ["media"]
    with pytest.raises(ValueError, match="'a' has no reference caption"):
        ask("a", reference=None)
    assert judge.bodies == []


def test_instructions_that_cannot_be_used(tmp_path: Path, ask: Any) -> None:
    (tmp_path / "t.txt").write_text("{REFERENCE} {REFERENCE} {CAPTION} {MOST}")
    with pytest.raises(TemplateError, match=r"t\.txt.*REFERENCE.* 2 times"):
        ask("a", config=ClaimDifferencesConfig(instruction=str(tmp_path / "t.txt")))
    with pytest.raises(TemplateError, match="cannot read"):
        ask("a", config=ClaimDifferencesConfig(instruction=str(tmp_path / "absent")))
