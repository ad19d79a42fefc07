"""Batches of groups from a list of samples: shuffled, repeated, read ahead by threads, resumable exactly.

There is one common order of samples, grain's: seeded shuffle, epoch after epoch. A batch is the next ``batch_groups``
samples of it that can be used, whatever the number of processes: they read the order in turn, and where samples turn
out bad the next ones of the order take their places. So the place in the data is one number, what is
skipped and when is the same in a resumed run as in one left alone, and a run may be resumed on more or fewer processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import grain

from vcap_jax.data.errors import ManifestError, MediaError, NoUsableSamplesError, StorageError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.storage import tried_again, watched
from vcap_jax.models.errors import InputError
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.system.digests import digest_of
from vcap_jax.system.json_values import JsonDict, JsonObject, as_whole

OnBadSample = Literal["skip", "refuse"]
E = TypeVar("E")
"""What a sample is read as: an ``Example`` where a policy looks at it."""

_STATE_VERSION = 2
_FRUITLESS = 1000
"""Samples that cannot be used, one after the other, after which data with more of them are given up. Storage that has
gone may look like files that are not there, and thousands of those are passed in a second."""


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """How samples become batches.

    batch_groups: groups in one batch, of all processes together.
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
    on_bad_sample: OnBadSample = "skip"


@dataclass(frozen=True, kw_only=True)
class BadSample:
    """A sample that could not be used, and why (names the file). part: what of it, in words; "" for all of it."""

    id: str
    reason: str
    part: str = ""

    def __str__(self) -> str:
        of = f"{self.part} of " if self.part else ""
        return f"skipped {of}sample {self.id}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class GroupBatch(Generic[E]):
    """examples: this process's groups; indices: which of the batch's groups they are, ascending.

    All processes together have ``batch_groups`` of them (fewer only at the very end of finite epochs).
    skipped: the samples that were dropped on the way to this batch, by all processes, in order.
    """

    examples: tuple[E, ...]
    indices: tuple[int, ...]
    skipped: tuple[BadSample, ...]


