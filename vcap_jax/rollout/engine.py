"""What the trainer asks of a rollout engine, and the JAX sampler as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vcap_jax.data.examples import Example
from vcap_jax.models.family import Features, Params, PromptBatch
from vcap_jax.rollout.sampler import GroupSampler, PromptGroups, SampledGroup
from vcap_jax.system.errors import VCapError


class RolloutError(VCapError, RuntimeError):
    """An engine cannot give the captions of a step; the message names the reason and the remedy."""


@dataclass(frozen=True)
class RolloutBatch:
    """Groups of a step that share a padded device batch, which the update uses again.

    prompt: without the pixels, whose ``features`` are there.
    examples: the real groups, at most the rows of ``prompt``. places: of each in the step of all processes, which is
    what its draws depend on.
    """

    examples: Sequence[Example]
    places: Sequence[int]
    prompt: PromptBatch
    features: Features | None

    @property
    def groups(self) -> int:
        return len(self.examples)


class RolloutEngine(Protocol):
    """Draws the captions of a step's groups from the given parameters."""

    def stream(self, params: Params, batches: Iterable[RolloutBatch], *, step: int) -> Iterator[SampledGroup]:
        """Yields every group once, as soon as its last caption has ended; ``index`` is its place in the step.

        batches: read as the engine needs them, to the end. Raises RolloutError.
        """
        ...

    def measured(self) -> Mapping[str, float]:
        """Metrics of the last ``stream``, by name."""
        ...


@dataclass(frozen=True)
class JaxEngine:
    """The group sampler. frozen: the parameters that are not trained. seed: of the draws."""

    sampler: GroupSampler
    frozen: Params
    seed: int

    def stream(self, params: Params, batches: Iterable[RolloutBatch], *, step: int) -> Iterator[SampledGroup]:
        """See ``RolloutEngine``. A group's captions depend on (seed, step, its place) and the parameters alone. A
        group that is complete makes room for one of the next batch, if they fit one bucket."""
        groups = (PromptGroups(b.prompt, b.features, b.places) for b in batches)
        yield from self.sampler.stream_batches(params, self.frozen, groups, seed=self.seed, step=step)

    def measured(self) -> Mapping[str, float]:
        """See ``RolloutEngine``: nothing, its numbers are the trainer's."""
        return {}
