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

    texts: by name of the picture or video, with or without its folder and ending. Where names that differ in folder or
    ending alone have different texts, a sample needs the whole name.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)
        self._plain: dict[str, dict[str, str]] = {}
        """By the plain name: each text, and a name that it has."""
        for name, text in texts.items():
            self._plain.setdefault(_stem(name), {}).setdefault(text, name)

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``. A sample that is not there, has an empty text or one of several, is a failure."""
        return [self._of(sample) for sample in samples]

    def _of(self, sample: Sample) -> Captions:
        text = self._texts.get(sample.id)
        if not text:
            texts = self._plain.get(_stem(sample.id), {})
            if len(texts) > 1:
                first, second = list(texts.values())[:2]
                return Captions(
                    id=sample.id,
                    failure=f"the predictions have several captions of that name, such as {first!r} and {second!r}",
                )
            text = next(iter(texts), "")
        if not text.strip():
            return Captions(id=sample.id, failure="the predictions have no caption of it")
        return Captions(id=sample.id, texts=(text,))


def _stem(name: str) -> str:
    return PurePath(name).stem if PurePath(name).suffix.lower() in _ENDINGS else PurePath(name).name


_ENDINGS = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".mp4", ".mkv", ".webm", ".avi", ".mov", ".gif", ".json")
)
