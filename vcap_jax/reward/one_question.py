"""Families that ask one question about each candidate: the whole picture or video, the reference, the candidate.

What they have in common is here: groups that cannot be judged, texts without content, and one request for each
different text as soon as it has ended, media first and the candidate last, so that a server's caches hold everything
else for the group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Generic, TypeVar

import pydantic
from pydantic import ConfigDict

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.failures import Failure, FailureReason
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupScores, all_failed, unjudgeable
from vcap_jax.reward.json_objects import head, one_object
from vcap_jax.reward.judge_query import Form, JudgeQuery, MediaViews, schema_form
from vcap_jax.reward.open_group import OpenGroup, for_each
from vcap_jax.reward.prompts import delimited
from vcap_jax.reward.question import Verdict
from vcap_jax.reward.templates import GENERATED_CAPTION, REFERENCE_CAPTION, filled, load_template
from vcap_jax.system.json_records import adapter_of, as_record, record_values
from vcap_jax.system.json_values import JsonObject

T = TypeVar("T")

AS_ASKED = ConfigDict(alias_generator=str.capitalize, extra="forbid")
"""Of a record whose fields are the keys of an answer, which begin with a capital there."""


def load_question(name: str, path: str | None, *, most: int) -> str:
    """The packaged instruction ``name``, or the user's own at ``path``. most: items of a list in the answer.

    Raises TemplateError for an unreadable file, and where {REFERENCE}, {CAPTION} or {MOST} does not stand there once.
    """
    return load_template(name, path, "REFERENCE", "CAPTION", "MOST").replace("{MOST}", str(most))


def filled_question(template: str, reference: str, caption: str) -> str:
    """The prompt for one candidate; either text stands between delimiter lines and is neutralised."""
    values = {
        "REFERENCE": delimited(reference, REFERENCE_CAPTION),
        "CAPTION": delimited(caption, GENERATED_CAPTION),
    }
    return filled(template, values)


class OneQuestionReward(Generic[T]):
    """What these families share; ``_candidate`` is a family's own.

    template: see ``load_question``. weights: see ``GroupScores``; None where the reward is no weighted sum.
    """

    def __init__(
        self, template: str, form: Form[T], tools: FamilyTools, weights: Mapping[str, float] | None = None
    ) -> None:
        self._template, self._form, self._weights = template, form, weights or {}
        self._judge = tools.client()
        self._asker = JudgeQuery(self._judge, tools.store)

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Always."""
        return True

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        """Always."""
        return True

    async def score_captions(self, group: OpenGroup) -> GroupScores:
        """One question for each different caption, as soon as it has ended.

        Raises ValueError for a group without a reference, JudgeUnavailable and its kinds, and StoreError.
        """
        prompt, reference = group.prompt, group.prompt.reference
        if reference is None:
            raise ValueError(
                f"sample {prompt.sample_id!r} has no reference caption: give the run a reference pool (data.references)"
            )
        if (failure := unjudgeable(prompt, reference)) is not None:
            return all_failed(prompt, group.size, failure)
        looking = MediaViews(prompt.media, sample_id=prompt.sample_id, use_image=True, judge=self._judge)

        def fill(text: str) -> str:
            return filled_question(self._template, reference, text)

        async def judged(text: str) -> Verdict[T]:
            asked = await looking.pass_over(None, self._form, self._template, fill, reference)
            return await self._asker.ask(asked, text)

        verdicts = await for_each((text async for text in group.texts() if text.strip()), judged)
        if verdicts and isinstance(unseen := await looking.at(None), Failure):
            return all_failed(prompt, group.size, unseen)
        return GroupScores(
            sample_id=prompt.sample_id,
            step=prompt.step,
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


def masked(verdict: Verdict[T], failure: Failure) -> CandidateScore:
    """A candidate about which nothing is known."""
    return CandidateScore(reward=None, failure=failure, keys={"global": verdict.key})


def record_form(kind: type[T], name: str, template: str, schema: JsonObject, *, most: int) -> Form[T]:
    """The answer that the instruction ``template`` asks for, as a record ``AS_ASKED``.

    Read is the one object that has all of its keys and no others, and lists of at most ``most`` entries; anything else
    is a Failure.
    """

    def read(text: str | None, finish_reason: str | None) -> T | Failure:
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        row = one_object(text, finish_reason, [name.capitalize() for name in names])
        if isinstance(row, Failure):
            return row
        try:
            record = adapter_of(kind).validate_json(json.dumps(row), strict=True)  # type: ignore[arg-type]  # classes are hashable
        except pydantic.ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = "".join(f"{key}: " for key in problem["loc"])
            detail = f"{where}{head(problem['msg'])}: {head(repr(problem['input']))}"
            return Failure(reason=_REASONS.get(problem["type"], "bad_answer"), detail=detail)
        for name in names:
            items = getattr(record, name)
            if isinstance(items, tuple) and len(items) > most:
                detail = f"{name.capitalize()} has {len(items)} entries, and at most {most} were asked for"
                return Failure(reason="bad_answer", detail=detail)
        return record

    return schema_form(
        name,
        template,
        schema,
        read=read,
        pack=record_values,
        unpack=lambda kept: as_record(kind, kept, "a kept answer"),
    )


_REASONS: Mapping[str, FailureReason] = {
    "missing": "missing_key",
    "unexpected_keyword_argument": "unexpected_key",
    **dict.fromkeys(
        ("int_type", "int_from_float", "greater_than_equal", "less_than_equal", "value_error"), "bad_score"
    ),
}
"""What is wrong with an answer, by pydantic's name for it. Numbers are scores; a rule over several fields is of one."""
