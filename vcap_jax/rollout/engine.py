"""What the trainer asks of a rollout engine, and the JAX sampler as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vcap_jax.data.examples import Example
from vcap_jax.models.family import Features, Params, PromptBatch
from vcap_jax.rollout.sampler import GroupSampler, PromptGroups, SampledCaption, SampledGroup
from vcap_jax.system.errors import VCapError


class RolloutError(VCapError, RuntimeError):
    """An engine cannot give the captions of a step; the message names the reason and the remedy."""


@dataclass(frozen=True)
class RolloutBatch:
    """Groups of a step that share a padded device batch: a micro-batch of the update, which uses it again.

    prompt: without the pixels, whose ``features`` are there.
    examples: the real groups, at most the rows of ``prompt``. indices: of each in the step of all processes, which is
    what its draws depend on.
    """

    examples: Sequence[Example]
    indices: Sequence[int]
    prompt: PromptBatch
    features: Features | None


@dataclass(frozen=True)
class ReadSamples:
    """Samples to be captioned that were read together.

    indices: of each, what its draws depend on. first: where the first one stands among those that are captioned; its
    group is known by that.
    """

    examples: Sequence[Example]
    indices: Sequence[int]
    first: int

    @property
    def places(self) -> range:
        return range(self.first, self.first + len(self.examples))


class CaptionSource(Protocol):
    """Draws captions of samples, under rules of its own, from the given parameters. groups: samples that are best read
    together."""

    @property
    def groups(self) -> int: ...

    def captions(
        self, params: Params, samples: Iterable[ReadSamples], *, seed: int
    ) -> Iterator[SampledGroup]:
        """Yields every group once, as soon as its last caption has ended; ``index`` is its place.

        samples: read as there is room for them, to the end. A group depends on (seed, its index) and the parameters.
        Raises RolloutError.
        """


class RolloutEngine(Protocol):
    """Draws the captions of a step's groups from the given parameters."""

    def stream(
        self,
        params: Params,
        batches: Iterable[RolloutBatch],
        *,
        step: int,
        ended: Callable[[SampledCaption], None] | None = None,
    ) -> Iterator[SampledGroup]:
        """Yields every group once, as soon as its last caption has ended; ``index`` is its own in the step.

        batches: read as the engine needs them, to the end. ended: called with every caption as soon as the engine has
        it, before its group is yielded. Raises RolloutError.
        """

    def measured(self) -> Mapping[str, float]:
        """Metrics of the last ``stream``, by name."""


@dataclass(frozen=True)
class KnownCaptions:
    """Gives captions that were drawn before. groups: those of the step, by index."""

    groups: Mapping[int, SampledGroup]

    def stream(
        self,
        params: Params,
        batches: Iterable[RolloutBatch],
        *,
        step: int,
        ended: Callable[[SampledCaption], None] | None = None,
    ) -> Iterator[SampledGroup]:
        """See ``RolloutEngine``. Nothing is computed with the parameters."""
        del params, step
        for batch in batches:
            for index in batch.indices:
                if ended is not None:
                    for caption in self.groups[index].by_caption():
                        ended(caption)
                yield self.groups[index]

    def measured(self) -> Mapping[str, float]:
        """See ``RolloutEngine``: nothing."""
        return {}


@dataclass(frozen=True)
class JaxEngine:
    """The group sampler. frozen: the parameters that are not trained. seed: of the draws."""

    sampler: GroupSampler
    frozen: Params
    seed: int

    def stream(
        self,
        params: Params,
        batches: Iterable[RolloutBatch],
        *,
        step: int,
        ended: Callable[[SampledCaption], None] | None = None,
    ) -> Iterator[SampledGroup]:
        """See ``RolloutEngine``. A group's captions depend on (seed, step, its index) and the parameters alone. As
        many groups decode side by side as there are slots, of as many batches as it takes."""
        groups = (PromptGroups(b.prompt, b.features, b.indices) for b in batches)
        yield from self.sampler.stream_batches(
            params, self.frozen, groups, seed=self.seed, step=step, ended=ended
        )

    def measured(self) -> Mapping[str, float]:
        """See ``RolloutEngine``: nothing. How far it lies from the trainer is seen in the update."""
        return {}
