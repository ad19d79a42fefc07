"""One pass over a group: its questions, answered by the store where it knows them and by the judge elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.media import JudgeMedia, TimeWindow
from vcap_jax.reward.prompts import build_messages, content_hash, fill_instruction, response_format
from vcap_jax.reward.scores import Scores, parse_scores
from vcap_jax.reward.shown import Shown, show, show_nothing
from vcap_jax.reward.store import Judgement, JudgementKey, JudgementStore, instruction_version
from vcap_jax.reward.templates import Instruction


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one text.

    seconds: in HTTP requests; 0 where the store knew it. key: of the judgement in the store; None for a text
    that nobody was asked about, "" for one that failed.
    """

    result: Scores | Failure
    seconds: float = 0.0
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What the questions of a pass have in common. route: of the group, for choosing its endpoint."""

    instruction: Instruction
    reference: str | None
    shown: Shown
    route: str


class Looking:
    """The pictures of one group, each view encoded once.

    sample_id: for messages. use_image: False shows words in their place. judge: says whether it takes videos.
    """

    def __init__(self, media: JudgeMedia, *, sample_id: str, use_image: bool, judge: JudgeClient) -> None:
        self._media, self._sample_id, self._use_image, self._judge = media, sample_id, use_image, judge
        self._views: dict[TimeWindow | None, asyncio.Task[Shown | Failure]] = {}

    async def at(self, window: TimeWindow | None) -> Shown | Failure:
        """The whole, or a window of a video; a Failure for media that cannot be read."""
        if window not in self._views:
            self._views[window] = asyncio.create_task(self._look(window))
        return await self._views[window]

    async def route(self) -> str:
        """What decides the group's endpoint: the content of its media, whatever window is looked at."""
        whole = await self.at(None) if self._use_image else None
        return whole.key if isinstance(whole, Shown) else content_hash(self._sample_id)

    async def _look(self, window: TimeWindow | None) -> Shown | Failure:
        if not self._use_image:
            return show_nothing(self._media, window)
        as_video = self._media.modality == "video" and await self._judge.takes_video()
        try:
            return await asyncio.to_thread(show, self._media, window, as_video=as_video)
        except Exception as error:  # whatever a decoder raises about one file must not end the run
            return Failure(reason="media", detail=f"{self._sample_id!r}: {type(error).__name__}: {error}")


class Asker:
    """Asks one judge. store: where judgements are kept; None keeps none."""

    def __init__(self, judge: JudgeClient, store: JudgementStore | None, *, max_analysis_chars: int) -> None:
        self._judge, self._store, self._max_analysis_chars = judge, store, max_analysis_chars

    async def judge(self, asked: Pass, texts: Sequence[str]) -> dict[str, Verdict]:
        """A verdict for each of the different ``texts``, all asked at once.

        Raises JudgeUnavailable and its kinds, and StoreError.
        """
        prompts = {
            text: fill_instruction(asked.instruction, reference=asked.reference, candidate=text)
            for text in texts
        }
        if self._store is None:
            keys: dict[str, JudgementKey] = {}
            known: dict[str, Judgement] = {}
        else:
            keys = await self._keys(asked, prompts)
            known = self._store.find(keys.values())
            self._judge.recorder.store_hits(len(known))
        verdicts = await asyncio.gather(
            *(self._verdict(asked, prompt, keys.get(text), known) for text, prompt in prompts.items())
        )
        return dict(zip(prompts, verdicts, strict=True))

    async def _keys(self, asked: Pass, prompts: dict[str, str]) -> dict[str, JudgementKey]:
        model = await self._judge.model()
        version = instruction_version(asked.instruction, self._max_analysis_chars)
        return {
            text: JudgementKey(
                model=model,
                instruction=asked.instruction.spec.name,
                version=version,
                media=asked.shown.key,
                reference=asked.reference,
                candidate=text,
                prompt=content_hash(prompt),
            )
            for text, prompt in prompts.items()
        }

    async def _verdict(
        self, asked: Pass, prompt: str, key: JudgementKey | None, known: dict[str, Judgement]
    ) -> Verdict:
        if key is not None and key.digest in known:
            return Verdict(result=known[key.digest].scores, key=key.digest)
        spec = asked.instruction.spec
        answer = await self._judge.ask(
            build_messages(asked.shown.parts, prompt),
            lambda content, finish: parse_scores(content, spec.score_keys, finish),
            response_format=response_format(spec, self._max_analysis_chars),
            shown=asked.shown,
            route=asked.route,
            prefix=content_hash(asked.shown.key, asked.instruction.template, asked.reference or ""),
        )
        if isinstance(answer.result, Failure):
            return Verdict(result=answer.result, seconds=answer.seconds, key="")
        if key is not None and self._store is not None:
            judgement = Judgement(
                scores=answer.result, usage=answer.usage, seconds=answer.seconds, tries=answer.tries
            )
            await asyncio.wrap_future(self._store.put(key, judgement))
        return Verdict(result=answer.result, seconds=answer.seconds, key="" if key is None else key.digest)
