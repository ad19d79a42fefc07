"""A captioner that has its captions already."""

from __future__ import annotations

from collections.abc import Sequence

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
