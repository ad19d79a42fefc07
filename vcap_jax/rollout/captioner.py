"""Captions for a whole manifest from one set of parameters: reference pools and evaluation are made of this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vcap_jax.data.batching import PromptBatcher
from vcap_jax.data.examples import Example
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample, GroupIterator, OnBadSample, PipelineSettings
from vcap_jax.models.policy import Params, Policy
from vcap_jax.rollout.engine import CaptionSource, ReadSamples
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.rollout.slots import PromptGroups, SampledGroup, Suffixes


@dataclass(frozen=True)
class Captioned:
    """The captions of one sample.

    captions: G texts; lengths: their tokens, the end token included, empty where they are not known; truncated: cut
    off by the token budget. lacking: why there are fewer captions than were asked for; "" if there are not.
    """

    sample: Sample
    captions: tuple[str, ...]
    lengths: tuple[int, ...]
    truncated: tuple[bool, ...]
    lacking: str = ""


@dataclass(frozen=True)
class SamplerCaptions:
    """Captions by the JAX sampler, on this process's devices (implements ``CaptionSource``).

    frozen: the parameters that are not trained. batcher: makes device batches of the prompts. most_waiting: see
    ``GroupSampler.stream_batches``.
    """

    sampler: GroupSampler
    frozen: Params
    batcher: PromptBatcher
    most_waiting: int | None = None

    @property
    def groups(self) -> int:
        return self.batcher.groups

    def captions(
        self, params: Params, samples: Iterable[ReadSamples], *, seed: int
    ) -> Iterator[SampledGroup]:

        def batches() -> Iterator[PromptGroups]:
            for read in samples:
                prompt, features = self.batcher.batch(params, read.examples)
                suffixes = self._suffixes(read, prompt.tokens.shape[0])
                yield PromptGroups(prompt, features, read.indices, read.places, suffixes)

        yield from self.sampler.stream_batches(
            params, self.frozen, batches(), seed=seed, step=0, most_waiting=self.most_waiting
        )

    def _suffixes(self, read: ReadSamples, rows: int) -> Suffixes | None:
        """Of a batch of so many rows; None if the sampler is made for whole prompts."""
        if not (width := self.sampler.suffix_tokens):
            return None
        ways = max(len(example.suffixes) for example in read.examples)
        tokens = np.full((rows, ways, width), -1, np.int32)
        ids = np.zeros((rows, ways), np.int32)
        for row, (example, index) in enumerate(zip(read.examples, read.indices, strict=True)):
            ids[row] = index + np.arange(ways)
            for way, suffix in enumerate(example.suffixes):
                tokens[row, way, : len(suffix)] = suffix
        return Suffixes(tokens, ids)


class ManifestCaptioner:
    """Captions samples in manifest order, several side by side.

    policy: whose words the captions are in. source: draws them; its group size is the number of captions per sample.
    load: reads a sample (``data.examples.example_loader``). threads: samples read at the same time. prefetch: samples
    read ahead; None for as many as threads, or two batches where those are more. on_bad_sample: see
    ``PipelineSettings``.
    """

    def __init__(
        self,
        policy: Policy,
        source: CaptionSource,
        load: Callable[[Sample], Example],
        *,
        threads: int = 2,
        prefetch: int | None = None,
        on_bad_sample: OnBadSample = "skip",
    ) -> None:
        self._policy, self._source, self._load = policy, source, load
        self._reading = PipelineSettings(
            batch_groups=source.groups,
            shuffle=False,
            epochs=1,
            threads=threads,
            # Fewer than there are threads would leave some of them idle.
            prefetch=prefetch or max(threads, 2 * source.groups),
            on_bad_sample=on_bad_sample,
        )

    def run(
        self,
        params: Params,
        samples: Sequence[Sample],
        *,
        seed: int,
        indices: Sequence[int] | None = None,
        on_bad: Callable[[BadSample], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Captioned]:
        """Yields one entry for every usable sample, none for no samples. Raises MediaError for one that cannot be used,
        if such are refused.

        seed, indices: the caption of a sample depends on the seed and on its index in the whole manifest, so a list may
        be captioned in parts; None counts from 0. stop: asked before every batch; once it is true, what is in work is
        yielded and no more.
        """
        if not samples:
            return
        # Without what was read of them: with its pixels a long video takes 150 MB.
        in_work: dict[int, Sample] = {}
        if indices is None:
            indices = range(len(samples))
        index_of = {sample.id: index for sample, index in zip(samples, indices, strict=True)}
        read = self._read(samples, in_work, index_of, on_bad=on_bad, stop=stop)
        done: dict[int, SampledGroup] = {}
        told = 0
        for group in self._source.captions(params, read, seed=seed):
            done[group.index] = group
            # In the order of the manifest, whichever is complete first.
            while told in done:
                yield self._captioned(in_work.pop(told), done.pop(told))
                told += 1

    def _read(
        self,
        samples: Sequence[Sample],
        in_work: dict[int, Sample],
        index_of: Mapping[str, int],
        *,
        on_bad: Callable[[BadSample], None] | None,
        stop: Callable[[], bool],
    ) -> Iterator[ReadSamples]:
        """What can be read; a group is known by its number among these, and its sample by that in ``in_work``."""
        first = 0
        for batch in GroupIterator(samples, self._load, self._reading, on_skip=on_bad):
            if stop():
                return
            in_work.update(enumerate((example.sample for example in batch.examples), first))
            yield ReadSamples(batch.examples, [index_of[e.sample.id] for e in batch.examples], first)
            first += len(batch.examples)

    def _captioned(self, sample: Sample, group: SampledGroup) -> Captioned:
        texts = self._policy.texts(group.tokens, group.lengths)
        lengths = tuple(int(n) for n in group.lengths)
        return Captioned(sample, texts, lengths, tuple(bool(t) for t in group.truncated))
