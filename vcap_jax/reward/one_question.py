"""Families that ask one question about each candidate: the whole picture or video, the reference, the candidate.

What they have in common is here: groups that cannot be judged, texts without content, and one request for each
different text as soon as it has ended, media first and the candidate last, so that a server's caches hold everything
else for the group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import pydantic
from pydantic import ConfigDict

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.failures import Failure, FailureReason
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupPrompt, GroupScores, all_failed, unjudgeable
from vcap_jax.reward.json_objects import head, one_object
from vcap_jax.reward.judge_query import Form, JudgeQuery, MediaViews, Pass, Verdict
from vcap_jax.reward.open_group import OpenGroup, for_each
from vcap_jax.reward.prompts import content_hash, delimited
from vcap_jax.reward.templates import GENERATED_CAPTION, REFERENCE_CAPTION, TemplateError, read_template
from vcap_jax.system.json_records import adapter_of

T = TypeVar("T")

AS_ASKED = ConfigDict(alias_generator=str.capitalize, extra="forbid")
"""Of a record whose fields are the keys of an answer, which begin with a capital there."""

_PLACEHOLDER = re.compile(r"\{(REFERENCE|CAPTION|MOST)\}")
_PLACEHOLDERS = ("REFERENCE", "CAPTION", "MOST")


@dataclass(frozen=True, kw_only=True)
class QuestionTemplate:
    """A checked instruction with its placeholders filled but for reference and caption. name: of the family."""

    name: str
    text: str

    def fill(self, reference: str, caption: str) -> str:
        """The prompt for one candidate; either text stands between delimiter lines and is neutralised."""
        values = {
            "REFERENCE": delimited(reference, REFERENCE_CAPTION),
            "CAPTION": delimited(caption, GENERATED_CAPTION),
        }
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text)


def load_question(name: str, path: str | None, *, most: int) -> QuestionTemplate:
    """The packaged instruction ``name``, or the user's own at ``path``. most: items of a list in the answer.

    Raises TemplateError for an unreadable file, and where {REFERENCE}, {CAPTION} or {MOST} does not stand there once.
    """
    text, source = read_template(name, path)
    for place in _PLACEHOLDERS:
        if (count := text.count(f"{{{place}}}")) != 1:
            raise TemplateError(
                f"instruction {name!r} ({source}) has {{{place}}} {count} times: write it once"
            )
    return QuestionTemplate(name=name, text=text.strip().replace("{MOST}", str(most)) + "\n")


class OneQuestion(Generic[T]):
    """Puts one question about every candidate of a group."""

    def __init__(self, template: QuestionTemplate, form: Form[T], tools: FamilyTools) -> None:
        self._template, self._form, self._judge = template, form, tools.client()
        self._asker = JudgeQuery(self._judge, tools.store)

    async def verdicts(self, group: OpenGroup, reference: str) -> Mapping[str, Verdict[T]] | Failure:
        """A verdict for each different text with content, asked as soon as it has ended; a Failure where nothing can be
        said of the group.

        Raises JudgeUnavailable and its kinds, and StoreError.
        """
        prompt = group.prompt
        if (failure := unjudgeable(prompt, reference)) is not None:
            return failure
        looking = MediaViews(prompt.media, sample_id=prompt.sample_id, use_image=True, judge=self._judge)

        async def judged(text: str) -> Verdict[T]:
            shown = await looking.at(None)
            if isinstance(shown, Failure):
                return Verdict(result=shown, key="")
            one = Pass(
                form=self._form,
                fill=lambda text: self._template.fill(reference, text),
                reference=reference,
                shown=shown,
                route=await looking.route(),
                prefix=content_hash(shown.key, self._template.text, reference),
            )
            return await self._asker.ask(one, text)

        verdicts = await for_each((text async for text in group.texts() if text.strip()), judged)
        if verdicts and isinstance(unseen := await looking.at(None), Failure):
            return unseen
        return verdicts


class OneQuestionReward(Generic[T]):
    """What these families share; ``_candidate`` is a family's own.

    weights: see ``GroupScores``; None where the reward is no weighted sum.
    """

    def __init__(self, question: OneQuestion[T], weights: Mapping[str, float] | None = None) -> None:
        self._question, self._weights = question, weights or {}

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Always."""
        return True

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        """Always."""
        return True

    async def score_captions(self, group: OpenGroup) -> GroupScores:
        """One question for each different caption, as soon as it has ended. Raises ValueError for a group without a
        reference."""
        reference = _reference_of(group.prompt)
        verdicts = await self._question.verdicts(group, reference)
        if isinstance(verdicts, Failure):
            return all_failed(group.prompt, group.size, verdicts)
        return GroupScores(
            sample_id=group.prompt.sample_id,
            step=group.prompt.step,
            candidates=tuple(
                self._candidate(verdicts.get(text), text, reference)
                for text in (await group.whole()).captions
            ),
            full_reward=1.0,
            weights=self._weights,
        )

    def _candidate(self, verdict: Verdict[T] | None, caption: str, reference: str) -> CandidateScore:
        """What a caption earns; verdict: None for a text without content, about which nobody is asked."""
        raise NotImplementedError


def _reference_of(prompt: GroupPrompt) -> str:
    """The group's reference. Raises ValueError where there is none."""
    if prompt.reference is None:
        raise ValueError(
            f"sample {prompt.sample_id!r} has no reference caption: give the run a reference pool (data.references)"
        )
    return prompt.reference


def masked(verdict: Verdict[T], failure: Failure) -> CandidateScore:
    """A candidate about which nothing is known."""
    return CandidateScore(reward=None, failure=failure, keys={"global": verdict.key})


def read_answer(kind: type[T], text: str | None, finish_reason: str | None) -> T | Failure:
    """The one object of an answer as a record ``AS_ASKED``, which has all of its keys and no others; a Failure for
    anything else."""
    row = one_object(text, finish_reason, [field.name.capitalize() for field in fields(kind)])  # type: ignore[arg-type]
    if isinstance(row, Failure):
        return row
    try:
        return adapter_of(kind).validate_json(json.dumps(row), strict=True)  # type: ignore[arg-type]  # classes are hashable
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = "".join(f"{key}: " for key in problem["loc"])
        detail = f"{where}{head(problem['msg'])}: {head(repr(problem['input']))}"
        return Failure(reason=_REASONS.get(problem["type"], "bad_answer"), detail=detail)


def too_many(lists: Mapping[str, Sequence[object]], most: int) -> Failure | None:
    """The Failure of an answer with a list of more than ``most`` entries; lists: by key. None without one."""
    for key, items in lists.items():
        if len(items) > most:
            detail = f"{key} has {len(items)} entries, and at most {most} were asked for"
            return Failure(reason="bad_answer", detail=detail)
    return None


_REASONS: Mapping[str, FailureReason] = {
    "missing": "missing_key",
    "unexpected_keyword_argument": "unexpected_key",
    **dict.fromkeys(
        ("int_type", "int_from_float", "greater_than_equal", "less_than_equal", "value_error"), "bad_score"
    ),
}
"""What is wrong with an answer, by pydantic's name for it. Numbers are scores; a rule over several fields is of one."""