class GroupIterator(Iterator[GroupBatch[E]], Generic[E]):
    """Iterates over batches; ``get_state`` between two batches, ``set_state`` on a fresh one, and it goes on
    there."""

    def __init__(
        self,
        samples: Sequence[Sample],
        load: Callable[[Sample], E],
        settings: PipelineSettings,
        *,
        processes: Processes = ALONE,
        on_skip: Callable[[BadSample], None] | None = None,
    ) -> None:
        """Builds the pipeline; nothing is read yet.

        load: reads one sample, called from several threads; MediaError and InputError mark a bad sample, any
            other exception is raised where the batch is asked for. A sample whose storage does not answer
            (StorageError) is tried again for half a minute.
        processes: those that share every batch; they must ask for batches at the same pace.
        on_skip: told of every dropped sample, once each time, from the thread that iterates.

        Raises ValueError: no samples, or processes that cannot have equal shares of every batch.
        """
        if not samples:
            raise ValueError("no samples: the manifest is empty")
        if settings.batch_groups % processes.count:
            raise ValueError(
                f"a batch of {settings.batch_groups} groups cannot be shared out evenly over "
                f"{processes.count} processes"
            )
        if processes.count > 1 and settings.epochs:
            raise ValueError("several processes share an endless order of samples: set epochs to 0")
        self._settings, self._processes, self._on_skip = settings, processes, on_skip
        self._samples = len(samples)
        self._fingerprint = _fingerprint(samples, settings)
        self.skipped_total = 0
        """Samples dropped by all processes since the beginning of the run, those before a resume included."""
        # The bad samples since the last good one, by id. Neighbouring epochs may have the same ones at their border.
        self._fruitless: dict[str, BadSample] = {}

        read = watched(load)

        def load_or_mark(sample: Sample) -> E | BadSample | StorageError:
            try:
                return tried_again(read, sample)
            except (MediaError, InputError) as error:
                return BadSample(id=sample.id, reason=str(error))
            except StorageError as error:
                return error

        order = grain.MapDataset.source(list(samples))
        if settings.shuffle:
            order = order.shuffle(seed=settings.seed)
        self._order = order.repeat(settings.epochs or None).map(load_or_mark)
        self._length = len(self._order)
        self._position = 0
        # What is read ahead: this process's samples of the coming batches, as they will be if none is bad.
        self._ahead: grain.DatasetIterator[E | BadSample | StorageError] | None = None
        self._ahead_at = 0

    def __next__(self) -> GroupBatch[E]:
        """The next batch.

        Raises:
            StopIteration: the epochs are over, whether or not they had a good sample.
            MediaError: a bad sample, with ``on_bad_sample: refuse``.
            NoUsableSamplesError: the samples are to be repeated for ever, and every one of them is bad, or a
                thousand in a row.
            StorageError: the storage of a sample does not answer, in whichever process.
            PeerFailed: another process has failed.
        """
        begin = end = self._position
        wanted, processes = self._settings.batch_groups, self._processes
        own: list[tuple[int, E]] = []
        skipped: dict[int, BadSample] = {}
        # Which process reads the positions of a window: in turn through the whole order, so that what a process reads
        # ahead is its own whatever samples turn out bad.
        readers = [position % processes.count for position in range(begin, begin + wanted)]
        while readers:
            window = range(end, min(end + len(readers), self._length))
            if not window:
                break
            bad: list[tuple[int, str, str]] = []
            lost: str | None = None
            for position, reader in zip(window, readers, strict=False):
                if reader == processes.index:
                    element = self._read(position)
                    if isinstance(element, BadSample):
                        bad.append((position, element.id, element.reason))
                    elif isinstance(element, StorageError):
                        lost = str(element)
                        break
                    else:
                        own.append((position, element))
            told = processes.all_gather_objects("samples", (bad, lost))
            for _, lost in told:
                if lost is not None:
                    raise StorageError(lost)
            found = {
                position: BadSample(id=name, reason=reason)
                for share, _ in told
                for position, name, reason in share
            }
            skipped |= found
            self._count(window, found)
            # Who dropped a sample reads one of those that follow.
            readers = [readers[position - end] for position in window if position in found]
            end = window.stop
        self._position = end
        if not own and end == self._length:
            raise StopIteration
        dropped = sorted(skipped)
        return GroupBatch(
            examples=tuple(example for _, example in own),
            indices=tuple(p - begin - sum(d < p for d in dropped) for p, _ in own),
            skipped=tuple(skipped[position] for position in dropped),
        )

    def get_state(self) -> JsonDict:
        """JSON-serialisable; what is read ahead but not yet in a batch is not part of it."""
        return {
            "version": _STATE_VERSION,
            "position": self._position,
            "skipped_total": self.skipped_total,
            "fingerprint": self._fingerprint,
        }

    def set_state(self, state: JsonObject) -> None:
        """Continues where ``get_state`` was called, by as many processes as there are now.

        Raises ManifestError: the state is of other samples or another seed.
        """
        if state.get("version") != _STATE_VERSION:
            raise ManifestError(
                f"version {state.get('version')!r} of the data state, this program reads {_STATE_VERSION}: "
                "resume with the program that wrote it, or start a new run"
            )
        if state["fingerprint"] != self._fingerprint:
            raise ManifestError(
                "the saved place in the data is of another manifest, seed or shuffling: restore those, or start a "
                "new run"
            )
        self._position = as_whole(state["position"], "the place in the data")
        self.skipped_total = as_whole(state["skipped_total"], "the count of skipped samples")
        self._fruitless = {}
        self.close()

    def close(self) -> None:
        """Stops the reading threads."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _read(self, position: int) -> E | BadSample | StorageError:
        """The sample at a position of the order, out of what was read ahead if it is this process's own."""
        stride = self._processes.count
        if position % stride != self._processes.index:
            # In place of a bad sample. Whose position it is passes over it.
            element: E | BadSample | StorageError = self._order[position]
            return element
        if self._ahead is None or position < self._ahead_at:
            self.close()
            reading = grain.ReadOptions(
                num_threads=self._settings.threads, prefetch_buffer_size=self._settings.prefetch
            )
            self._ahead = iter(self._order[position::stride].to_iter_dataset(reading))
            self._ahead_at = position
        while self._ahead_at < position:
            next(self._ahead)
            self._ahead_at += stride
        self._ahead_at += stride
        return next(self._ahead)

    def _count(self, window: range, found: dict[int, BadSample]) -> None:
        for position in window:
            bad = found.get(position)
            if bad is None:
                self._fruitless = {}
                continue
            if self._settings.on_bad_sample == "refuse":
                raise MediaError(
                    f"sample {bad.id}: {bad.reason}. Mend it or take it out of the manifest, or set "
                    "data.on_bad_sample to skip"
                )
            self.skipped_total += 1
            if self._on_skip is not None:
                self._on_skip(bad)
            self._fruitless.setdefault(bad.id, bad)
            if len(self._fruitless) == min(self._samples, _FRUITLESS) and not self._settings.epochs:
                shown = "; ".join(f"{one.id}: {one.reason}" for one in list(self._fruitless.values())[:3])
                if self._samples <= _FRUITLESS:
                    raise NoUsableSamplesError(
                        f"none of the {self._samples} samples can be used, the first reasons: {shown}. Check the "
                        "manifest's paths"
                    )
                raise NoUsableSamplesError(
                    f"{_FRUITLESS} samples in a row cannot be used, the first reasons: {shown}. If their storage was "
                    "away, mount it again; else take those that are gone out of the manifest"
                )


def _fingerprint(samples: Sequence[Sample], settings: PipelineSettings) -> str:
    order = [settings.seed, settings.shuffle, settings.epochs, [sample.id for sample in samples]]
    return digest_of(json.dumps(order))
