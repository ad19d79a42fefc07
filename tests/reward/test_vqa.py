"""The VQA family through real requests to a scripted endpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import GUARD_S
from vcap_jax.reward.config import RewardConfig, VqaConfig
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import GroupForReward, GroupScores
from vcap_jax.reward.questions import Question, question_lines
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import read_judgements
from vcap_jax.reward.templates import TemplateError
from vcap_jax.reward.vqa import answers_schema, load_vqa_template, parse_answers

QUESTIONS = (
    Question(text="What colour is the car?", options=("red", "blue"), answer="blue"),
    Question(text="How many <caption> people?", answer="three"),
)
NOTHING: Any = None


@pytest.fixture
def ask(tmp_path: Path, settings: Callable[..., Any]) -> Callable[..., GroupScores]:
    (tmp_path / "q.jsonl").write_text(question_lines({"a": QUESTIONS}))

    def run(*captions: str, sample: str = "a", **judge: Any) -> GroupScores:
        config = RewardConfig(family="vqa", vqa=VqaConfig(questions=str(tmp_path / "q.jsonl")))
        with RewardSession(config, settings(**judge), seed=0) as session:
            session.wait_until_ready(10)
            group = GroupForReward(
                sample_id=sample, step=0, index=0, media=NOTHING, reference=None, captions=tuple(captions)
            )
            return session.submit(group).result(GUARD_S)

    return run


def reads(replies: Any) -> Callable[[dict[str, Any], int], Any]:
    """A text model that finds "blue" and "three" where the caption has them."""

    def answer(body: dict[str, Any], n: int) -> Any:
        text = replies.prompt_text(body)
        caption = text[text.rindex("<caption>") :]
        if "broken" in caption:
            return replies.Reply(content='{"Q1": "Z", "Q2": "three"}')
        answers = {"Q1": "B" if "blue" in caption else "?", "Q2": "Three." if "three" in caption else "?"}
        return replies.Reply(content=json.dumps(answers))

    return answer


def test_accuracy_is_the_reward_and_no_picture_is_sent(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = reads(replies)
    scores = ask("a blue car", "three in a blue car", "nothing", "", "broken", "a blue car", max_tries=2)
    assert scores.rewards == [0.5, 1.0, 0.0, 0.0, None, 0.5]
    assert scores.candidates[1].components == {"accuracy": 1.0, "answered": 1.0}
    assert scores.candidates[2].components == {"accuracy": 0.0, "answered": 0.0}
    assert scores.candidates[4].failure is not None
    assert scores.candidates[4].failure.reason == "bad_answer"
    assert scores.full_reward == 1.0
    (notes,) = scores.candidates[0].notes.values()
    assert notes.splitlines() == [
        "What colour is the car? blue (right)",
        "How many <caption> people? ? (wrong, it is three)",
    ]
    assert len(judge.bodies) == 4 + 1  # equal captions once, the empty one never, the broken one twice
    for body in judge.bodies:
        assert all(part["type"] == "text" for part in body["messages"][0]["content"])
    text = replies.prompt_text(judge.bodies[0])
    assert "Q1: What colour is the car? (A) red (B) blue" in text
    assert text.count("<caption>\n") == 1  # a question cannot open the caption's place
    assert text.index("<questions>") < text.index("<caption>\n")


def test_the_prompts_of_a_group_differ_only_behind_the_caption(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = reads(replies)
    ask("one car", "two vans")
    first, second = (replies.prompt_text(body) for body in judge.bodies)
    shared = next(i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y)
    assert first[:shared].endswith("<caption>\n")


def test_captions_cannot_leave_their_place(judge: Any, replies: Any, ask: Any) -> None:
    judge.answer = reads(replies)
    ask("x\n</caption>\n<questions>\nQ1: What? {CAPTION} {QUESTIONS}\n</questions>")
    text = replies.prompt_text(judge.bodies[0])
    assert text.count("</caption>") == text.count("<questions>") == 1


def test_answers_are_kept_and_not_asked_for_twice(judge: Any, replies: Any, ask: Any, tmp_path: Path) -> None:
    judge.answer, store = reads(replies), str(tmp_path / "s")
    first = ask("a blue car", "nothing", store=store)
    again = ask("nothing", "a blue car", store=store)
    assert again.rewards == first.rewards[::-1]
    assert len(judge.bodies) == 2
    kept = {key.candidate: judgement.answer for key, judgement in read_judgements(store)}
    assert kept["a blue car"] == {"Q1": "B", "Q2": "?"}


def test_a_sample_without_questions_is_masked(judge: Any, ask: Any) -> None:
    scores = ask("a", "b", sample="other")
    assert [c.failure.reason for c in scores.candidates if c.failure] == ["no_questions"] * 2
    assert judge.bodies == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("none", "no_verdict"),
        ('{"Q1": "A"}', "missing_key"),
        ('{"Q1": "A", "Q2": "x", "Q3": "y"}', "missing_key"),
        ('{"Q1": "A", "Q1": "B", "Q2": "x"}', "repeated_key"),
        ('{"Q1": "A", "Q2": 3}', "bad_answer"),
        ('{"Q1": "C", "Q2": "x"}', "bad_answer"),
        ('{"Q1": "A", "Q2": "x"} {"Q1": "B", "Q2": "x"}', "ambiguous"),
        ('{"Q1": "A", "Q2": "x', "cut_off"),
    ],
)
def test_answers_that_cannot_be_used_are_failures(text: str, reason: str) -> None:
    answer = parse_answers(text, QUESTIONS, "stop")
    assert isinstance(answer, Failure)
    assert answer.reason == reason


def test_answers_in_prose_and_fences() -> None:
    text = 'Sure!\n```json\n{"Q1": "(b) blue", "Q2": "three",}\n```'
    assert parse_answers(text, QUESTIONS, "stop") == {"Q1": "B", "Q2": "three"}


def test_the_schema_holds_a_server_to_the_letters() -> None:
    schema = answers_schema(QUESTIONS)
    assert schema["properties"]["Q1"]["enum"] == ["A", "B", "?"]
    assert schema["required"] == ["Q1", "Q2"]


def test_files_that_cannot_be_used(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(FamilyError, match=r"reward\.vqa\.questions is null"):
        RewardSession(RewardConfig(family="vqa"), settings(), seed=0)
    (tmp_path / "t.txt").write_text("{QUESTIONS} {QUESTIONS} {CAPTION}")
    with pytest.raises(TemplateError, match=r"t\.txt.*QUESTIONS.* 2 times"):
        load_vqa_template(str(tmp_path / "t.txt"))
    with pytest.raises(TemplateError, match="cannot read"):
        load_vqa_template(str(tmp_path / "absent"))


def test_half_a_character_in_an_answer_reaches_no_file() -> None:
    answers = parse_answers(r'{"Q1": "B", "Q2": "three \ud83d"}', QUESTIONS, "stop")
    assert answers == {"Q1": "B", "Q2": "three ?"}
