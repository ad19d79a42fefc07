"""Captions by a model behind an OpenAI-compatible chat endpoint.

The client is the judge's, so retries, several servers, outages and keys are as there. Every caption is a request of
its own with a seed of its own; a sample's requests go to one server, whose cache keeps the picture.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, Self

from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample, GroupIterator, OnBadSample, PipelineSettings
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.encoded_view import show
from vcap_jax.reward.endpoint import Role
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.prompts import build_messages
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.json_records import record_values
from vcap_jax.system.json_values import JsonDict, JsonObject
from vcap_jax.system.shutdown import requested

SENT = ("temperature", "top_p")
"""The sampling rules that the chat format knows."""

CAPTIONER = Role(
    who="the captioner", settings="judge", addresses="--by", model="--served-model", key="--api-key-env"
)


class Asked(Protocol):
    """What is asked about a sample: ``data.examples.Shown``, or an ``Example`` that a policy could look at as well."""

    @property
    def sample(self) -> Sample: ...

    @property
    def request(self) -> str: ...

    @property
    def media(self) -> EncodedMedia: ...


Load = Callable[[Sample], Asked]


@dataclass(frozen=True, kw_only=True)
class _Text:
    text: str
    cut: bool


class EndpointCaptioner:
    """Captions samples, images and videos alike; use as a context manager.

    endpoint: addresses, model, key, limits; its own temperature and answer length are replaced by those of ``rollout``,
    of whose sampling rules the chat format knows temperature and top_p alone. threads, on_bad_sample: of reading, see
    ``PipelineSettings``.
    Entering raises JudgeUnavailable if the server does not become ready.
    """

    def __init__(
        self,
        endpoint: JudgeConfig,
        *,
        rollout: RolloutConfig,
        threads: int,
        on_bad_sample: OnBadSample = "skip",
        say: Callable[[str], None],
    ) -> None:
        sampling = rollout.sampling
        self._each = rollout.group_size
        self._fields = {"top_p": sampling.top_p}
        self.sent = sent_rules(sampling)
        """The sampling rules that are sent; what is not sent is not claimed."""
        self._endpoint = dataclasses.replace(
            endpoint,
            temperature=sampling.temperature,
            retry_temperature=sampling.temperature,
            max_tokens=rollout.max_completion_length,
        )
        self._reading = PipelineSettings(
            batch_groups=1, shuffle=False, epochs=1, threads=threads, prefetch=4, on_bad_sample=on_bad_sample
        )
        self._in_flight = max(2, endpoint.concurrency * len(endpoint.urls) // self._each)
        self._client = JudgeClient(self._endpoint, role=CAPTIONER, say=say)
        self._model = ""

    def __enter__(self) -> Self:
        self._loop = LoopThread("captioner")
        try:
            self._loop.run(self._client.__aenter__())
            self._model = self._loop.run(self._client.wait_until_ready(self._endpoint.ready_timeout_s))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.close(self._client.__aexit__)

    @property
    def name(self) -> str:
        """The captioner in words."""
        return writer_name(self._model)

    def captions(
        self, samples: Sequence[Sample], load: Load, *, seed: int, on_bad: Callable[[BadSample], None]
    ) -> Iterator[Captioned]:
        """One entry for every sample that an answer came for, in their order; of the others ``on_bad`` is told. One
        that some of the answers came for has these, and says what is lacking.

        As many samples are asked about at once as the servers have places for. A sample's seeds depend on ``seed`` and
        its id. What is in work when a signal comes is the last.
        """
        if not samples:
            return
        waiting: deque[tuple[Sample, Future[Captioned | Failure]]] = deque()
        groups = GroupIterator(samples, load, self._reading, on_skip=on_bad)
        wanted = Counter(sample.files for sample in samples)

        def finished() -> Iterator[Captioned]:
            sample, future = waiting.popleft()
            result = future.result()
            if isinstance(result, Failure):
                on_bad(BadSample(id=sample.id, reason=str(result)))
            else:
                yield result

        try:
            for batch in groups:
                if requested():
                    break
                asked = batch.examples[0]
                several = self._each > 1 or wanted[asked.sample.files] > 1
                waiting.append((asked.sample, self._loop.submit(self._ask(asked, seed, several=several))))
                if len(waiting) >= self._in_flight:
                    yield from finished()
            while waiting:
                yield from finished()
        finally:
            groups.close()
            for _, future in waiting:
                future.cancel()

    async def _ask(self, asked: Asked, seed: int, *, several: bool) -> Captioned | Failure:
        """The sample's captions, with what kept others from coming; the first failure if none of them came.

        several: its media are asked about more than once, so a first request brings them for all.
        """
        as_video = asked.media.modality == "video" and await self._client.takes_video()
        shown = await asyncio.to_thread(show, asked.media, None, as_video=as_video)
        messages = build_messages(shown.parts, asked.request)

        async def one(k: int) -> _Text | Failure:
            key = f"{seed}/{asked.sample.id}/{k}".encode()
            drawn = int.from_bytes(blake2b(key, digest_size=4).digest(), "big") >> 1
            own = dataclasses.replace(shown, fields={**shown.fields, **self._fields, "seed": drawn})
            prefix = shown.key if several else None
            answer = await self._client.ask(messages, _read, shown=own, route=shown.key, prefix=prefix)
            return answer.result

        results = await asyncio.gather(*(one(k) for k in range(self._each)))
        texts = [result for result in results if isinstance(result, _Text)]
        failed = [result for result in results if isinstance(result, Failure)]
        if not texts:
            return failed[0]
        lacking = f"{len(failed)} of {len(results)} captions are lacking: {failed[0]}" if failed else ""
        return Captioned(
            asked.sample,
            tuple(t.text for t in texts),
            lengths=(),
            truncated=tuple(t.cut for t in texts),
            lacking=lacking,
        )


def sent_rules(sampling: SamplingConfig) -> JsonDict:
    """The rules that a served model is asked to draw by."""
    return {name: getattr(sampling, name) for name in SENT}


def shown_rules(media: JudgeMediaSettings, endpoint: JudgeConfig) -> JsonDict:
    """How pictures and clips reach a served model, as it is noted: what is not the default."""
    rules: JsonDict = {}
    if changed := record_values(media):
        rules["judge_media"] = changed
    if endpoint.video_input != "auto":
        rules["video_input"] = endpoint.video_input
    return rules


def as_noted_now(noted: JsonObject) -> JsonDict:
    """What was noted of captions, as it is noted now: of a served model, of which no weights are known, earlier
    versions noted rules that were not sent."""
    rules = noted.get("sampling")
    if noted.get("weights") is not None or not isinstance(rules, Mapping):
        return dict(noted)
    return {**noted, "sampling": {name: value for name, value in rules.items() if name in SENT}}


def writer_name(model: str) -> str:
    """A served model as a captioner, in words."""
    return f"{model} behind an endpoint"


def _read(content: str | None, finish_reason: str | None) -> _Text | Failure:
    """The text as it is. An empty one is asked for again, unless it was cut off: with the same seed it would be so once
    more, and cost as much as the longest caption."""
    if finish_reason == "content_filter":
        return Failure(reason="filtered", detail="the server's filter took the answer")
    text, cut = (content or "").strip(), finish_reason == "length"
    return (
        _Text(text=text, cut=cut)
        if text or cut
        else Failure(reason="empty_answer", detail="the answer has no text")
    )
