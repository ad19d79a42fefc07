"""Decoding as a run does it when captions end at lengths of their own: slots refilled, shapes that shrink, tails.

The run's own scheduler goes through the lengths, and every call is charged the bytes that its shape
moves, or its captions where the kernel for new tokens reads each to its own length. How long
captions are depends on the policy, so all of this is an estimate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from vcap_jax.rollout.schedule import Shape, ShapeBuckets


def spread_lengths(mean: float, longest: int, groups: int, captions: int) -> np.ndarray:
    """Tokens of each caption of a step: int64 [groups, captions], log-normal with that mean and that longest one.

    No chance is in it but the order, which is always the same: the k-th of n lengths is the (k - 1/2)/n quantile.
    """
    count = groups * captions
    normal = np.array([NormalDist().inv_cdf((k + 0.5) / count) for k in range(count)])
    # longest = mean exp(s z - s^2 / 2) for the largest quantile z; beyond s = z a longer tail makes it no longer.
    ratio = math.log(max(1.0, longest / mean))
    deviation = normal[-1] - math.sqrt(max(0.0, normal[-1] ** 2 - 2 * ratio))
    lengths = mean * np.exp(deviation * normal - deviation**2 / 2)
    order = np.random.default_rng(0).permutation(count)
    return np.clip(np.rint(lengths), 1, longest).astype(np.int64)[order].reshape(groups, captions)


def columns_read(early: np.ndarray, late: np.ndarray, *, start: int, block: int) -> np.ndarray:
    """Columns in the blocks that a kernel reads which looks at [0, early) and [start, start + late): whole blocks,
    one in which both ranges have columns twice. early, late: integers of any one shape, which is the result's."""
    late_blocks = np.where(late > 0, -(-(start + late) // block) - start // block, 0)
    return np.asarray((-(-early // block) + late_blocks) * block)


class Call(NamedTuple):
    """A decode call. tokens: that the replica which goes on longest draws in it. left: [replicas, slots, captions]
    tokens that captions will still have, steps: [replicas, slots] tokens that they have had, both before the call."""

    shape: Shape
    tokens: int
    left: np.ndarray
    steps: np.ndarray


def decode_calls(
    buckets: ShapeBuckets, replicas: int, chunk: int, lengths: np.ndarray, short: ShapeBuckets | None = None
) -> Iterator[Call]:
    """The decode calls of a host that draws groups with captions of ``lengths`` [groups, captions]. ``replicas``: of
    the host. short: of the short caches, if there are any: groups that outgrow these come last.

    Groups wait in their order for the first free slot, replicas taking turns (``rollout.slots``).
    """
    waiting = deque((row, 0) for row in lengths)
    for stage in (short, buckets):
        if stage is None:
            continue
        outgrown: deque[tuple[np.ndarray, int]] = deque()
        left = np.zeros((replicas, stage.slots[-1], lengths.shape[1]), np.int64)
        steps = np.zeros(left.shape[:2], np.int64)
        while True:
            for slot in range(stage.slots[-1]):
                for replica in range(replicas):
                    if waiting and not left[replica, slot].any():
                        left[replica, slot], steps[replica, slot] = waiting.popleft()
            if not left.any():
                break
            tokens = min(chunk, int(left.max()))
            yield Call(stage.plan(left > 0, steps).shape, tokens, left.copy(), steps.copy())
            left = np.maximum(left - chunk, 0)
            steps += chunk
            for replica, slot in np.argwhere(stage.outgrown(left > 0, steps)):
                outgrown.append((left[replica, slot].copy(), int(steps[replica, slot])))
                left[replica, slot] = 0
        waiting = outgrown


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How a host decodes, and what a token must read on each device.

    buckets: of its decode calls, and short of those of short caches; replicas, groups: of the host, in a step.
    parameters: bytes that every token reads.
    prompt: bytes of a slot's prompt. column: bytes of a column of a caption. block: columns that the kernel for new
    tokens reads at a time, if it goes by the length of each caption (``TokenKernel.range_block``).
    """

    buckets: ShapeBuckets
    replicas: int
    groups: int
    captions: int
    chunk: int
    parameters: int
    prompt: int
    column: float
    block: int | None = None
    short: ShapeBuckets | None = None

    def read(self, shape: Shape) -> float:
        """Bytes that a token of a call of that shape must read."""
        rows = shape.slots * shape.candidates
        return self.parameters + shape.slots * self.prompt + rows * shape.width * self.column

    def caches(self, call: Call) -> float:
        """Bytes of prompts and captions that a call must read, all its tokens together, on the device that reads
        most."""
        if self.block is None:
            return call.tokens * (self.read(call.shape) - self.parameters)
        token = np.arange(call.tokens)
        going = call.left[..., None] > token  # [replicas, slots, captions, tokens]
        seen = columns_read(call.steps[..., None, None], token + 1, start=call.shape.width, block=self.block)
        captions = np.where(going, seen, 0).sum((1, 2, 3)) * self.column
        prompts = going.any(2).sum((1, 2)) * self.prompt
        return float((captions + prompts).max())

    def moved(self, mean: float, longest: int, largest: float = 0.0) -> tuple[float, int]:
        """Bytes that a step's decoding moves on a device, and the tokens that it goes through one after the other, with
        captions of that mean length and that longest one.

        largest: bytes that a token of the largest shape moves. What that is above what must be read is taken to shrink
        as caches do. 0: nothing is moved that need not be read.
        """
        full = next(reversed(list(self.buckets.shapes())))
        caches = self.read(full) - self.parameters
        factor = max(1.0, (largest - self.parameters) / caches)
        total, through = 0.0, 0
        lengths = spread_lengths(mean, longest, self.groups, self.captions)
        for call in decode_calls(self.buckets, self.replicas, self.chunk, lengths, self.short):
            total += call.tokens * self.parameters + factor * self.caches(call)
            through += call.tokens
        return total, through
