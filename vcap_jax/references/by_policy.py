"""References written by a policy: its captions, several of a sample drawn as one group."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import Provenance, asked_digest
from vcap_jax.models.policy import Params
from vcap_jax.parallel.fingerprint import fingerprint
from vcap_jax.references.windows import WindowDraw, description
from vcap_jax.references.writing import Written
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext, group_sampler
from vcap_jax.run.setup import sample_reader
from vcap_jax.system.shutdown import requested

_SEED = 1_000_003
"""Added to the run's seed: never met by the training rollouts, whose fold is (seed, step)."""

WINDOW_SEED = 7_000_003
"""Added to a pool's seed for its windows, so that they are not drawn with the numbers of the whole samples."""


def reference_seed(config: RunConfig) -> int:
    """Of the draws of references: a run that writes its own and a pool made beforehand come out the same."""
    return config.seed + _SEED


def reference_rollout(config: RunConfig) -> RolloutConfig:
    """How references are drawn: as in the rollout, but for what ``config.references`` says."""
    asked = config.references
    return dataclasses.replace(
        config.rollout,
        group_size=asked.per_sample,
        sampling=asked.sampling or config.rollout.sampling,
        max_completion_length=asked.max_completion_length or config.rollout.max_completion_length,
    )


def caption_settings(config: RunConfig, rollout: RolloutConfig, segments: int) -> dict[str, Any]:
    """What a pool's captions depend on beside the writer and the seed, as its header states it."""
    data = config.data
    settings: dict[str, Any] = {
        "modality": config.modality,
        "per_sample": rollout.group_size,
        "sampling": asdict(rollout.sampling),
        "max_completion_length": rollout.max_completion_length,
        "prompt": data.image_prompt if config.modality == "image" else data.video_prompt,
        "max_pixels": data.max_pixels,
        "max_frames": data.max_frames,
        "max_frame_tokens": data.max_frame_tokens,
        "fps": data.fps,
        "segments": segments,
    }
    if segments:
        local = config.reward.local
        settings |= {
            "segment_prompt": config.references.segment_prompt,
            "segment_fraction": local.fraction,
            "segment_min_seconds": local.min_seconds,
        }
    return settings


class PolicyWriter:
    """Captions by a policy (implements ``ReferenceWriter``).

    ctx: its policy gives the model; params: its trainable parameters, on the whole mesh. name: the writer in words.
    samples: all that the pool is for. rollout: how captions are drawn. seed: of the draws. ended_only: leave out
    captions that the token budget cut off, as targets of imitation must. All processes must make it at the same time.
    """

    def __init__(
        self,
        ctx: RunContext,
        params: Params,
        samples: Sequence[Sample],
        *,
        name: str,
        seed: int,
        rollout: RolloutConfig,
        segments: int = 0,
        ended_only: bool = False,
    ) -> None:
        self._ctx, self._params, self._seed = ctx, ctx.own_params(params), seed
        own = rollout == ctx.config.rollout
        self._sampler = ctx.sampler if own else group_sampler(ctx.policy, rollout, ctx.processes)
        self._ended_only = ended_only
        self.segments = segments if ctx.config.modality == "video" else 0
        config = ctx.config
        settings = caption_settings(config, rollout, self.segments) | {
            "dtype": config.model.dtype,
            "ended_only": ended_only,
        }
        self.provenance = Provenance(
            writer=name,
            # As they are trained and kept: the same whatever the number of processes.
            weights=fingerprint(params, ctx.policy.frozen),
            seed=seed,
            settings=settings,
            asked=asked_digest(samples),
        )

    def whole(
        self, samples: Sequence[Sample], first: int, on_bad: Callable[[BadSample], None]
    ) -> Iterator[Written]:
        """See ``ReferenceWriter``."""
        captioner = self._ctx.captioner(self._sampler)
        places = {sample.id: first + index for index, sample in enumerate(samples)}
        for done in captioner.run(
            self._params, samples, seed=self._seed, first=first, on_bad=on_bad, stop=requested
        ):
            texts = self._texts(done)
            if texts:
                yield Written(place=places[done.sample.id], references=texts)
            else:
                on_bad(self._speechless(done))

    def windows(
        self, samples: Sequence[Sample], first: int, on_bad: Callable[[BadSample], None]
    ) -> Iterator[Written]:
        """See ``ReferenceWriter``."""
        config = self._ctx.config
        draw = WindowDraw(config.reward.local, seed=self._seed, prompt=config.references.segment_prompt)
        items = draw.items(samples, self.segments, first % self.segments)
        places = {item.id: first + index for index, item in enumerate(items)}
        load = sample_reader(config, self._ctx.policy.processor, window=draw, judged=False)
        captioner = self._ctx.captioner(self._sampler, load)
        seed = self._seed + WINDOW_SEED
        for done in captioner.run(self._params, items, seed=seed, first=first, on_bad=on_bad, stop=requested):
            texts = tuple(filter(None, map(description, self._texts(done))))
            if texts:
                item = done.sample
                yield Written(place=places[item.id], references=texts, window=draw.drawn(item))
            else:
                on_bad(self._speechless(done))

    def _texts(self, done: Captioned) -> tuple[str, ...]:
        kept = zip(done.captions, done.truncated, strict=True)
        return tuple(text for text, cut in kept if text and not (cut and self._ended_only))

    def _speechless(self, done: Captioned) -> BadSample:
        """A sample, or a window, that gets no entry although it could be read."""
        cut = sum(done.truncated) if self._ended_only else 0
        return BadSample(
            id=done.sample.id,
            reason=f"of its {len(done.captions)} captions {cut} were cut off and the others have no text",
        )
