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
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered
from pydantic import AfterValidator, Field

from vcap_jax.configuration import FormerName, settings
from vcap_jax.models.family import DecodeParams, Features, GraphDef, Params, PromptBatch
from vcap_jax.models.widths import columns_for
from vcap_jax.rollout.decode_state import DATA_AXIS, DecodeState
from vcap_jax.rollout.decoding import DecodePrograms, DecodeSettings
from vcap_jax.rollout.placement import RolloutPlacement, mesh_of
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.rollout.schedule import ShapeBuckets, fills_together
from vcap_jax.rollout.slots import Incoming, Outgrown, PromptGroups, SampledCaption, SampledGroup, Slots
from vcap_jax.rollout.vllm_config import VllmConfig

_COMPILERS = 16
"""Programs compiled at a time at most: each takes a core and, for a large model, a GiB or two of the host's memory."""


Offloaded = Literal["optimizer", "reference", "parameters"]


def _each_once(names: tuple[Offloaded, ...]) -> tuple[Offloaded, ...]:
    if len(set(names)) < len(names):
        raise ValueError("name each once")
    return names


@settings
class RolloutConfig:
    """How a step's captions are drawn (paper, Table training-config)."""

    group_size: int = Field(default=8, ge=1)
    """Captions per prompt, the paper's G."""
    max_completion_length: int = Field(default=4096, ge=1)
    """Tokens per caption at most, the end token included."""
    groups_per_batch: int = Field(default=4, ge=1)
    """Groups decoded side by side, of all processes together, whatever the update's micro-batch; a
    group that is complete makes room for the next."""
    short_groups: int = Field(default=0, ge=0)
    """Groups decoded side by side, of all processes together, while their captions have at most
    rollout.short_length tokens, in caches that hold no more. A group with a longer caption waits in
    the host's memory until all others of its step have ended, and goes on with
    rollout.groups_per_batch at a time. 0: all caches hold captions of any length from the start."""
    short_length: int = Field(default=0, ge=0)
    """Tokens of a caption that the caches of rollout.short_groups hold: what few captions outgrow. 0
    where that is 0."""
    decode_steps_per_call: Annotated[int, FormerName("chunk")] = Field(default=64, ge=1)
    """Tokens decoded per device call; the host looks for finished groups in between."""
    prefill_chunk: int = Field(default=16_384, ge=1)
    """Tokens of prompts computed at a time: a longer prompt is prefilled in chunks, shorter ones
    together."""
    shrink: int = Field(default=2, ge=1)
    """As captions end, slots, captions per slot and cache columns shrink to this fraction, again
    and again (2: halves), each size a program of its own; 1 keeps one size. Where data.buckets
    allows few sizes of prompts, training compiles all of these programs before its first step;
    otherwise each when it is first needed."""
    shrink_rows: int = Field(default=1, ge=1)
    """Captions decoded side by side below which slots and captions shrink no more."""
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    engine: Literal["jax", "vllm"] = "jax"
    """Who draws captions, those that are trained on, references and held-out ones: "jax" (this
    package's sampler) or "vllm" (servers that are given the weights of every step)."""
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    ahead: int = Field(default=0, ge=0, le=1)
    """Steps that captions are drawn ahead. With 1 the next step's captions are drawn while the judge
    works on this one's, so with weights that are one update behind; the clipped ratio takes their
    log-probabilities. For one process and the JAX sampler. 0 draws each step with the newest weights."""
    offload: Annotated[tuple[Offloaded, ...], AfterValidator(_each_once)] = ()
    """What waits in the host's memory while captions are drawn, so that more groups fit: "optimizer"
    (the moments), "reference" (the reference policy), "parameters" (those that are trained;
    captions are drawn with a copy). Nothing else changes. Takes a GPU, a TPU or a CPU, the JAX
    sampler or servers that take turns with the policy (rollout.vllm.sleep_mode), and the memory
    that the plan tells."""

    def __post_init__(self) -> None:
        self._check_short()
        if self.engine == "vllm" and not self.vllm.urls:
            raise ValueError(
                "rollout.engine is vllm but rollout.vllm.urls is empty; start a server with "
                "launch/serve_rollout.py and give its address"
            )
        if self.engine == "vllm" and self.ahead:
            raise ValueError(
                "rollout.ahead is for the JAX sampler, and rollout.engine is vllm: its importance weights compare the "
                "server with the weights of the update, which are not those that drew. Set rollout.ahead=0"
            )
        if self.engine == "vllm" and self.offload and not self.vllm.sleep_mode:
            raise ValueError(
                f"rollout.offload is {list(self.offload)}, which makes room for the captions that are drawn on the "
                "policy's devices, and rollout.engine is vllm, which draws on its own. Set rollout.offload=[], or "
                "rollout.vllm.sleep_mode=true if the servers take turns on the policy's devices"
            )

    def _check_short(self) -> None:
        short, length = self.short_groups, self.short_length
        if bool(short) != bool(length):
            raise ValueError(
                f"rollout.short_groups is {short} and rollout.short_length is {length}: set both, or neither"
            )
        if short and short <= self.groups_per_batch:
            raise ValueError(
                f"rollout.short_groups is {short}, no more than rollout.groups_per_batch, {self.groups_per_batch}: "
                "leave it at 0, or set it to as many groups as fit with short caches"
            )
        if length and columns_for(length) >= columns_for(self.max_completion_length):
            raise ValueError(
                f"rollout.short_length is {length}, with as many columns as rollout.max_completion_length, "
                f"{self.max_completion_length}: set what most captions stay below"
            )

    def limited_to(self, tokens: int) -> RolloutConfig:
        """For captions of at most so many tokens; without short caches that would hold as many."""
        if self.short_length and columns_for(self.short_length) >= columns_for(tokens):
            return replace(self, max_completion_length=tokens, short_groups=0, short_length=0)
        return replace(self, max_completion_length=tokens)

    def share(self, processes: int) -> RolloutConfig:
        """What one of so many processes decodes side by side: an equal part of ``groups_per_batch`` and
        ``short_groups``, at least one."""
        part = max(1, self.groups_per_batch // processes)
        short = self.short_groups // processes
        if short <= part:  # no room is gained
            return replace(self, groups_per_batch=part, short_groups=0, short_length=0)
        return replace(self, groups_per_batch=part, short_groups=short)


class GroupSampler:
    """Compiled prefill and decode programs for one model definition and one set of sampling rules.

    graphdef: static model definition (see ``vcap_jax.models.policy``).
    end_ids: tokens that end a caption; banned_ids: tokens that are never sampled (visual placeholders would
    break the next prompt that contains the caption).
    mesh: (data, tensor), see ``placement.local_mesh``; None takes this process's part of the mesh that the parameters
    lie on. Slots are dealt out to its ``data`` devices, ``groups_per_batch`` in all, at least one each.
    """

    def __init__(
        self,
        graphdef: GraphDef,
        config: RolloutConfig,
        *,
        end_ids: Sequence[int],
        banned_ids: Sequence[int],
        mesh: Mesh | None = None,
    ) -> None:
        if not end_ids:
            raise ValueError("no end-of-caption token: the tokenizer and generation_config.json name none")
        self.config = config
        self._graphdef = graphdef
        self._mesh = mesh
        self._settings = DecodeSettings(
            group=config.group_size,
            budget=config.max_completion_length,
            chunk=min(config.decode_steps_per_call, config.max_completion_length),
            prefill_chunk=config.prefill_chunk,
            sampling=config.sampling,
            end=tuple(sorted(set(end_ids))),
            banned=tuple(sorted(set(banned_ids))),
        )
        self._programs: dict[Mesh, DecodePrograms] = {}

    def programs(self, mesh: Mesh) -> DecodePrograms:
        """The programs on a mesh (data, tensor)."""
        if mesh not in self._programs:
            self._programs[mesh] = DecodePrograms(self._graphdef, self._settings, mesh)
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
        return (
            self._buckets(config.short_groups, config.short_length, replicas) if config.short_groups else None
        )

    def _buckets(self, groups: int, length: int, replicas: int) -> ShapeBuckets:
        config = self.config
        return ShapeBuckets.build(
            slots=max(1, -(-groups // replicas)),
            candidates=config.group_size,
            width=length,
            chunk=self._settings.chunk,
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
        count = slots if fills_together(slots, most, tokens, self._settings.prefill_chunk) else 1

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
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        state,
        programs.shardings(params, state),
    )
