"""What a step that was drawn ahead leaves in a checkpoint, and how it is taken up again.

The weights that drew the captions are gone when the checkpoint is written, so the captions themselves are kept, and
their log-probabilities under those weights with them. Prompts, pictures and visual features are made again from the
place in the data, and the judge is asked again for what it has not answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from vcap_jax.rollout.engine import RolloutBatch
from vcap_jax.rollout.slots import SampledGroup
from vcap_jax.training.checkpoint import CheckpointError, HostArrays

_NAMES = ("index", "tokens", "lengths", "truncated", "old")


@dataclass(frozen=True)
class KnownStep:
    """The captions of a step by the index of their group, and their log-probabilities [G, width] under the weights that
    drew them."""

    groups: Mapping[int, SampledGroup]
    old: Mapping[int, np.ndarray]


def kept_step(
    batches: Sequence[RolloutBatch], groups: Sequence[SampledGroup], old: Sequence[jax.Array | None]
) -> HostArrays:
    """A step as arrays. batches, groups: of the one process that there is. old: of each batch, with its padding."""
    rows: dict[int, np.ndarray] = {}
    for batch, logprobs in zip(batches, jax.device_get(list(old)), strict=True):
        rows |= dict(zip(batch.indices, logprobs, strict=False))
    return {
        "index": np.array([group.index for group in groups], np.int32),
        "tokens": np.stack([group.tokens for group in groups]),
        "lengths": np.stack([group.lengths for group in groups]),
        "truncated": np.stack([group.truncated for group in groups]),
        "old": np.stack([rows[group.index] for group in groups]),
    }


def known_step(arrays: HostArrays) -> KnownStep:
    """The step that ``kept_step`` gave. Raises CheckpointError for other arrays."""
    if sorted(arrays) != sorted(_NAMES):
        raise CheckpointError(
            f"the captions drawn ahead are {', '.join(sorted(arrays))}, not {', '.join(_NAMES)}: start a new run folder"
        )
    indices = arrays["index"].tolist()
    drawn = zip(indices, arrays["tokens"], arrays["lengths"], arrays["truncated"], strict=True)
    return KnownStep(
        groups={index: SampledGroup(index, *rest) for index, *rest in drawn},
        old=dict(zip(indices, arrays["old"], strict=True)),
    )
