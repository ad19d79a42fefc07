"""Who writes references: any captioner, of whole samples and windows of videos, and as answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Protocol

from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import Provenance, asked_digest
from vcap_jax.references.beside import Asking, WindowDraw, description
from vcap_jax.references.writing import ANSWERS, WHOLE, WINDOWS, Part, Written
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.system.json_values import JsonDict

_SEEDS = {WHOLE: 0, WINDOWS: 7_000_003, ANSWERS: 11_000_003}
"""Added to a pool's seed, so that windows and answers are not drawn with the numbers of the whole samples."""

Report = Callable[[BadSample], None]


class Draws(Protocol):
    """Captions by one captioner, in the order of the samples: of whole ones, or of windows as ``window`` draws them.
    indices: of the samples, which their draws depend on. questions: so many samples in a row are questions about one
    picture or video."""

    def __call__(
        self,
        samples: Sequence[Sample],
        window: WindowDraw | None,
        *,
        seed: int,
        indices: Sequence[int],
        on_bad: Report,
        questions: int = 1,
    ) -> Iterator[Captioned]: ...


class CaptionWriter:
    """References of captions (implements ``ReferenceWriter``).

    draws: who captions. samples: all that the pool is for. name, weights: of the captioner, as the pool's header has
    them. rollout, seed: how captions are drawn. own: what else they depend on, beside ``caption_settings``. segments:
    windows of each video. asking: questions to each sample. ended_only: leave out captions that the token budget cut
    off, as targets of imitation must.
    """

    def __init__(
        self,
        config: RunConfig,
        draws: Draws,
        samples: Sequence[Sample],
        *,
        name: str,
        weights: str | None,
        seed: int,
        rollout: RolloutConfig,
        own: JsonDict,
        segments: int,
        asking: Asking | None,
        ended_only: bool,
    ) -> None:
        segments = segments if config.modality == "video" else 0
        self._config, self._draws, self._asking, self._ended_only = config, draws, asking, ended_only
        parts: dict[Part, int] = {WINDOWS: segments, ANSWERS: 0 if asking is None else asking.each}
        self.each = {part: each for part, each in parts.items() if each}
        self.provenance = Provenance(
            writer=name,
            weights=weights,
            seed=seed,
            settings=caption_settings(config, rollout, segments, asking) | own,
            asked=asked_digest(samples),
        )

    def write(
        self, part: Part, samples: Sequence[Sample], indices: Sequence[int], skip: int, on_bad: Report
    ) -> Iterator[Written]:
        """See ``ReferenceWriter``."""
        config, seed, each = self._config, self.provenance.seed, self.each.get(part, 1)
        begin = indices[0] * each + skip if indices else 0
        questions = 1
        window, items = None, list(samples)[skip:]
        if part == WINDOWS:
            window = WindowDraw(config.reward.local, seed=seed, prompt=config.references.segment_prompt)
            items = window.items(samples, each, skip)
        elif part == ANSWERS:
            assert self._asking is not None
            # All of a sample's together, also where some are there already.
            skip, questions = 0, each
            items = self._asking.items(samples, seed=seed + _SEEDS[part])
        pairs = zip(samples, indices, strict=True)
        places = [(index * each + k, k, sample.id) for sample, index in pairs for k in range(each)][skip:]
        place_of = {item.id: place for item, place in zip(items, places, strict=True)}
        prompts = {item.id: item.prompt for item in items}

        def report(bad: BadSample) -> None:
            """Windows and answers are told of as parts of their samples, which keep their entries."""
            _, k, owner = place_of[bad.id]
            words = {WHOLE: "", WINDOWS: f"window {k + 1}", ANSWERS: f"the answer to {prompts[bad.id]!r}"}
            what = bad.part or words[part]
            on_bad(BadSample(id=owner, reason=bad.reason.replace(bad.id, owner), part=what))

        numbers = [index for index, _, _ in places]
        drawn = self._draws(
            items, window, seed=seed + _SEEDS[part], indices=numbers, on_bad=report, questions=questions
        )
        for done in drawn:
            if place_of[done.sample.id][0] < begin:
                continue
            kept = zip(done.captions, done.truncated, strict=True)
            texts = [text for text, cut in kept if text and not (cut and self._ended_only)]
            if window is not None:
                texts = list(filter(None, map(description, texts)))
            if part == ANSWERS:  # whoever reads an answer has to know what was asked
                texts = [f"{prompts[done.sample.id]} {text}" for text in texts]
            if texts:
                yield Written(
                    index=place_of[done.sample.id][0],
                    references=tuple(texts),
                    window=None if window is None else window.drawn(done.sample),
                )
            else:
                report(_speechless(done))


def _speechless(done: Captioned) -> BadSample:
    """A sample, or a part of one, that gets no entry although it could be read."""
    cut = sum(done.truncated)
    raise_it = ""
    if cut:
        raise_it = "; raise references.max_completion_length, of a teacher's rollout.max_completion_length"
    return BadSample(
        id=done.sample.id,
        reason=f"of its {len(done.captions)} captions {cut} were cut off and the others have no text{raise_it}",
    )


def caption_settings(
    config: RunConfig, rollout: RolloutConfig, segments: int, asking: Asking | None
) -> JsonDict:
    """What a pool's captions depend on beside the writer and the seed, as its header states it."""
    data = config.data
    settings: JsonDict = {
        "modality": config.modality,
        "per_sample": rollout.group_size,
        "sampling": asdict(rollout.sampling),
        "max_completion_length": rollout.max_completion_length,
        "prompt": data.image_prompt if config.modality == "image" else data.video_prompt,
        **{name: getattr(data, name) for name in ("max_pixels", "max_frames", "max_frame_tokens", "fps")},
        "segments": segments,
    }
    if config.data.manifest is None and config.world.seed:
        settings["world_seed"] = config.world.seed  # whose scenes have the ids of those of any other
    if segments:
        local = config.reward.local
        settings |= {
            "segment_prompt": config.references.segment_prompt,
            "segment_fraction": local.fraction,
            "segment_min_seconds": local.min_seconds,
        }
    return settings if asking is None else settings | asking.settings()
