"""Batches of groups from a list of samples: shuffled, repeated, read ahead by threads, resumable exactly.

The order is grain's: seeded shuffle, epochs, a share for every process, reading ahead. A sample that cannot
be used stays in the order as a typed failure, so that what is skipped, and when, is the same in a resumed run
as in one left alone; only then is it dropped, and reported with the batch it would have been in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import grain

from vcap_jax.data.errors import MediaError, NoUsableSamplesError
from vcap_jax.data.examples import Example
from vcap_jax.data.manifest import Sample
from vcap_jax.qwen3_vl.processing import InputError

_STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """How samples become batches.

    batch_groups: groups in one batch of this process.
    seed, shuffle: the order; epochs: passes over the data, 0 for ever.
    threads: samples read at the same time; prefetch: samples read ahead (they are large: keep it small).
    on_bad_sample: "skip" reports and drops a sample that cannot be used, "refuse" ends the run.
    """

    batch_groups: int = 8
    seed: int = 0
    shuffle: bool = True
    epochs: int = 0
    threads: int = 2
    prefetch: int = 8
    on_bad_sample: Literal["skip", "refuse"] = "skip"

    def __post_init__(self) -> None:
        for name in ("batch_groups", "threads", "prefetch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give a positive whole number")
        if self.epochs < 0:
            raise ValueError(f"epochs is {self.epochs}: give a number of passes, or 0 to go on for ever")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}: give a whole number from 0 to 2**32 - 1")


@dataclass(frozen=True, kw_only=True)
class BadSample:
    """A sample that could not be used, and why (names the file)."""

    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class GroupBatch:
    """examples: one per group, ``batch_groups`` of them (fewer only at the very end of finite epochs).

    skipped: the samples that were dropped on the way to this batch.
    """

    examples: tuple[Example, ...]
    skipped: tuple[BadSample, ...]


class GroupIterator(Iterator[GroupBatch]):
    """Iterates over batches; ``get_state`` between two batches, ``set_state`` on a fresh one, and it goes on
    there."""

    def __init__(
        self,
        samples: Sequence[Sample],
        load: Callable[[Sample], Example],
        settings: PipelineSettings,
        *,
        process_index: int = 0,
        process_count: int = 1,
        on_skip: Callable[[BadSample], None] | None = None,
    ) -> None:
        """Builds the pipeline; nothing is read yet.

        load: reads one sample, called from several threads; MediaError and InputError mark a bad sample, any
            other exception is raised where the batch is asked for.
        process_index, process_count: this process gets every process_count-th sample of the one common order.
        on_skip: told of every dropped sample, once each time, from the thread that iterates.

        Raises:
            ValueError: no samples, or an index that is not below the count.
        """
        if not samples:
            raise ValueError("no samples: the manifest is empty")
        if not 0 <= process_index < process_count:
            raise ValueError(f"process_index {process_index} must be from 0 to {process_count - 1}")
        self._settings = settings
        self._on_skip = on_skip
        self._samples = len(samples)
        self._fingerprint = _fingerprint(samples, settings, process_index, process_count)
        self._skipped_total = 0
        self._yielded = False
        self._fruitless = 0

        def load_or_mark(sample: Sample) -> Example | BadSample:
            try:
                return load(sample)
            except (MediaError, InputError) as error:
                return BadSample(id=sample.id, reason=str(error))

        order = grain.MapDataset.source(list(samples))
        if settings.shuffle:
            order = order.shuffle(seed=settings.seed)
        # Repeating before sharing out gives all processes equally much and loses no sample.
        order = order.repeat(settings.epochs or None)
        if process_count > 1:
            order = order[process_index::process_count]
        reading = grain.ReadOptions(num_threads=settings.threads, prefetch_buffer_size=settings.prefetch)
        self._elements = iter(order.map(load_or_mark).to_iter_dataset(reading))

    @property
    def skipped_total(self) -> int:
        """Samples dropped since the beginning of the run, those before a resume included."""
        return self._skipped_total

    def __next__(self) -> GroupBatch:
        """The next batch.

        Raises:
            StopIteration: the epochs are over.
            MediaError: a bad sample, with ``on_bad_sample: refuse``.
            NoUsableSamplesError: as many bad samples in a row as there are samples, or no good one at all.
        """
        examples: list[Example] = []
        skipped: list[BadSample] = []
        for element in self._elements:
            if isinstance(element, BadSample):
                skipped.append(element)
                self._drop(element, skipped)
                continue
            self._fruitless = 0
            examples.append(element)
            if len(examples) == self._settings.batch_groups:
                break
        if not examples:
            if not self._yielded and skipped:
                raise _nothing_usable(skipped, self._samples)
            raise StopIteration
        self._yielded = True
        return GroupBatch(examples=tuple(examples), skipped=tuple(skipped))

    def get_state(self) -> dict[str, Any]:
        """JSON-serialisable; what is read ahead but not yet in a batch is not part of it."""
        return {
            "version": _STATE_VERSION,
            "order": self._elements.get_state(),
            "skipped_total": self._skipped_total,
            "fingerprint": self._fingerprint,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where ``get_state`` was called.

        Raises:
            ValueError: the state is of other samples, another seed or another number of processes.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"version {state.get('version')!r} of the data state, this program reads {_STATE_VERSION}"
            )
        if state["fingerprint"] != self._fingerprint:
            raise ValueError(
                "the saved place in the data is of another manifest, seed, shuffling or number of processes: "
                "restore those, or start a new run"
            )
        self._elements.set_state(state["order"])
        self._skipped_total = int(state["skipped_total"])
        self._yielded = True
        self._fruitless = 0

    def close(self) -> None:
        """Stops the reading threads."""
        self._elements.close()

    def _drop(self, bad: BadSample, skipped: list[BadSample]) -> None:
        if self._settings.on_bad_sample == "refuse":
            raise MediaError(f"sample {bad.id}: {bad.reason} (or set on_bad_sample to skip)")
        self._skipped_total += 1
        self._fruitless += 1
        if self._on_skip is not None:
            self._on_skip(bad)
        if self._fruitless >= self._samples:
            raise _nothing_usable(skipped, self._samples)


def _nothing_usable(skipped: Sequence[BadSample], samples: int) -> NoUsableSamplesError:
    shown = "; ".join(f"{bad.id}: {bad.reason}" for bad in skipped[:3])
    return NoUsableSamplesError(
        f"none of the {samples} samples can be used, the first reasons: {shown}. Check the manifest's paths"
    )


def _fingerprint(samples: Sequence[Sample], settings: PipelineSettings, index: int, count: int) -> str:
    order = [
        settings.seed,
        settings.shuffle,
        settings.epochs,
        index,
        count,
        [sample.id for sample in samples],
    ]
    return hashlib.blake2b(json.dumps(order).encode(), digest_size=16).hexdigest()
