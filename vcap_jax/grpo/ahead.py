"""What a step that was drawn ahead leaves in a checkpoint, and how it is taken up again.

The weights that drew the captions are gone when the checkpoint is written, so the captions themselves are kept, and
their log-probabilities under those weights with them. Prompts, pictures and visual features are made again from the
place in the data, and the judge is asked again for what it has not answered. So the samples are read again, and may be
others than the captions are of: a file that was gone is there again, or the other way round, and whatever follows it in
the order moves up or down. What identifies each sample is therefore kept beside its captions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from vcap_jax.data.examples import Example
from vcap_jax.data.pipeline import GroupBatch
from vcap_jax.rollout.engine import RolloutBatch
from vcap_jax.rollout.slots import SampledGroup
from vcap_jax.training.checkpoint import CheckpointError, HostArrays

_SAMPLES = "samples"
"""[groups, 8] uint8."""
_NAMES = ("index", "tokens", "lengths", "truncated", "old", _SAMPLES)
_LOGPROBS = "logprobs"
"""The sampler's own, which are compared with ``old``. An engine may give none."""


@dataclass(frozen=True)
class KnownStep:
    """The captions of a step by the index of their group, and their log-probabilities [G, width] under the weights that
    drew them. samples: a digest of each group's sample."""

    groups: Mapping[int, SampledGroup]
    old: Mapping[int, np.ndarray]
    samples: Mapping[int, bytes]

    def others_than(self, batch: GroupBatch[Example]) -> list[str]:
        """Ids of those samples of ``batch`` whose place in the step another sample had when the captions were
        drawn."""
        read = zip(batch.indices, batch.examples, strict=True)
        return [
            example.sample.id
            for index, example in read
            if self.samples.get(index) != _digest(example.sample.id)
        ]


def kept_step(
    batches: Sequence[RolloutBatch], groups: Sequence[SampledGroup], old: Sequence[jax.Array | None]
) -> HostArrays:
    """A step as arrays. batches, groups: of the one process that there is. old: of each batch, with its padding."""
    rows: dict[int, np.ndarray] = {}
    samples: dict[int, bytes] = {}
    for batch, logprobs in zip(batches, jax.device_get(list(old)), strict=True):
        rows |= dict(zip(batch.indices, logprobs, strict=False))
        samples |= {
            index: _digest(example.sample.id)
            for index, example in zip(batch.indices, batch.examples, strict=True)
        }
    kept = {
        "index": np.array([group.index for group in groups], np.int32),
        "tokens": np.stack([group.tokens for group in groups]),
        "lengths": np.stack([group.lengths for group in groups]),
        "truncated": np.stack([group.truncated for group in groups]),
        "old": np.stack([rows[group.index] for group in groups]),
        _SAMPLES: np.stack([np.frombuffer(samples[group.index], np.uint8) for group in groups]),
    }
    sampled = [group.logprobs for group in groups if group.logprobs is not None]  # of all groups or of none
    return kept | ({_LOGPROBS: np.stack(sampled)} if sampled else {})


def known_step(arrays: HostArrays) -> KnownStep:
    """The step that ``kept_step`` gave. Raises CheckpointError for other arrays."""
    if arrays.keys() - {_LOGPROBS} != set(_NAMES):
        raise CheckpointError(
            f"the captions drawn ahead are {', '.join(sorted(arrays))}, not {', '.join(_NAMES)}: start a new run folder"
        )
    indices = arrays["index"].tolist()
    logprobs = arrays.get(_LOGPROBS, [None] * len(indices))
    drawn = zip(indices, arrays["tokens"], arrays["lengths"], arrays["truncated"], logprobs, strict=True)
    return KnownStep(
        groups={index: SampledGroup(index, *rest) for index, *rest in drawn},
        old=dict(zip(indices, arrays["old"], strict=True)),
        samples={index: row.tobytes() for index, row in zip(indices, arrays[_SAMPLES], strict=True)},
    )


def _digest(identity: str) -> bytes:
    """Eight bytes: arrays hold no texts of any length."""
    return hashlib.blake2b(identity.encode(), digest_size=8).digest()
