"""The group sampler: one prefill per prompt, G captions decoded over the shared prefix, group after group.

A number of slots hold a group each, at its own step. Decoding runs in chunks of tokens, one device call each. Between
two calls the host sees which captions have ended, hands them and complete groups on, so that they are judged while
others still decode, and puts waiting groups into their slots; and the next call gets the smallest known shape that
holds what is unfinished (``schedule``). Shapes depend only on the prompt bucket and the settings; nothing recompiles
from step to step.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered

from vcap_jax.models.family import DecodeParams, Features, GraphDef, Params, PromptBatch
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.sharding import abstract
from vcap_jax.rollout.config import RolloutConfig
from vcap_jax.rollout.decode_state import DATA_AXIS, DecodeState
from vcap_jax.rollout.decoding import DecodePrograms
from vcap_jax.rollout.placement import RolloutPlacement, mesh_of
from vcap_jax.rollout.schedule import ShapeBuckets, fills_together
from vcap_jax.rollout.slots import Incoming, Outgrown, PromptGroups, SampledCaption, SampledGroup, Slots

_COMPILERS = 16
"""Programs compiled at a time at most: each takes a core and, for a large model, a GiB or two of the host's memory."""


class GroupSampler:
    """Compiled prefill and decode programs for one model definition and one set of sampling rules.

    graphdef: static model definition (see ``vcap_jax.models.policy``).
    end_ids: tokens that end a caption; banned_ids: tokens that are never sampled (visual placeholders would
    break the next prompt that contains the caption).
    mesh: (data, tensor), see ``placement.local_mesh``; None takes this process's part of the mesh that the parameters
    lie on. Slots are dealt out to its ``data`` devices, ``groups_per_batch`` in all, at least one each.
    suffix_tokens: of the longest suffix (``slots.Suffixes``) that prompts are given with; 0 where prompts are whole.
    logprobs: whether groups come with their tokens' log-probabilities, which a pass over the logits per token takes.
    """

    def __init__(
        self,
        graphdef: GraphDef,
        config: RolloutConfig,
        *,
        end_ids: Sequence[int],
        banned_ids: Sequence[int],
        mesh: Mesh | None = None,
        suffix_tokens: int = 0,
        logprobs: bool = False,
    ) -> None:
        if not end_ids:
            raise ValueError("no end-of-caption token: the tokenizer and generation_config.json name none")
        if suffix_tokens:  # columns for them too
            config = config.limited_to(config.max_completion_length + suffix_tokens)
        self.config, self.suffix_tokens, self._logprobs = config, suffix_tokens, logprobs
        self._graphdef = graphdef
        self._mesh = mesh
        self._end, self._banned = tuple(sorted(set(end_ids))), tuple(sorted(set(banned_ids)))
        self._programs: dict[Mesh, DecodePrograms] = {}

    def programs(self, mesh: Mesh) -> DecodePrograms:
        """The programs on a mesh (data, tensor)."""
        if mesh not in self._programs:
            self._programs[mesh] = DecodePrograms(
                self._graphdef,
                self.config,
                mesh,
                end=self._end,
                banned=self._banned,
                suffix_tokens=self.suffix_tokens,
                logprobs=self._logprobs,
            )
        return self._programs[mesh]

    def buckets(self, replicas: int) -> ShapeBuckets:
        """The shapes that decode calls may have on that many ``data`` devices: those of captions of any length."""
        config = self.config
        every = self._buckets(config.groups_per_batch, config.max_completion_length, replicas)
        return every.beyond(columns_for(config.short_length)) if config.short_groups else every

    def short_buckets(self, replicas: int) -> ShapeBuckets | None:
        """The shapes of calls while captions are short (``RolloutConfig.short_groups``); None where caches have one
        size."""
        config = self.config
        if not config.short_groups:
            return None
        return self._buckets(config.short_groups, config.short_length, replicas)

    def _buckets(self, groups: int, length: int, replicas: int) -> ShapeBuckets:
        config = self.config
        return ShapeBuckets.build(
            slots=max(1, -(-groups // replicas)),
            candidates=config.group_size,
            width=length,
            chunk=config.chunk,
            factor=config.shrink,
            rows=config.shrink_rows,
        )

    def placement(self, trainable: Params) -> RolloutPlacement:
        """Where captions are drawn with parameters that lie as these do."""
        return RolloutPlacement(self._mesh or mesh_of(trainable), self._graphdef)

    def abstract_calls(
        self,
        trainable: Params,
        frozen: Params,
        prompt: PromptBatch,
        features: Features | None,
        *,
        short: bool = False,
    ) -> AbstractCalls:
        """What a run would call for prompts like these, everything given as jax.ShapeDtypeStruct with shardings; the
        sampler must have been given its mesh. short: with the short caches, which the settings must have."""
        if self._mesh is None:
            raise ValueError("a sampler without a mesh takes it from the parameters' devices: give it one")
        placement, programs = self.placement(trainable), self.programs(self._mesh)
        params = placement.abstract(trainable, frozen)
        replicas = NamedSharding(self._mesh, PartitionSpec(DATA_AXIS))
        buckets = self.short_buckets(programs.replicas) if short else self.buckets(programs.replicas)
        if buckets is None:
            raise ValueError("rollout.short_groups is 0: there are no short caches")
        whole = NamedSharding(self._mesh, PartitionSpec())
        slots, tokens = buckets.slots[-1], prompt.tokens.shape[1]
        state = _abstract_state(programs, params, buckets, tokens)
        most = -(-prompt.tokens.shape[0] // programs.replicas)
        count = slots if fills_together(slots, most, tokens, self.config.prefill_chunk) else 1

        def numbers(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, np.int32, sharding=replicas if shape else whole)

        per_fill = [numbers(programs.replicas, count)] * 3
        shape = list(buckets.shapes())[-1]
        chosen = (numbers(programs.replicas, slots), numbers(programs.replicas, slots, shape.candidates))
        return AbstractCalls(
            params,
            state,
            programs.replicas * min(most, count),
            lambda: programs.fill.lower(params, state, prompt, features, *per_fill, numbers(), numbers()),
            lambda: programs.decode.lower(params, state, *chosen, shape),
        )

    def stream(
        self,
        trainable: Params,
        frozen: Params,
        prompt: PromptBatch,
        features: Features | None,
        *,
        seed: int,
        step: int,
        group_ids: Sequence[int],
    ) -> Iterator[SampledGroup]:
        """Yields every real group of ``prompt`` once, as soon as its last caption has ended; ``index`` is its row."""
        batch = PromptGroups(prompt, features, group_ids, range(len(group_ids)))
        yield from self.stream_batches(trainable, frozen, [batch], seed=seed, step=step)

    def stream_batches(
        self,
        trainable: Params,
        frozen: Params,
        batches: Iterable[PromptGroups],
        *,
        seed: int,
        step: int,
        ended: Callable[[SampledCaption], None] | None = None,
        most_waiting: int | None = None,
    ) -> Iterator[SampledGroup]:
        """Yields every group of ``batches`` once, as soon as its last caption has ended.

        ended: called with every caption as soon as it has ended, before its group is yielded.
        batches: read when there is room for their groups, to the end. Groups decode side by side whatever batch they
        come from, if their prompts have room in the slots (``schedule.has_room``), which are as wide as the prompts
        that came first. Before slots of another width begin, the groups in these are finished. With short caches
        (``RolloutConfig.short_groups``) groups that outgrow them wait on the host until no other group is left, or
        until ``most_waiting`` wait, beside those that decode by then: others begin when they are done.
        Draws depend on (seed, step, group id, candidate, position) alone, not on what decodes beside a group. In a run
        of several processes all call this together; each brings and gets its own groups.
        """
        placement = self.placement(trainable)
        params = placement.params(trainable, frozen)
        programs = self.programs(placement.mesh)
        incoming = Incoming(batches)
        while (tokens := incoming.tokens()) is not None:
            waiting: deque[Outgrown] = deque()
            short = self.short_buckets(programs.replicas)
            if short is not None:
                slots = Slots(programs, short, params, placement, tokens, seed, step)
                while (
                    (most_waiting is None or len(waiting) < most_waiting) and slots.fill(incoming)
                ) or slots.busy:
                    slots.decode()
                    yield from slots.finished(ended)
                    waiting.extend(slots.outgrown())
                del slots  # its caches, before longer ones are made
                if not waiting:
                    continue
            slots = Slots(programs, self.buckets(programs.replicas), params, placement, tokens, seed, step)
            while slots.resume(waiting) or (short is None and slots.fill(incoming)) or slots.busy:
                slots.decode()
                yield from slots.finished(ended)
            del slots  # its caches, before those of the next width are made

    def taken(self, trainable: Params, frozen: Params) -> list[jax.Array]:
        """The parameters that captions are drawn with as they are, see ``RolloutPlacement.taken``."""
        return self.placement(trainable).taken(trainable, frozen)

    def warm(
        self,
        trainable: Params,
        frozen: Params,
        prompt_tokens: Iterable[int],
        check: Callable[[str], None] | None = None,
    ) -> int:
        """Compiles the decode calls of every shape that groups with prompts of these padded sizes can come to, several
        at a time, so that none is compiled between two steps; returns how many. Nothing is computed.

        trainable, frozen: arrays, or abstract with shardings. check: called with the text of each program before it is
        compiled; may raise. Where there is one shape alone (``shrink`` 1) nothing is
        done: the first call compiles it. Prefill and the vision encoder are compiled with the first prompts of a size.
        """
        placement = self.placement(trainable)
        params, programs = placement.abstract(trainable, frozen), self.programs(placement.mesh)
        stages = [self.buckets(programs.replicas)]
        if (short := self.short_buckets(programs.replicas)) is not None:
            stages.append(short)
        if sum(len(list(stage.shapes())) for stage in stages) == 1:
            return 0
        waiting = []
        with ThreadPoolExecutor(min(_COMPILERS, os.cpu_count() or 1)) as compilers:
            for tokens in prompt_tokens:
                for stage in stages:
                    state = _abstract_state(programs, params, stage, tokens)
                    for shape in stage.shapes():
                        none = np.zeros((programs.replicas, shape.slots), np.int32)
                        some = np.zeros((*none.shape, shape.candidates), np.int32)
                        lowered = programs.decode.lower(params, state, none, some, shape)
                        if check is not None:
                            check(lowered.as_text())
                        waiting.append(compilers.submit(lowered.compile))
            for done in waiting:
                done.result()
        return len(waiting)


@dataclass(frozen=True)
class AbstractCalls:
    """The programs of a full sampler, lowered without data. params, state: abstract; fill, decode: lower a call;
    groups_per_fill: of all replicas; decode: of the largest shape."""

    params: DecodeParams
    state: DecodeState
    groups_per_fill: int
    fill: Callable[[], Lowered]
    decode: Callable[[], Lowered]


def _abstract_state(
    programs: DecodePrograms, params: DecodeParams, buckets: ShapeBuckets, tokens: int
) -> DecodeState:
    """With room for the largest of the shapes and prompts of that many tokens. params: abstract."""
    state = jax.eval_shape(lambda p: programs.empty(p, buckets.slots[-1], tokens, buckets.widths[-1]), params)
    return abstract(state, programs.shardings(params, state))
