"""The questions of a pass over a group, answered by the store where it knows them and by the judge elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.encoded_view import EncodedView, show, show_nothing
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.prompts import build_messages, content_hash, schema_format, verdict_schema
from vcap_jax.reward.question import AS_CONFIGURED, Drawing, Verdict
from vcap_jax.reward.scores import Scores, parse_scores, scores_of
from vcap_jax.reward.store import Judgement, JudgementKey, JudgementStore
from vcap_jax.reward.templates import Instruction
from vcap_jax.system.json_values import JsonObject

T = TypeVar("T")


class Unreadable(ValueError):
    """An answer in a store that an earlier version's reader took, and today's does not."""


@dataclass(frozen=True, kw_only=True)
class Form(Generic[T]):
    """A kind of answer.

    name, version: in the store; the version changes with the instruction's text and the answer's schema.
    response_format: the field that holds a server to the schema. read: (content, finish_reason) to a value or a
    Failure. pack, unpack: between the value and the JSON object that the store keeps; ``unpack`` raises Unreadable for
    one that is to be asked for again.
    """

    name: str
    version: str
    response_format: JsonObject
    read: Callable[[str | None, str | None], T | Failure]
    pack: Callable[[T], JsonObject]
    unpack: Callable[[JsonObject], T]


@dataclass(frozen=True, kw_only=True)
class Pass(Generic[T]):
    """What the questions of a pass have in common.

    fill: the prompt for a text. reference: of the store's key, None where there is none. shown: the visual part,
    None for a question about text alone. route: of the group, for choosing its endpoint. prefix: what the prompts
    share and a first request has the server read for all, None where none need go ahead. drawing: how answers are
    drawn. sample: number of the answer, where several are drawn to one question.
    """

    form: Form[T]
    fill: Callable[[str], str]
    reference: str | None
    shown: EncodedView | None
    route: str
    prefix: str | None
    drawing: Drawing = AS_CONFIGURED
    sample: int = 0


def schema_form(
    name: str,
    template: str,
    schema: JsonObject,
    *,
    read: Callable[[str | None, str | None], T | Failure],
    pack: Callable[[T], JsonObject],
    unpack: Callable[[JsonObject], T],
) -> Form[T]:
    """The answer that the instruction ``template`` asks for, held to ``schema``. The rest: see ``Form``."""
    return Form(
        name=name,
        version=content_hash(template, json.dumps(schema, sort_keys=True)),
        response_format=schema_format(name, schema),
        read=read,
        pack=pack,
        unpack=unpack,
    )


def verdict_form(instruction: Instruction, max_analysis_chars: int) -> Form[Scores]:
    """The verdict that an instruction of the judge asks for."""
    spec = instruction.spec
    return schema_form(
        spec.name,
        instruction.template,
        verdict_schema(spec, max_analysis_chars),
        read=lambda content, finish: parse_scores(content, spec.score_keys, finish),
        pack=Scores.as_answer,
        unpack=scores_of,
    )


class MediaViews:
    """The pictures of one group, each view encoded once.

    sample_id: for messages. use_image: False shows words in their place. judge: says whether it takes videos.
    """

    def __init__(self, media: EncodedMedia, *, sample_id: str, use_image: bool, judge: JudgeClient) -> None:
        self._media, self._sample_id, self._use_image, self._judge = media, sample_id, use_image, judge
        self._views: dict[TimeWindow | None, asyncio.Task[EncodedView | Failure]] = {}

    async def at(self, window: TimeWindow | None) -> EncodedView | Failure:
        """The whole, or a window of a video; a Failure for media that cannot be read."""
        if window not in self._views:
            self._views[window] = asyncio.create_task(self._look(window))
        return await self._views[window]

    async def pass_over(
        self,
        window: TimeWindow | None,
        form: Form[T],
        template: str,
        fill: Callable[[str], str],
        reference: str | None,
    ) -> Pass[T] | Failure:
        """The pass of one instruction, with the text ``template``, over one view; a Failure as ``at``."""
        shown = await self.at(window)
        if isinstance(shown, Failure):
            return shown
        # The group's endpoint is decided by the content of its media, whatever window is looked at.
        whole = await self.at(None) if self._use_image else None
        return Pass(
            form=form,
            fill=fill,
            reference=reference,
            shown=shown,
            route=whole.key if isinstance(whole, EncodedView) else content_hash(self._sample_id),
            prefix=content_hash(shown.key, template, reference or ""),
        )

    async def _look(self, window: TimeWindow | None) -> EncodedView | Failure:
        if not self._use_image:
            return show_nothing(self._media, window)
        as_video = self._media.modality == "video" and await self._judge.takes_video()
        try:
            return await asyncio.to_thread(show, self._media, window, as_video=as_video)
        except Exception as error:  # whatever a decoder raises about one file must not end the run
            return Failure(reason="media", detail=f"{self._sample_id!r}: {type(error).__name__}: {error}")


class JudgeQuery:
    """Asks one judge. store: where answers are kept; None keeps none."""

    def __init__(self, judge: JudgeClient, store: JudgementStore | None) -> None:
        self._judge, self._store = judge, store

    async def ask(self, asked: Pass[T] | Failure, text: str) -> Verdict[T]:
        """The verdict of ``text``. Raises JudgeUnavailable and its kinds, and StoreError."""
        if isinstance(asked, Failure):
            return Verdict(result=asked, key="")
        form, prompt = asked.form, asked.fill(text)
        key: JudgementKey | None = None
        if self._store is not None:
            key = _key(asked, await self._judge.model(), self._judge.temperature, text, prompt)
            key, known = _known(form, self._store, key)
            if known is not None:
                self._judge.recorder.store_hits(1)
                return known
        verdict = await self._judge.ask(
            build_messages(() if asked.shown is None else asked.shown.parts, prompt),
            form.read,
            response_format=form.response_format,
            shown=asked.shown,
            route=asked.route,
            prefix=asked.prefix,
            drawing=asked.drawing,
        )
        if key is not None and self._store is not None and not isinstance(verdict.result, Failure):
            judgement = Judgement(
                answer=form.pack(verdict.result),
                usage=verdict.usage,
                seconds=verdict.seconds,
                tries=verdict.tries,
            )
            await asyncio.wrap_future(self._store.put(key, judgement))
            # Another group may have asked the same meanwhile. The store keeps the first answer, so it is everybody's:
            # what is computed anew from the store is what was earned.
            return _kept(form, self._store, key) or replace(verdict, key=key.digest)
        return replace(verdict, key="")


def _known(form: Form[T], store: JudgementStore, key: JudgementKey) -> tuple[JudgementKey, Verdict[T] | None]:
    """What the store knows, and the key. An answer that cannot be read any more stays; another is kept beside it."""
    while True:
        try:
            return key, _kept(form, store, key)
        except Unreadable:
            key = replace(key, version=f"{key.version}+")


def _kept(form: Form[T], store: JudgementStore, key: JudgementKey) -> Verdict[T] | None:
    """What the store knows."""
    stored = store.find(key)
    if stored is None:
        return None
    return Verdict(
        result=form.unpack(stored.answer),
        seconds=stored.seconds,
        tries=stored.tries,
        usage=stored.usage,
        key=key.digest,
    )


def _key(asked: Pass[T], model: str, temperature: float, text: str, prompt: str) -> JudgementKey:
    """temperature: of the judge, which decides where the pass names none."""
    drawn = [str(asked.sample)] if asked.sample else []
    if asked.drawing.temperature is None and temperature > 0:
        drawn.append(f"temperature {temperature}")
    return JudgementKey(
        model=model,
        instruction=asked.form.name,
        version=asked.form.version,
        media="" if asked.shown is None else asked.shown.key,
        reference=asked.reference,
        candidate=text,
        prompt=content_hash(prompt, *drawn),
    )
