"""Captions of a whole manifest: in its order whatever comes first, and pictures are let go of on the way."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.patience import GUARD_S
from vcap_jax.data.errors import MediaError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.rollout.captioner import ManifestCaptioner, SamplerCaptions
from vcap_jax.rollout.engine import ReadSamples
from vcap_jax.rollout.sampler import SampledGroup


class Read:
    """What a sample is read as, weakly known to ``alive``."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample


class Source:
    """Reads so many samples together, and gives the captions of each pair of them the other way round."""

    groups = 2

    def captions(
        self, params: object, samples: Iterable[ReadSamples], *, seed: int
    ) -> Iterator[SampledGroup]:
        for read in samples:
            for place, index in reversed(list(zip(read.places, read.indices, strict=True))):
                tokens = np.full((1, 1), index, np.int32)
                yield SampledGroup(place, tokens, np.array([1]), np.array([False]), None)


@pytest.fixture
def policy() -> Any:
    def texts(tokens: np.ndarray, lengths: np.ndarray) -> tuple[str, ...]:
        return tuple(str(row[0]) for row in tokens)

    return SimpleNamespace(texts=texts)


def test_captions_come_in_the_order_of_the_samples_and_bad_ones_are_left_out(policy: Any) -> None:
    samples = [Sample(id=str(n), images=(Path("x"),)) for n in range(7)]
    found = list(
        ManifestCaptioner(policy, Source(), Read).run(
            {}, samples, seed=0, indices=range(100, 100 + len(samples))
        )
    )  # type: ignore[arg-type]
    assert [(one.sample.id, one.captions) for one in found] == [(str(n), (str(100 + n),)) for n in range(7)]


def test_pictures_are_let_go_of_while_a_group_waits_for_longer_caches(policy: Any) -> None:
    """Captions behind it are held back to keep the order of the samples, their pictures are not."""
    alive: weakref.WeakSet[Read] = weakref.WeakSet()
    most = 0

    class HeldBack(Source):
        def captions(self, params: object, samples: Iterable[ReadSamples], *, seed: int) -> Any:
            nonlocal most
            second, first = islice(super().captions(params, samples, seed=seed), 2)
            yield second
            for group in super().captions(params, samples, seed=seed):
                most = max(most, len(alive))
                yield group
            yield first

    def load(sample: Sample) -> Read:
        read = Read(sample)
        alive.add(read)
        return read

    samples = [Sample(id=str(n), images=(Path("x"),)) for n in range(100)]
    found = list(ManifestCaptioner(policy, HeldBack(), load).run({}, samples, seed=0))  # type: ignore[arg-type]
    assert [one.sample.id for one in found] == [str(n) for n in range(100)]
    assert most < 20


def test_of_samples_that_cannot_be_read_each_is_told_of(policy: Any) -> None:
    """They may be all that a process has to caption, or all that an interrupted pool still lacks."""

    def load(sample: Sample) -> Read:
        raise MediaError(f"{sample.id} is cut")

    samples, told = [Sample(id=str(n), images=(Path("x"),)) for n in range(3)], list[BadSample]()
    captioner = ManifestCaptioner(policy, Source(), load)  # type: ignore[arg-type]
    assert list(captioner.run({}, samples, seed=0, on_bad=told.append)) == []
    assert [bad.reason for bad in told] == ["0 is cut", "1 is cut", "2 is cut"]


def test_what_is_captioned_is_let_go_of(policy: Any) -> None:
    alive: weakref.WeakSet[Read] = weakref.WeakSet()

    def load(sample: Sample) -> Read:
        read = Read(sample)
        alive.add(read)
        return read

    samples = [Sample(id=str(n), images=(Path("x"),)) for n in range(100)]
    captioner = ManifestCaptioner(policy, Source(), load)  # type: ignore[arg-type]
    most = 0
    for _ in captioner.run({}, samples, seed=0):
        most = max(most, len(alive))
    # Those in work and those read ahead, not all that there were.
    assert most < 20


def test_no_more_is_read_ahead_than_is_asked_for(policy: Any) -> None:
    alive: weakref.WeakSet[Read] = weakref.WeakSet()

    class Wide(Source):
        groups = 20

    def load(sample: Sample) -> Read:
        read = Read(sample)
        alive.add(read)
        return read

    samples = [Sample(id=str(n), images=(Path("x"),)) for n in range(100)]
    captioner = ManifestCaptioner(policy, Wide(), load, threads=1, prefetch=1)  # type: ignore[arg-type]
    most = max(len(alive) for _ in captioner.run({}, samples, seed=0))
    # The batch in work, the next one, one read ahead and one that is being read.
    assert most <= 42


def test_as_many_are_read_at_once_as_there_are_threads(policy: Any) -> None:
    """However few are captioned together."""
    together = threading.Barrier(8)

    def load(sample: Sample) -> Read:
        together.wait(GUARD_S)
        return Read(sample)

    samples = [Sample(id=str(n), images=(Path("x"),)) for n in range(8)]
    captioner = ManifestCaptioner(policy, Source(), load, threads=8)  # type: ignore[arg-type]
    assert len(list(captioner.run({}, samples, seed=0))) == 8


def test_no_more_is_captioned_than_is_in_work_when_it_is_to_stop(policy: Any) -> None:
    samples = [Sample(id=str(n), images=(Path("x"),)) for n in range(8)]
    asked = iter([False, False, True])
    captioner = ManifestCaptioner(policy, Source(), Read)  # type: ignore[arg-type]
    found = list(captioner.run({}, samples, seed=0, stop=lambda: next(asked)))
    assert [one.sample.id for one in found] == ["0", "1", "2", "3"]


def test_each_way_that_a_prompt_goes_on_draws_by_a_number_of_its_own() -> None:
    given: list[Any] = []

    def stream(params: Any, frozen: Any, batches: Any, **more: Any) -> Iterator[SampledGroup]:
        given.extend(batches)
        assert more == {"seed": 5, "step": 0, "most_waiting": None}
        return iter(())

    sampler: Any = SimpleNamespace(suffix_tokens=3, stream_batches=stream)
    batcher: Any = SimpleNamespace(
        groups=2, batch=lambda *_: (SimpleNamespace(tokens=np.zeros((3, 9))), "features")
    )
    examples: Any = [SimpleNamespace(suffixes=ways) for ways in (([7], [8, 9]), ([6, 5, 4],))]
    read = ReadSamples(examples, [100, 104], first=20)
    assert list(SamplerCaptions(sampler, {}, batcher).captions({}, [read], seed=5)) == []
    (batch,) = given
    assert (batch.ids, batch.indices, batch.features) == ([100, 104], range(20, 22), "features")
    nothing = [-1] * 3
    assert batch.suffixes.tokens.tolist() == [[[7, -1, -1], [8, 9, -1]], [[6, 5, 4], nothing], [nothing] * 2]
    assert batch.suffixes.ids.tolist() == [[100, 101], [104, 105], [0, 0]]
