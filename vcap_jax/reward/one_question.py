"""Families that ask one question about each candidate: the whole picture or video, the reference, the candidate.

What they have in common is here: groups that cannot be judged, texts without content, and one request for each
different text as soon as it has ended, media first and the candidate last, so that a server's caches hold everything
else for the group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ConfigDict

from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupPrompt
from vcap_jax.reward.json_objects import KeyedPairs, head, read_objects
from vcap_jax.reward.judge_query import Form, JudgeQuery, MediaViews, Pass, Verdict
from vcap_jax.reward.open_group import OpenGroup, for_each
from vcap_jax.reward.prompts import content_hash, delimited
from vcap_jax.reward.templates import GENERATED_CAPTION, REFERENCE_CAPTION, TemplateError, read_template

T = TypeVar("T")

AS_ASKED = ConfigDict(alias_generator=str.capitalize)
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
        if not reference.strip():
            return Failure(reason="no_reference", detail=f"the reference of {prompt.sample_id!r} has no text")
        if prompt.media.modality == "video" and not 0 < prompt.media.duration < math.inf:
            detail = f"{prompt.sample_id!r}: a video of {prompt.media.duration} seconds"
            return Failure(reason="media", detail=detail)
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


def reference_of(prompt: GroupPrompt) -> str:
    """The group's reference. Raises ValueError where there is none."""
    if prompt.reference is None:
        raise ValueError(
            f"sample {prompt.sample_id!r} has no reference caption: give the run a reference pool (data.references)"
        )
    return prompt.reference


def masked(verdict: Verdict[T], failure: Failure) -> CandidateScore:
    """A candidate about which nothing is known."""
    return CandidateScore(
        reward=None, failure=failure, keys={"global": verdict.key}, judge_seconds=verdict.seconds
    )


def read_lists(
    text: str | None,
    finish_reason: str | None,
    keys: Sequence[str],
    build: Callable[[Mapping[str, object]], T | Failure],
) -> T | Failure:
    """The one object of an answer with exactly ``keys``, built; a Failure for anything else."""
    objects = read_objects(text, finish_reason)
    if isinstance(objects, Failure):
        return objects
    found = [pairs for pairs in objects if any(key in keys for key, _ in pairs)]
    if len(found) != 1:
        detail = f"{len(found)} JSON objects with {', '.join(keys)} in: {head(text or '')}"
        return Failure(reason="ambiguous" if found else "no_verdict", detail=detail)
    values = exact_keys(found[0], keys)
    return values if isinstance(values, Failure) else build(values)


def exact_keys(given: object, keys: Sequence[str]) -> dict[str, object] | Failure:
    """An object with these keys, each once, and no others."""
    if not isinstance(given, KeyedPairs):
        return Failure(reason="bad_answer", detail=f"{head(repr(given))} is no object with {', '.join(keys)}")
    names = [key for key, _ in given]
    told = f"(keys: {', '.join(map(repr, names[:12]))})"
    if missing := [key for key in keys if key not in names]:
        return Failure(reason="missing_key", detail=f"missing: {', '.join(missing)} {told}")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        return Failure(reason="repeated_key", detail=f"repeated: {', '.join(repeated)} {told}")
    if extra := [name for name in names if name not in keys]:
        return Failure(reason="unexpected_key", detail=f"not asked for: {', '.join(extra)} {told}")
    return dict(given)


def read_items(
    given: object, key: str, most: int, build: Callable[[object], T | Failure]
) -> tuple[T, ...] | Failure:
    """The items of a list of at most ``most``; a Failure for the first that cannot be used."""
    if not isinstance(given, list) or isinstance(given, KeyedPairs):
        return Failure(reason="bad_answer", detail=f"{key} is {head(repr(given))}, not a list")
    if len(given) > most:
        return Failure(
            reason="bad_answer", detail=f"{key} has {len(given)} entries, and at most {most} were asked for"
        )
    items: list[T] = []
    for number, one in enumerate(given, 1):
        item = build(one)
        if isinstance(item, Failure):
            return Failure(reason=item.reason, detail=f"entry {number} of {key}: {item.detail}")
        items.append(item)
    return tuple(items)
