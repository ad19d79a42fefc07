"""The groups that decode side by side, and those that wait: what the sampler keeps on the host.

Everything here follows from the tokens drawn, and nothing from a clock. So a run decodes the same
groups beside each other every time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from vcap_jax.models.family import DecodeParams, Features, PromptBatch
from vcap_jax.rollout.decode_state import DecodeState, Written
from vcap_jax.rollout.decoding import DecodePrograms
from vcap_jax.rollout.parking import Parked, parking_on
from vcap_jax.rollout.placement import RolloutPlacement
from vcap_jax.rollout.schedule import ShapeBuckets, fills_together, has_room


@dataclass(frozen=True)
class SampledCaption:
    """A caption that has ended. index: of its group in the step; place: in its group; tokens: int32, the end token
    included."""

    index: int
    place: int
    tokens: np.ndarray


@dataclass(frozen=True)
class SampledGroup:
    """One finished group. index: in the step; tokens: [G, T]; lengths: [G]; truncated: [G], True where
    the caption hit the budget without an end token (kept as it is: no end token is appended). logprobs: [G, T]
    float32, the engine's log-probabilities of these tokens, NaN beyond a caption's end; from the JAX sampler those of
    ``sampling.drawn_logprobs``, or None where it was not asked for them; from vLLM those under the sampling rules."""

    index: int
    tokens: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    logprobs: np.ndarray | None = None

    def by_caption(self) -> Iterator[SampledCaption]:
        """Its captions, in their order."""
        for place, (tokens, length) in enumerate(zip(self.tokens, self.lengths, strict=True)):
            yield SampledCaption(self.index, place, tokens[:length])


@dataclass(frozen=True)
class Suffixes:
    """How the prompts of a batch go on in several ways, so that what they have in common is computed once.

    tokens: [B, Q, S] int32, -1 beyond each; a way without tokens is none. The candidates of a group take them in equal
    parts, the first G / Q the first. ids: [B, Q] int32, what the draws of each part depend on, as those of a prompt by
    itself on its group's id.
    """

    tokens: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class PromptGroups:
    """Prompts of a padded batch, and what its groups are called.

    prompt: rows of length 0 are padding. features: of the prompts. ids: the group id of each real row, which its draws
    depend on; also the ``index`` it is yielded with, if ``indices`` are not given. suffixes: of a sampler that is made
    for some.
    """

    prompt: PromptBatch
    features: Features | None
    ids: Sequence[int]
    indices: Sequence[int] | None = None
    suffixes: Suffixes | None = None

    @property
    def tokens(self) -> int:
        """What the prompts are padded to."""
        return self.prompt.tokens.shape[1]


@dataclass(frozen=True)
class Waiting:
    batch: PromptGroups
    row: int
    id: int
    index: int


class Incoming:
    """The groups that wait, batch after batch; a batch is asked for when none is left."""

    def __init__(self, batches: Iterable[PromptGroups]) -> None:
        self._batches = iter(batches)
        self._waiting: deque[Waiting] = deque()

    def tokens(self) -> int | None:
        """What the next group's prompt is padded to; None if there is none."""
        while not self._waiting:
            batch = next(self._batches, None)
            if batch is None:
                return None
            lengths = np.asarray(batch.prompt.lengths)
            rows = [row for row, length in enumerate(lengths) if length > 0]
            indices = batch.ids if batch.indices is None else batch.indices
            self._waiting.extend(Waiting(batch, row, batch.ids[row], indices[row]) for row in rows)
        return self._waiting[0].batch.tokens

    def take(self, most: int, width: int) -> list[Waiting]:
        """Up to ``most`` groups of one batch, for slots of prompts of ``width`` tokens."""
        taken: list[Waiting] = []
        while len(taken) < most and (tokens := self.tokens()) is not None and has_room(width, tokens):
            if taken and self._waiting[0].batch is not taken[0].batch:
                break
            taken.append(self._waiting.popleft())
        return taken


@dataclass(frozen=True)
class Outgrown:
    """A group that waits on the host for longer caches. live: [G] bool, its captions that go on; steps: tokens that
    they have had."""

    group: Waiting
    live: np.ndarray
    steps: int
    parked: Parked


