"""Captioners that have their captions already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.protocol import Captions


class PoolCaptioner:
    """The captions of a pool (implements ``Captioner``), whatever the seed.

    each: captions that were asked for of a sample. A pool has no entry for an empty text, so those that are not there
    are empty captions.
    """

    def __init__(self, pool: ReferencePool, *, each: int = 1) -> None:
        self._pool, self._each = pool, each

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``."""
        return [Captions(id=sample.id, texts=self._texts(sample.id)) for sample in samples]

    def _texts(self, identity: str) -> tuple[str, ...]:
        there = self._pool[identity].references if identity in self._pool else ()
        return there + ("",) * (self._each - len(there))


class PredictionsCaptioner:
    """Captions that somebody wrote (implements ``Captioner``), whatever the seed.

    texts: by name of the picture or video, with or without its folder and ending.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)
        self._plain = {_stem(name): text for name, text in texts.items()}

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``. A sample that is not there, or has an empty text, is a failure."""
        return [self._of(sample) for sample in samples]

    def _of(self, sample: Sample) -> Captions:
        text = self._texts.get(sample.id) or self._plain.get(_stem(sample.id))
        if text is None or not text.strip():
            return Captions(id=sample.id, failure="the predictions have no caption of it")
        return Captions(id=sample.id, texts=(text,))


def _stem(name: str) -> str:
    return PurePath(name).stem if PurePath(name).suffix.lower() in _ENDINGS else PurePath(name).name


_ENDINGS = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".mp4", ".mkv", ".webm", ".avi", ".mov", ".gif", ".json")
)
