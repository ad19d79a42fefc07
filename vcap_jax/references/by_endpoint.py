"""References written by a model behind an OpenAI-compatible chat endpoint.

The client is the judge's, so retries, several servers, outages and keys are as there. Every caption is a request of
its own with a seed of its own; a group's requests go to one server, whose cache keeps the picture.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from typing import Self

from vcap_jax.data.examples import Example
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample, GroupIterator, PipelineSettings
from vcap_jax.data.references import Provenance, asked_digest
from vcap_jax.references.by_policy import WINDOW_SEED, caption_settings, reference_rollout
from vcap_jax.references.windows import WindowDraw, description
from vcap_jax.references.writing import Written
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.encoded_view import show
from vcap_jax.reward.endpoint import Role
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.prompts import build_messages
from vcap_jax.run.config import RunConfig
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.shutdown import requested

Load = Callable[[Sample], Example]
CAPTIONER = Role(
    who="the captioner", settings="judge", addresses="--by", model="--served-model", key="--api-key-env"
)


class EndpointWriter:
    """Captions by a served model (implements ``ReferenceWriter``); use as a context manager.

    config: prompts, sampling, seed, numbers of references and windows. endpoint: addresses, model, key, limits; its
    own temperature and answer length are replaced by those of the references. load: reads whole samples;
    load_windows: makes a reader of windows. samples: all that the pool is for. ended_only: leave out captions that
    were cut off.
    """

    def __init__(
        self,
        config: RunConfig,
        endpoint: JudgeConfig,
        samples: Sequence[Sample],
        *,
        load: Load,
        load_windows: Callable[[WindowDraw], Load],
        seed: int,
        ended_only: bool = False,
        say: Callable[[str], None],
    ) -> None:
        rollout = reference_rollout(config)
        self._config, self._load, self._load_windows, self._seed = config, load, load_windows, seed
        self._per_sample = rollout.group_size
        self._samples = samples
        self._fields = {"top_p": rollout.sampling.top_p}
        # The chat format knows no more rules than these; what is not sent is not claimed.
        sent = {"temperature": rollout.sampling.temperature, **self._fields}
        self._settings = caption_settings(config, rollout, config.references.segments) | {
            "sampling": sent,
            "ended_only": ended_only,
        }
        self._read = _ended_caption if ended_only else _caption
        self._endpoint = dataclasses.replace(
            endpoint,
            temperature=rollout.sampling.temperature,
            retry_temperature=rollout.sampling.temperature,
            max_tokens=rollout.max_completion_length,
        )
        self._in_flight = max(2, endpoint.concurrency * len(endpoint.urls) // self._per_sample)
        self.segments = config.references.segments if config.modality == "video" else 0
        self._client = JudgeClient(self._endpoint, role=CAPTIONER, say=say)
        self._model = ""

    def __enter__(self) -> Self:
        self._loop = LoopThread("writer of references")
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
    def provenance(self) -> Provenance:
        return Provenance(
            writer=f"{self._model} behind an endpoint",
            weights=None,
            seed=self._seed,
            settings=self._settings | {"segments": self.segments},
            asked=asked_digest(self._samples),
        )

    def whole(
        self, samples: Sequence[Sample], first: int, on_bad: Callable[[BadSample], None]
    ) -> Iterator[Written]:
        """See ``ReferenceWriter``."""
        places = {sample.id: first + index for index, sample in enumerate(samples)}
        for sample, texts in self._captions(samples, self._load, self._seed, on_bad):
            yield Written(place=places[sample.id], references=texts)

    def windows(
        self, samples: Sequence[Sample], first: int, on_bad: Callable[[BadSample], None]
    ) -> Iterator[Written]:
        """See ``ReferenceWriter``."""
        prompt = self._config.references.segment_prompt
        draw = WindowDraw(self._config.reward.local, seed=self._seed, prompt=prompt)
        items = draw.items(samples, self.segments, first % self.segments)
        places = {item.id: first + index for index, item in enumerate(items)}
        load = self._load_windows(draw)
        for item, texts in self._captions(items, load, self._seed + WINDOW_SEED, on_bad):
            described = tuple(filter(None, map(description, texts)))
            if described:
                yield Written(place=places[item.id], references=described, window=draw.drawn(item))
            else:
                on_bad(BadSample(id=item.id, reason=f"its {len(texts)} captions say nothing of the window"))

    def _captions(
        self, samples: Sequence[Sample], load: Load, seed: int, on_bad: Callable[[BadSample], None]
    ) -> Iterator[tuple[Sample, tuple[str, ...]]]:
        """In the order of ``samples``, with as many groups asked about at once as the servers have places for."""
        settings = PipelineSettings(
            batch_groups=1,
            shuffle=False,
            epochs=1,
            threads=self._config.data.threads,
            prefetch=4,
            on_bad_sample=self._config.data.on_bad_sample,
        )
        waiting: deque[tuple[Sample, Future[tuple[str, ...] | Failure]]] = deque()
        groups = GroupIterator(samples, load, settings, on_skip=on_bad)

        def finished() -> Iterator[tuple[Sample, tuple[str, ...]]]:
            sample, future = waiting.popleft()
            result = future.result()
            if isinstance(result, Failure):
                on_bad(BadSample(id=sample.id, reason=f"{result.reason}: {result.detail}"))
            else:
                yield sample, result

        try:
            for batch in groups:
                if requested():
                    break
                example = batch.examples[0]
                asked = self._loop.submit(self._ask(example, seed))
                waiting.append((example.sample, asked))
                if len(waiting) >= self._in_flight:
                    yield from finished()
            while waiting:
                yield from finished()
        finally:
            groups.close()
            for _, future in waiting:
                future.cancel()

    async def _ask(self, example: Example, seed: int) -> tuple[str, ...] | Failure:
        """The sample's captions, or the first failure if none of them came."""
        as_video = example.media.modality == "video" and await self._client.takes_video()
        shown = await asyncio.to_thread(show, example.media, None, as_video=as_video)
        messages = build_messages(shown.parts, example.request)

        async def one(k: int) -> str | Failure:
            key = f"{seed}/{example.sample.id}/{k}".encode()
            drawn = int.from_bytes(blake2b(key, digest_size=4).digest(), "big") >> 1
            own = dataclasses.replace(shown, fields={**shown.fields, **self._fields, "seed": drawn})
            answer = await self._client.ask(
                messages, self._read, shown=own, route=shown.key, prefix=shown.key
            )
            return answer.result

        results = await asyncio.gather(*(one(k) for k in range(self._per_sample)))
        texts = tuple(result for result in results if isinstance(result, str) and result)
        cut_off = Failure(
            reason="cut_off", detail="the captions were cut off; raise references.max_completion_length"
        )
        return texts or next((result for result in results if isinstance(result, Failure)), cut_off)


def _caption(content: str | None, finish_reason: str | None) -> str | Failure:
    """The text as it is; one that was cut off is a witness all the same. An empty one is asked for again."""
    if finish_reason == "content_filter":
        return Failure(reason="filtered", detail="the server's filter took the answer")
    text = (content or "").strip()
    return text or Failure(reason="empty_answer", detail="the answer has no text")


def _ended_caption(content: str | None, finish_reason: str | None) -> str | Failure:
    """``_caption`` for targets of imitation: "" for a caption that was cut off.

    This is no failure. With the same seed a second try would be cut off again, and cost as much as the
    longest caption."""
    return "" if finish_reason == "length" else _caption(content, finish_reason)
