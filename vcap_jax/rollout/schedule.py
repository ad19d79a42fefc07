"""Which groups decode next, and in which shape: a function of the tokens drawn so far, and of nothing else.

A replica (a device, or the devices that share one copy of the parameters) has a number of slots, each with one group at
its own step. Between two device calls the scheduler picks the smallest of a few known shapes that holds what is still
unfinished: some slots, some candidates of each, a caption cache of some width. The few shapes are what keeps
compilation out of the steady state.

Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from vcap_jax.models.widths import columns_for


def sizes_down_to(largest: int, smallest: int, factor: int) -> tuple[int, ...]:
    """``largest`` divided by ``factor`` again and again, rounded up, while no less than ``smallest``; ascending.

    factor 1: ``largest`` alone.
    """
    sizes = [largest]
    while factor > 1 and sizes[-1] > 1:
        smaller = -(-sizes[-1] // factor)
        if smaller < smallest:
            break
        sizes.append(smaller)
    return tuple(reversed(sizes))


def has_room(width: int, prompt: int) -> bool:
    """Whether a prompt padded to ``prompt`` tokens may go into a slot for ``width``.

    A token reads its slot's columns whether the prompt fills them or not. So a slot takes no prompt of less than half
    its width: those of a kind decode side by side, and nobody reads more than twice the prompt.
    """
    return prompt <= width <= 2 * prompt


def fills_together(slots: int, most: int, prompt: int, chunk: int) -> bool:
    """Whether a replica's slots are filled by one call for all of them, instead of one for each.

    most: groups that any replica gets now, all of ``prompt`` padded tokens. The call computes a prompt for every slot,
    so at least half of them must be filled, and no more than ``chunk`` tokens are computed at a time.
    """
    return slots > 1 and slots * prompt <= chunk and 2 * most >= slots


@dataclass(frozen=True)
class Shape:
    """Slots of a replica, candidates of a slot, and the columns of the caption cache that are looked at."""

    slots: int
    candidates: int
    width: int


@dataclass(frozen=True)
class DecodePlan:
    """One device call. slots: [replicas, slots] which; candidates: [replicas, slots, candidates] which of each."""

    shape: Shape
    slots: np.ndarray
    candidates: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ShapeBuckets:
    """The shapes that a run may use.

    slots, candidates, widths: allowed sizes, ascending; the last of each is everything that a state has room for.
    """

    slots: tuple[int, ...]
    candidates: tuple[int, ...]
    widths: tuple[int, ...]

    def outgrown(self, live: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Of slots [replicas, slots], those whose captions go on beyond the widest cache. Arguments as ``plan``'s."""
        return np.asarray(live.any(-1) & (steps > self.widths[-1]))

    def beyond(self, width: int) -> ShapeBuckets:
        """Without the widths that captions of more than ``width`` tokens are never in."""
        return replace(self, widths=tuple(w for w in self.widths if w > width))

    @classmethod
    def build(
        cls, *, slots: int, candidates: int, width: int, chunk: int, factor: int, rows: int
    ) -> ShapeBuckets:
        """width: tokens of a caption at most; ``widths`` are the columns for it and for its fractions. factor: between
        neighbouring sizes; 1 for one shape only. A cache of less than two chunks is not worth a shape of its own.
        rows: slots x candidates of a replica below which nothing shrinks any more."""
        worthwhile = [
            size for size in sizes_down_to(slots, 1, factor) if size == slots or size * candidates >= rows
        ]
        return cls(
            slots=tuple(worthwhile),
            candidates=sizes_down_to(candidates, max(1, -(-rows // worthwhile[0])), factor),
            widths=tuple(sorted({columns_for(size) for size in sizes_down_to(width, 2 * chunk, factor)})),
        )

    def shapes(self) -> Iterator[Shape]:
        """All of them."""
        for slots in self.slots:
            for candidates in self.candidates:
                for width in self.widths:
                    yield Shape(slots, candidates, width)

    def plan(self, live: np.ndarray, steps: np.ndarray) -> DecodePlan:
        """The next call for what is unfinished.

        live: [replicas, slots, candidates] bool, at least one True; steps: [replicas, slots] tokens so far.
        """
        occupied = np.asarray(live.any(-1))
        shape = Shape(
            _fit(self.slots, int(occupied.sum(-1).max())),
            _fit(self.candidates, int(live.sum(-1).max())),
            _fit(self.widths, int(steps[occupied].max())),
        )
        slots = _first_true(occupied, shape.slots)
        chosen = np.take_along_axis(live, slots[..., None], axis=1)
        return DecodePlan(shape, slots, _first_true(chosen, shape.candidates))


def _fit(sizes: tuple[int, ...], needed: int) -> int:
    return next(size for size in sizes if size >= needed)


def _first_true(flags: np.ndarray, count: int) -> np.ndarray:
    """int32 indices [..., count] along the last axis: those of True first, all in order if all are taken."""
    if count == flags.shape[-1]:
        return np.broadcast_to(np.arange(count, dtype=np.int32), flags.shape).copy()
    return np.argsort(~flags, axis=-1, kind="stable")[..., :count].astype(np.int32)
