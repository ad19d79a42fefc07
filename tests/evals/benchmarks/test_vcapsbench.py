"""VCapsBench end to end on made-up videos in the public format, with its figures worked out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.evals.benchmarks.by_stage import ByStage, Given, block, endpoint
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.evals.benchmarks.files import DataMissing
from vcap_jax.evals.benchmarks.vcapsbench import Asked, VCapsBench, outcome_of, split_entry
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.protocol import Evaluation, EvaluatorTools
from vcap_jax.reward.config import JudgeConfig

ROWS = [
    {
        "video_id": "a",
        "qa": [
            "color*Is there a red car?*Yes",
            "count*Are there 2 cats?*no",
            "style*Is it a film?*Unanswerable",
        ],
    },
    {"video_id": "b", "qa": ["color*Is there a blue car?*yes", "text*Does it say 4*4?*yes"]},
]
CAPTIONS = {"a": "red car, 2 cats", "b": "no blue car, 4*4"}
SAID: list[str] = []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "vcaps"
    folder.mkdir()
    (folder / "VCapsBench_100KQA.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def question(prompt: str) -> object:
    """Yes to what the caption says, no to what it denies."""
    caption = block(prompt, "caption")
    asked = re.search(r"(?:red|blue) car|2 cats|4\*4", block(prompt, "question"))
    if asked is None or asked[0] not in caption:
        return {"analysis": "nothing of it", "answer": "Unanswerable"}
    # As a judge may write it that is held to no schema.
    return {"analysis": f"it says {asked[0]}", "answer": "No" if f"no {asked[0]}" in caption else "yes."}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"question": question})


def evaluated(
    data: Path, judge: JudgeConfig, captions: dict[str, str] = CAPTIONS, mode: str = "strict", **tools: Path
) -> Evaluation:
    config = EvaluatorConfig(use="vcapsbench", options={"data": str(data), "mode": mode})
    given = EvaluatorTools(modality="video", judge=judge, captioning=False, say=SAID.append, **tools)
    return VCapsBench(config, given).evaluate(Given(captions))


def test_the_figures_are_those_worked_out_by_hand(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    found = evaluated(data, endpoint(server))
    ar, ir, cr = (found.metrics[name].value / 100 for name in ("ar", "ir", "cr"))
    # a: yes is right; "2 cats" is answered yes and is wrong; unanswerable is right. b: no is wrong, yes is right.
    assert (ar, ir, cr) == pytest.approx((3 / 5, 2 / 5, 1))
    assert ar == pytest.approx(cr * (1 - ir))
    assert found.items[0].notes["Questions answered wrongly"].startswith("Are there 2 cats? Yes, it is no")


def test_what_a_caption_does_not_say_lowers_coverage_and_not_inconsistency(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    found = evaluated(data, endpoint(server), {"a": "red car", "b": "a street"})
    ar, ir, cr = (found.metrics[name].value / 100 for name in ("ar", "ir", "cr"))
    assert (ar, ir, cr) == pytest.approx((2 / 5, 0, 2 / 5))


def test_official_cuts_a_question_at_its_asterisk(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    found = evaluated(data, endpoint(server), mode="official")
    assert "Does it say 4\n" in judge.asked[-1][1] or any(
        "Does it say 4\n" in text for _, text, _ in judge.asked
    )
    assert found.metrics["ar"].value == pytest.approx(100 * 2 / 5)


def test_questions_that_fail_leave_the_denominator_and_are_told(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    fine = question

    def failing(prompt: str) -> object:
        return "I cannot say" if "2 cats" in block(prompt, "question") else fine(prompt)

    judge.answers = {"question": failing}
    found = evaluated(data, endpoint(server, max_tries=2))
    assert found.metrics["ar"].value == pytest.approx(100 * 3 / 4)
    assert found.items[0].lacking["questions"].startswith("1 of 3 failed, no_verdict")
    assert found.stages["question"].failed == {"no_verdict": 1}
    assert found.stages["question"].failure_rate == pytest.approx(1 / 5)


def test_captions_that_are_there_need_no_videos_and_others_do(server: ScriptedJudge, data: Path) -> None:
    config = EvaluatorConfig(use="vcapsbench", options={"data": str(data)})
    with pytest.raises(DataMissing, match=r"videos/a: is not there, and 1 more are not\. .*somos99"):
        VCapsBench(config, EvaluatorTools(modality="video", judge=endpoint(server)))


def test_entries_and_outcomes() -> None:
    assert split_entry("a*b?*Yes", "strict") == Asked(dimension="a", question="b?", answer="yes")
    assert split_entry("a*b*c?*No", "strict") == Asked(dimension="a", question="b*c?", answer="no")
    assert split_entry("a*b*c?*No", "official") == Asked(dimension="a", question="b", answer="c?")
    assert split_entry("a*b", "strict") is None
    for end in ("Yes.", "Yes*", " yes ", "Yes.\n"):
        assert split_entry(f"a*b?*{end}", "strict") == Asked(dimension="a", question="b?", answer="yes")
    assert split_entry("a*b?*Unanswerable", "strict") is not None
    assert split_entry("a*b?*Yes (because)", "strict") is None
    assert split_entry("a*b?*N/A", "official") == Asked(dimension="a", question="b?", answer="n/a")
    assert [outcome_of(a, "unanswerable") for a in ("Yes", "Unanswerable")] == ["wrong", "right"]
    assert [outcome_of(a, "no") for a in ("Yes", "No", "Unanswerable")] == ["wrong", "right", "unanswered"]


def test_an_entry_without_its_parts_is_left_out_and_told(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    rows = [*ROWS, {"video_id": "c", "qa": ["color*Is there a red car?"]}]
    (data / "VCapsBench_100KQA.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = evaluated(data, endpoint(server), {**CAPTIONS, "c": "red car"})
    assert any("1 entries are no DIMENSION*QUESTION*ANSWER" in line for line in SAID)
    assert found.items[2].failure == "questions: there is none"
