"""The VQA family: questions about a sample, answered from the caption alone; the share of right answers is the reward.

The questions are the family's reference (Appendix "Comparison of Reference Roles"): what they do not ask for earns
nothing, and what a caption makes up beside them costs nothing. All questions of a sample are one request per caption,
text only, with the caption last, so that a server's prefix cache holds the questions for the whole group. Questions
that give each other's answers away should therefore not be asked about one sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupScores, all_failed
from vcap_jax.reward.json_objects import head, one_object
from vcap_jax.reward.judge_query import JudgeQuery, Pass, schema_form
from vcap_jax.reward.open_group import OpenGroup, for_each
from vcap_jax.reward.prompts import content_hash, delimited, object_schema
from vcap_jax.reward.question import Verdict
from vcap_jax.reward.questions import UNKNOWN, Question, read_questions
from vcap_jax.reward.templates import filled, load_template
from vcap_jax.system.json_values import JsonDict, JsonObject, as_text

Answers = Mapping[str, str]
"""Question number ("Q1") -> a letter, a few words, or ``UNKNOWN``."""


class VqaReward:
    """Components: ``accuracy``, the share of questions answered rightly, which is the reward; ``answered``, the share
    that the caption answers at all.

    Raises FamilyError without questions, ManifestError and TemplateError for files that cannot be used.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        if config.vqa.questions is None:
            raise FamilyError(
                "reward.vqa.questions is null: give a JSONL file with questions about the samples"
            )
        self._questions = read_questions(config.vqa.questions)
        self._template = load_vqa_template(config.vqa.instruction)
        self._asker = JudgeQuery(tools.client(), tools.store)

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Only where the run makes the questions from what the references state."""
        return config.vqa.questions is None and config.vqa.about == "reference"

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        """Always: the endpoints answer the questions; they are sent no picture."""
        return True

    async def score_captions(self, group: OpenGroup) -> GroupScores:
        """One request per different caption, as soon as it has ended; one without text answers nothing and is worth 0
        unasked."""
        sample_id = group.prompt.sample_id
        questions = self._questions.get(sample_id)
        if not questions:
            detail = f"there is no question about {sample_id!r}"
            return all_failed(group.prompt, group.size, Failure(reason="no_questions", detail=detail))
        asked = questions_pass(questions, self._template, route=content_hash(sample_id))
        answers = await for_each(
            (text async for text in group.texts() if text.strip()), partial(self._asker.ask, asked)
        )
        silent: Verdict[Answers] = Verdict(result={name: UNKNOWN for name, _ in numbered(questions)})
        return GroupScores(
            sample_id=sample_id,
            step=group.prompt.step,
            candidates=tuple(
                _candidate(answers.get(text, silent), questions) for text in (await group.whole()).captions
            ),
            full_reward=1.0,
            weights={"accuracy": 1.0},
        )


def _candidate(verdict: Verdict[Answers], questions: Sequence[Question]) -> CandidateScore:
    keys = {"answers": verdict.key}
    if isinstance(verdict.result, Failure):
        return CandidateScore(reward=None, failure=verdict.result, keys=keys)
    answers = verdict.result
    right = told = 0
    lines = []
    for name, question in numbered(questions):
        given, is_right = answers[name], question.right(answers[name])
        right += is_right
        told += given != UNKNOWN
        if question.options and given != UNKNOWN:
            given = question.options[question.letters.index(given)]
        lines.append(
            f"{question.text} {given} ({'right' if is_right else f'wrong, it is {question.answer}'})"
        )
    accuracy = right / len(questions)
    return CandidateScore(
        reward=accuracy,
        components={"accuracy": accuracy, "answered": told / len(questions)},
        notes={"Questions and answers": "\n".join(lines)},
        keys=keys,
    )


def numbered(questions: Sequence[Question]) -> list[tuple[str, Question]]:
    """The questions with the names that they have in the prompt and in its answer."""
    return [(f"Q{number}", question) for number, question in enumerate(questions, 1)]


def questions_pass(questions: Sequence[Question], template: str, *, route: str) -> Pass[Answers]:
    """What is asked of every caption of a sample."""
    listed = "\n".join(_listed(name, question) for name, question in numbered(questions))
    block = delimited(listed, "questions")
    return Pass(
        form=schema_form(
            "vqa",
            template,
            answers_schema(questions),
            read=lambda content, finish: parse_answers(content, questions, finish),
            pack=dict,
            unpack=lambda kept: {
                name: as_text(value, f"the kept answer to {name}") for name, value in kept.items()
            },
        ),
        fill=lambda text: filled(template, {"QUESTIONS": block, "CAPTION": delimited(text, "caption")}),
        reference=listed,
        shown=None,
        route=route,
        prefix=content_hash(template, block),
    )


def _listed(name: str, question: Question) -> str:
    text = " ".join(question.text.split())
    options = [
        f"({letter}) {' '.join(option.split())}"
        for letter, option in zip(question.letters, question.options, strict=True)
    ]
    return " ".join([f"{name}: {text}", *options])


def answers_schema(questions: Sequence[Question]) -> JsonObject:
    """JSON schema of the answers: one string each, a letter or ``UNKNOWN`` where there are options."""
    properties: JsonDict = {}
    for name, question in numbered(questions):
        bound: JsonObject = {"enum": [*question.letters, UNKNOWN]} if question.options else {"maxLength": 100}
        properties[name] = {"type": "string", **bound}
    return object_schema(properties)


def parse_answers(
    text: str | None, questions: Sequence[Question], finish_reason: str | None
) -> Answers | Failure:
    """One answer to each question, or a Failure: not exactly one JSON object with an answer, a key too many or too
    few, an answer that is no text or none of the options.
    """
    names = [name for name, _ in numbered(questions)]
    given = one_object(text, finish_reason, names)
    if isinstance(given, Failure):
        return given
    if given.keys() != set(names):
        return Failure(
            reason="missing_key", detail=f"asked for {', '.join(names)}, answered {', '.join(given)}"
        )
    answers: dict[str, str] = {}
    for name, question in numbered(questions):
        said = given[name]
        answer = question.accepted(said) if isinstance(said, str) else None
        if answer is None:
            detail = f"{name}: {head(repr(said))} is no answer to {question.text!r}"
            return Failure(reason="bad_answer", detail=detail)
        answers[name] = answer
    return answers


def load_vqa_template(path: str | None = None) -> str:
    """The packaged instruction, or the user's own at ``path``. Raises TemplateError."""
    return load_template("vqa", path, "QUESTIONS", "CAPTION")