class Slots:
    """The groups that decode side by side, and the state they are in. Replicas are devices, each with its own slots.

    buckets: the shapes of its calls; the largest is what the state has room for. A group whose captions outgrow it
    must be taken out (``outgrown``) after the call that has brought it there. prompt_tokens: of the prompts that slots
    have room for (``has_room``); a shorter one is computed at its own size.
    """

    def __init__(
        self,
        programs: DecodePrograms,
        buckets: ShapeBuckets,
        params: DecodeParams,
        placement: RolloutPlacement,
        prompt_tokens: int,
        seed: int,
        step: int,
    ) -> None:
        self._programs, self._buckets, self._params, self._placement = programs, buckets, params, placement
        self._seed, self._step = seed, step
        self._budget = programs.config.max_completion_length  # suffixes included
        self._parking = parking_on(programs.mesh)
        self._slots, self._prompt_tokens = buckets.slots[-1], prompt_tokens
        self._held: list[list[Waiting | None]] = [[None] * self._slots for _ in range(programs.replicas)]
        self._placed: tuple[PromptGroups, PromptBatch, Features | None] | None = None
        self.state: DecodeState = programs.empty(params, self._slots, prompt_tokens, buckets.widths[-1])
        shape = (programs.replicas, self._slots)
        self._live = np.zeros((*shape, programs.config.group_size), bool)
        self._ended = np.zeros_like(self._live)
        self._steps = np.zeros(shape, np.int64)

    @property
    def busy(self) -> bool:
        """Whether a slot holds a group."""
        return any(group is not None for replica in self._held for group in replica)

    def fill(self, incoming: Incoming) -> bool:
        """Puts waiting groups into empty slots, as long as the next one has room there; whether there were any."""
        filled = False
        while free := self._free():
            taken = incoming.take(len(free), self._prompt_tokens)
            if not taken:
                break
            filled = True
            # Replicas take turns, so that all have as many groups; of a replica the first empty slot is filled first.
            chosen: list[list[tuple[int, Waiting]]] = [[] for _ in range(self._programs.replicas)]
            for (slot, replica), group in zip(free, taken, strict=False):
                self._held[replica][slot] = group
                self._live[replica, slot], self._steps[replica, slot] = True, 0
                chosen[replica].append((slot, group))
            most = max(map(len, chosen))
            batch = taken[0].batch
            if fills_together(self._slots, most, batch.tokens, self._programs.config.prefill_chunk):
                self.put(chosen, batch, self._slots)
            else:
                for k in range(most):
                    self.put([replica[k : k + 1] for replica in chosen], batch, 1)
        return filled

    def resume(self, waiting: deque[Outgrown]) -> bool:
        """Puts groups that wait on the host into empty slots, the first ones first; whether there were any."""
        chosen: list[list[tuple[int, Outgrown]]] = [[] for _ in range(self._programs.replicas)]
        for slot, replica in self._free():
            if waiting:
                chosen[replica].append((slot, waiting.popleft()))
        for k in range(max(map(len, chosen))):
            row = [replica[k] if k < len(replica) else None for replica in chosen]
            slots = [None if pair is None else pair[0] for pair in row]
            self.state = self._parking.give(
                self.state, slots, [pair[1].parked for pair in row if pair is not None]
            )
            for replica, pair in enumerate(row):
                if pair is not None:
                    slot, group = pair
                    self._held[replica][slot] = group.group
                    self._live[replica, slot], self._steps[replica, slot] = group.live, group.steps
        return any(chosen)

    def outgrown(self) -> list[Outgrown]:
        """Takes out the groups whose captions go on beyond these caches, in the order of their slots."""
        found: list[Outgrown] = []
        beyond = self._buckets.outgrown(self._live, self._steps)
        while beyond.any():
            slots = [int(replica.argmax()) if replica.any() else None for replica in beyond]
            parked = self._parking.take(self.state, slots)
            self.state = self._parking.end(self.state, slots)
            for replica, (slot, held) in enumerate(zip(slots, parked, strict=True)):
                if slot is not None and held is not None:
                    group = self._held[replica][slot]
                    assert group is not None, "a slot with live captions holds their group"
                    live, steps = self._live[replica, slot].copy(), int(self._steps[replica, slot])
                    found.append(Outgrown(group, live, steps, held))
                    self._held[replica][slot] = None
                    self._live[replica, slot] = beyond[replica, slot] = False
        return found

    def _free(self) -> list[tuple[int, int]]:
        """Empty slots and their replicas, the first of every replica first."""
        return [
            (slot, replica)
            for slot in range(self._slots)
            for replica in range(self._programs.replicas)
            if self._held[replica][slot] is None
        ]

    def put(self, chosen: Sequence[Sequence[tuple[int, Waiting]]], batch: PromptGroups, count: int) -> None:
        """Prefills groups of ``batch``: (slot, group) pairs by replica; ``count``: see ``DecodePrograms.fill``."""
        shape = (len(chosen), count)
        rows, slots, ids = (np.full(shape, fill, np.int32) for fill in (0, -1, 0))
        for replica, groups in enumerate(chosen):
            for slot, group in groups:
                k = slot if count == self._slots else 0
                rows[replica, k], slots[replica, k], ids[replica, k] = group.row, slot, group.id
        if self._placed is None or self._placed[0] is not batch:
            text = batch.prompt.without_vision()
            self._placed = (batch, self._placement.batch(text), self._placement.batch(batch.features))
        _, prompt, features = self._placed
        # 32 bits whatever their sign: a key is made of the bits.
        numbers = (np.uint32(self._seed % 2**32).astype(np.int32), np.int32(self._step))
        fill = partial(self._programs.fill, self._params, self.state, prompt, features, rows, slots)
        if batch.suffixes is None:
            self.state = fill(ids, *numbers)
        else:
            of_candidates = np.repeat(batch.suffixes.tokens[rows], self._per_way(batch.suffixes), axis=2)
            self.state = fill(batch.suffixes.ids[rows], *numbers, of_candidates)

    def _per_way(self, suffixes: Suffixes) -> int:
        """How many candidates go on in each way."""
        return self._live.shape[-1] // suffixes.tokens.shape[1]

    def _suffix_lengths(self, group: Waiting) -> np.ndarray:
        """[G], of its candidates, in tokens."""
        if group.batch.suffixes is None:
            return np.zeros(self._live.shape[-1], np.int64)
        own = (group.batch.suffixes.tokens[group.row] >= 0).sum(-1)
        return np.repeat(own, self._per_way(group.batch.suffixes))

    def decode(self) -> None:
        """One device call, and a look at what has ended."""
        plan = self._buckets.plan(self._live, self._steps)
        self.state = self._programs.decode(self._params, self.state, plan.slots, plan.candidates, plan.shape)
        done, steps = jax.device_get((self.state.done, self.state.steps))
        self._steps = steps.reshape(self._steps.shape).astype(np.int64)
        held = np.array([[group is not None for group in replica] for replica in self._held])
        going = held & (self._steps < self._budget)
        live = ~done.reshape(self._live.shape) & going[..., None]
        self._ended, self._live = self._live & ~live, live

    def finished(self, ended: Callable[[SampledCaption], None] | None) -> Iterator[SampledGroup]:
        """The groups that the last call has completed, in the order of their indices; their slots are free. Before
        that ``ended`` is told all captions that it has completed."""
        heard = [
            (group.index, replica, slot)
            for replica, groups in enumerate(self._held)
            for slot, group in enumerate(groups)
            if group is not None and self._ended[replica, slot].any()
        ]
        complete = [(i, replica, slot) for i, replica, slot in heard if not self._live[replica, slot].any()]
        if not complete and (ended is None or not heard):
            return
        written, lengths, done = jax.device_get((self.state.written, self.state.lengths, self.state.done))
        groups = {
            (replica, slot): self._drawn(index, replica, slot, written, lengths, done)
            for index, replica, slot in (complete if ended is None else heard)
        }
        if ended is not None:
            for _, replica, slot in sorted(heard):
                for caption in groups[replica, slot].by_caption():
                    if self._ended[replica, slot, caption.place]:
                        ended(caption)
        for _, replica, slot in sorted(complete):
            self._held[replica][slot] = None
            yield groups[replica, slot]

    def _drawn(
        self, index: int, replica: int, slot: int, written: Written, lengths: np.ndarray, done: np.ndarray
    ) -> SampledGroup:
        """What was drawn in a slot so far, without suffixes: [G, T], as long as captions may get, whatever the caches
        hold; beyond a caption's end the end token. written, lengths, done: of the state, on the host."""
        group, row = self._held[replica][slot], replica * self._slots + slot
        assert group is not None, "a slot that has drawn holds a group"
        begin, most = self._suffix_lengths(group), self._budget - self._programs.suffix_tokens
        own = lengths[row] - begin

        def whole(of: jax.Array, beyond: np.int32 | np.float32) -> np.ndarray:
            captions = np.full((len(own), most), beyond)
            for caption, said, first, length in zip(captions, np.asarray(of)[row], begin, own, strict=True):
                caption[: max(0, length)] = said[first : first + min(length, most)]
            return captions

        tokens = whole(written.tokens, np.int32(self._programs.end[0]))
        logprobs = None if written.logprobs is None else whole(written.logprobs, np.float32(np.nan))
        return SampledGroup(index, tokens, np.clip(own, 0, most), ~done[row] | (own > most), logprobs)
