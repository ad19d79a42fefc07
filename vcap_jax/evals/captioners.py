"""A captioner that has its captions already."""

from __future__ import annotations

from collections.abc import Sequence

from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.protocol import Captions


class PoolCaptioner:
    """The captions of a pool (implements ``Captioner``), whatever the seed.

    each: captions that were asked for of a sample. A pool has no entry for an empty text, so those that are not there
    are empty captions. 0: what the pool has, and a sample that it has nothing of is a failure.
    """

    def __init__(self, pool: ReferencePool, *, each: int = 1) -> None:
        self._pool, self._each = pool, each

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``."""
        return [self._captions(sample.id) for sample in samples]

    def _captions(self, identity: str) -> Captions:
        there = self._pool[identity].references if identity in self._pool else ()
        texts = there + ("",) * (self._each - len(there))
        return Captions(id=identity, texts=texts, failure=None if texts else "no reference")
