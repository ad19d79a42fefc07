"""Captions by a model behind an OpenAI-compatible chat endpoint.

The client is the judge's, so retries, several servers, outages and keys are as there. Every caption is a request of
its own with a seed of its own; a sample's requests go to one server, whose cache keeps the picture. As many samples
are in work as the servers have places for, and the next one begins when any is done.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Self

from vcap_jax.data.examples import Shown
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample, GroupIterator, OnBadSample, PipelineSettings
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.encoded_view import show
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import CUT_OFF, STOPPED, THOUGHT, THOUGHT_END
from vcap_jax.reward.prompts import build_messages
from vcap_jax.reward.role import Role
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.system import in_work
from vcap_jax.system.digests import number_of
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.json_records import record_values
from vcap_jax.system.json_values import JsonDict, JsonObject
from vcap_jax.system.shutdown import requested

SENT = ("temperature", "top_p")
"""The sampling rules that the chat format knows."""

CAPTIONER = Role(
    who="the captioner",
    settings="judge",
    # As Python calls it, and the command line.
    addresses="by (--by)",
    model="served_model (--served-model)",
    key="api_key_env (--api-key-env)",
)

_SILENT: JsonObject = {"chat_template_kwargs": {"enable_thinking": False}}
"""As a policy is asked here: a model that may think aloud is to caption without."""

_HELD = 16
"""Samples that have ended and wait for their turn, for each one that may be in work: the slowest answer takes many
times as long as most, and captions are small."""


Load = Callable[[Sample], Shown]


@dataclass(frozen=True, kw_only=True)
class _Text:
    text: str
    cut: bool


class EndpointCaptioner:
    """Captions samples, images and videos alike; use as a context manager.

    endpoint: addresses, model, key, limits; its own temperature and answer length are replaced by those of ``rollout``,
    of whose sampling rules the chat format knows temperature and top_p alone. threads, on_bad_sample: of reading, see
    ``PipelineSettings``. prefetch: samples read ahead, None for one of each thread.
    Entering raises JudgeUnavailable if the server does not become ready.
    """

    def __init__(
        self,
        endpoint: JudgeConfig,
        *,
        rollout: RolloutConfig,
        threads: int,
        prefetch: int | None = None,
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
            batch_groups=1,
            shuffle=False,
            epochs=1,
            threads=threads,
            # Fewer than there are threads would leave some of them idle.
            prefetch=prefetch or threads,
            on_bad_sample=on_bad_sample,
        )
        self._cut_off = Failure(
            reason="cut_off",
            detail=f"its {rollout.max_completion_length} tokens were used up before any text: raise "
            "rollout.max_completion_length (--max-tokens; of references references.max_completion_length), or serve "
            "the model without thinking",
        )
        """Of an answer that has been read: what fails in reading would be asked for again."""
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

        One that is slow does not keep those behind it from being asked about, until ``_HELD`` times as many of them as
        are in work wait for it. A sample's seeds depend on ``seed`` and its id. What is in work when a signal comes is
        the last.
        """
        for outcome in self._outcomes([samples], load, seed=seed, in_order=True):
            if isinstance(outcome, BadSample):
                on_bad(outcome)
            else:
                yield outcome

    def as_they_come(
        self, parts: Iterable[Sequence[Sample]], load: Load, *, seed: int
    ) -> Iterator[Captioned | BadSample]:
        """An entry for every sample as soon as its answers are there, whatever those before it wait for; else as
        ``captions``.

        parts: the samples. A part is asked for once the one before has been read, while that is in work.
        """
        return self._outcomes(parts, load, seed=seed, in_order=False)

    def _outcomes(
        self, parts: Iterable[Sequence[Sample]], load: Load, *, seed: int, in_order: bool
    ) -> Iterator[Captioned | BadSample]:
        def begun() -> Generator[Future[Captioned | BadSample], None, None]:
            for read in self._read_samples(parts, load):
                if isinstance(read, BadSample):
                    yield in_work.ready(read)
                    continue
                asked, several = read
                work = self._ask(asked.sample, asked.request, asked.media, seed, several=several)
                yield self._loop.submit(work)

        with closing(begun()) as pieces:
            if in_order:
                yield from in_work.in_order(pieces, self._in_flight, held=_HELD * self._in_flight)
                return
            with closing(in_work.as_they_end(pieces, self._in_flight)) as ended:
                for _, outcome in ended:
                    yield outcome

    def _read_samples(
        self, parts: Iterable[Sequence[Sample]], load: Load
    ) -> Iterator[BadSample | tuple[Shown, bool]]:
        """Every sample with whether its media are asked about more than once, or why it cannot be read. A signal ends
        it."""
        for samples in parts:
            if not samples:
                continue
            bad: list[BadSample] = []
            wanted = Counter(sample.files for sample in samples)
            with closing(GroupIterator(samples, load, self._reading, on_skip=bad.append)) as groups:
                for batch in groups:
                    yield from bad
                    bad.clear()
                    if requested():
                        return
                    asked = batch.examples[0]
                    yield asked, self._each > 1 or wanted[asked.sample.files] > 1
            yield from bad

    async def _ask(
        self, sample: Sample, request: str, media: EncodedMedia, seed: int, *, several: bool
    ) -> Captioned | BadSample:
        """The sample's captions, with what kept others from coming; the first failure if none of them came.

        Not given all that was read of the sample: what a policy would see of a long video takes 150 MB.
        several: its media are asked about more than once, so a first request brings them for all.
        """
        as_video = media.modality == "video" and await self._client.takes_video()
        shown = await asyncio.to_thread(show, media, None, as_video=as_video)
        messages = build_messages(shown.parts, request)

        async def one(k: int) -> _Text | Failure:
            drawn = number_of(f"{seed}/{sample.id}/{k}", size=4) >> 1
            fields = {**shown.fields, **self._fields, "seed": drawn}
            own = dataclasses.replace(shown, fields=fields, of_vllm=_SILENT)
            prefix = shown.key if several else None
            answer = await self._client.ask(messages, _read, shown=own, route=shown.key, prefix=prefix)
            result = answer.result
            return self._cut_off if isinstance(result, _Text) and not result.text else result

        results = await asyncio.gather(*(one(k) for k in range(self._each)))
        texts = [result for result in results if isinstance(result, _Text)]
        failed = [result for result in results if isinstance(result, Failure)]
        if not texts:
            return BadSample(id=sample.id, reason=str(failed[0]))
        lacking = f"{len(failed)} of {len(results)} captions are lacking: {failed[0]}" if failed else ""
        return Captioned(
            sample,
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


def writer_name(model: str) -> str:
    """A served model as a captioner, in words."""
    return f"{model} behind an endpoint"


def _read(content: str | None, finish_reason: str | None) -> _Text | Failure:
    """The text as it is, without thoughts. An empty one is asked for again, unless it was cut off: with the same seed
    it would be so once more, and cost as much as the longest caption."""
    if finish_reason in STOPPED:
        return Failure(reason="filtered", detail=f"the server ended the caption with {finish_reason!r}")
    text, cut = (content or "").rpartition(THOUGHT_END)[2].strip(), finish_reason in CUT_OFF
    if text.startswith(THOUGHT):
        text = ""
    return (
        _Text(text=text, cut=cut)
        if text or cut
        else Failure(reason="empty_answer", detail="the answer has no text")
    )
