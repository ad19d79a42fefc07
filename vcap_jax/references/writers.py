"""Who writes references: any captioner, of whole samples and windows of videos, and as answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import Provenance
from vcap_jax.references.asking import Asking
from vcap_jax.references.windows import WindowDraw, description
from vcap_jax.references.writing import Written
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.system.json_values import JsonDict

WINDOW_SEED = 7_000_003
"""Added to a pool's seed for its windows, so that they are not drawn with the numbers of the whole samples."""
QUESTION_SEED = 11_000_003
"""The same for the answers to questions."""

Report = Callable[[BadSample], None]


class Draws(Protocol):
    """Captions by one captioner: of whole samples, or of windows as ``window`` draws them. indices: of the samples,
    which their draws depend on."""

    def __call__(
        self,
        samples: Sequence[Sample],
        window: WindowDraw | None,
        *,
        seed: int,
        indices: Sequence[int],
        on_bad: Report,
    ) -> Iterator[Captioned]: ...


class CaptionWriter:
    """References of captions (implements ``ReferenceWriter``).

    draws: who captions. provenance: as the pool's header has it. config: windows and their request. segments: windows
    of each video. asking: questions to each sample. ended_only: leave out captions that the token budget cut off, as
    targets of imitation must.
    """

    def __init__(
        self,
        config: RunConfig,
        draws: Draws,
        provenance: Provenance,
        *,
        segments: int,
        asking: Asking | None,
        ended_only: bool,
    ) -> None:
        self._config, self._draws, self._asking = config, draws, asking
        self.provenance = provenance
        self.segments = segments
        self.questions = 0 if asking is None else asking.each
        self._ended_only = ended_only

    def whole(self, samples: Sequence[Sample], indices: Sequence[int], on_bad: Report) -> Iterator[Written]:
        """See ``ReferenceWriter``."""
        index_of = {sample.id: index for sample, index in zip(samples, indices, strict=True)}
        for done in self._draws(samples, None, seed=self.provenance.seed, indices=indices, on_bad=on_bad):
            texts = self._texts(done)
            if texts:
                yield Written(index=index_of[done.sample.id], references=texts)
            else:
                on_bad(self._speechless(done))

    def windows(
        self, samples: Sequence[Sample], indices: Sequence[int], skip: int, on_bad: Report
    ) -> Iterator[Written]:
        """See ``ReferenceWriter``."""
        config, seed = self._config, self.provenance.seed
        draw = WindowDraw(config.reward.local, seed=seed, prompt=config.references.segment_prompt)
        items = draw.items(samples, self.segments, skip)
        places = _places(items, samples, indices, self.segments, skip)
        on_bad = _as_parts(on_bad, places, lambda item: f"window {int(item.rpartition('#')[2]) + 1}")
        numbers = [place.index for place in places.values()]
        for done in self._draws(items, draw, seed=seed + WINDOW_SEED, indices=numbers, on_bad=on_bad):
            texts = tuple(filter(None, map(description, self._texts(done))))
            if texts:
                item = done.sample
                yield Written(index=places[item.id].index, references=texts, window=draw.drawn(item))
            else:
                on_bad(self._speechless(done))

    def answers(
        self, samples: Sequence[Sample], indices: Sequence[int], skip: int, on_bad: Report
    ) -> Iterator[Written]:
        """See ``ReferenceWriter``."""
        assert self._asking is not None
        seed = self.provenance.seed + QUESTION_SEED
        items = self._asking.items(samples, seed=seed, skip=skip)
        asked = {item.id: item.prompt for item in items}
        places = _places(items, samples, indices, self.questions, skip)
        on_bad = _as_parts(on_bad, places, lambda item: f"the answer to {asked[item]!r}")
        numbers = [place.index for place in places.values()]
        for done in self._draws(items, None, seed=seed, indices=numbers, on_bad=on_bad):
            if texts := self._texts(done):
                yield Written(index=places[done.sample.id].index, references=texts)
            else:
                on_bad(self._speechless(done))

    def _texts(self, done: Captioned) -> tuple[str, ...]:
        kept = zip(done.captions, done.truncated, strict=True)
        return tuple(text for text, cut in kept if text and not (cut and self._ended_only))

    def _speechless(self, done: Captioned) -> BadSample:
        """A sample, or a window, that gets no entry although it could be read."""
        cut = sum(done.truncated)
        raise_it = "; raise references.max_completion_length" if cut else ""
        return BadSample(
            id=done.sample.id,
            reason=f"of its {len(done.captions)} captions {cut} were cut off and the others have no text{raise_it}",
        )


@dataclass(frozen=True)
class _Place:
    """index: of an item among those of all samples, which its draws depend on. owner: id of its sample."""

    index: int
    owner: str


def _places(
    items: Sequence[Sample], samples: Sequence[Sample], indices: Sequence[int], each: int, skip: int
) -> dict[str, _Place]:
    """By the id of each of ``items``: ``each`` of every sample, but for the first ``skip``."""
    places = [
        _Place(index * each + k, sample.id)
        for sample, index in zip(samples, indices, strict=True)
        for k in range(each)
    ]
    return {item.id: place for item, place in zip(items, places[skip:], strict=True)}


def _as_parts(on_bad: Report, places: Mapping[str, _Place], words: Callable[[str], str]) -> Report:
    """Tells of items as parts of their samples, which keep their entries. words: what of it an item is, by its id."""

    def report(bad: BadSample) -> None:
        owner = places[bad.id].owner
        on_bad(BadSample(id=owner, reason=bad.reason.replace(bad.id, owner), part=words(bad.id)))

    return report


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
        "max_pixels": data.max_pixels,
        "max_frames": data.max_frames,
        "max_frame_tokens": data.max_frame_tokens,
        "fps": data.fps,
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
