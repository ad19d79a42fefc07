"""The device programs of the group sampler: fill slots with prompts, decode a chunk of tokens.

All groups that decode side by side live in one ``DecodeState``, donated from call to call. It is split by slot over
the ``data`` axis of the mesh, and every program runs on each device for its own slots alone (``shard_map``): nothing
is communicated while captions are drawn. Over ``tensor`` XLA splits the products, and each device keeps its own heads'
part of the caches; then devices go from token to token together.

A decode call takes the unfinished part out of the state, works on it for ``chunk`` tokens and puts it back, so that
what has ended, and columns of the cache that nobody has reached, cost nothing. New keys and values are gathered in
columns of their own behind that part, at the same place for all groups, and are put where they belong at the end. What
a caption carries from token to token instead, such as a recurrent state, goes with its other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from vcap_jax.kernels.attention import Seen
from vcap_jax.models.family import (
    CaptionState,
    DecodeParams,
    Decoder,
    Features,
    GraphDef,
    PromptBatch,
    family_of,
)
from vcap_jax.models.widths import columns_for
from vcap_jax.rollout.config import RolloutConfig
from vcap_jax.rollout.decode_state import (
    DATA_AXIS,
    DecodeState,
    Written,
    cut_over_tensor,
    narrowed,
    part_of,
    place,
    put_columns,
    tensor_axes,
)
from vcap_jax.rollout.sampling import candidate_keys, drawn_logprobs, sample, seen_tokens, update_seen
from vcap_jax.rollout.schedule import Shape

Array = jax.Array
Arguments = ParamSpec("Arguments")


class _Loop(NamedTuple):
    """What goes from token to token of a chunk. i: tokens drawn for each caption; drawn: these, and what is written of
    them; the others as in ``DecodeState``."""

    i: Array
    drawn: Written
    lengths: Array
    done: Array
    logits: Array
    seen: Array | None
    captions: CaptionState


LOOK_EVERY = 8
"""Tokens, on a GPU: there it is the host that sees whether captions go on, and the GPU waits for it and for the start
of the next token's several hundred kernels. TPUs and CPUs see it by themselves."""


def tokens_per_look(chunk: int, platform: str) -> int:
    """After how many tokens a decode call of ``chunk`` sees whether captions go on; a divisor of ``chunk``."""
    # "cuda" is what a compiler's devices are called that are not there.
    return math.gcd(chunk, LOOK_EVERY) if platform in ("gpu", "cuda") else 1


class DecodePrograms:
    """Compiled programs for one model definition, on one mesh with the axes ``data`` and ``tensor``.

    graphdef: static model definition (see ``vcap_jax.models.policy``). end, banned: token ids that end a caption, and
    that are never drawn. suffix_tokens: of a prompt's suffixes at most, see ``DecodeState``; 0 where prompts are whole.
    logprobs: whether those of drawn tokens are kept.
    """

    def __init__(
        self,
        graphdef: GraphDef,
        config: RolloutConfig,
        mesh: Mesh,
        *,
        end: tuple[int, ...],
        banned: tuple[int, ...],
        suffix_tokens: int = 0,
        logprobs: bool = False,
    ) -> None:
        self._graphdef, self.config, self.mesh = graphdef, config, mesh
        self.end, self.banned, self.suffix_tokens, self.logprobs = end, banned, suffix_tokens, logprobs
        self.replicas = mesh.shape[DATA_AXIS]
        self.tokens_per_look = tokens_per_look(config.chunk, mesh.devices.flat[0].platform)
        self.empty = jax.jit(self._empty, static_argnums=(1, 2, 3))
        # Each call reads one state and leaves the next in its place: the caches are never copied as a whole.
        self.fill = jax.jit(self._fill, donate_argnums=(1,))
        self.decode = jax.jit(self._decode, donate_argnums=(1,), static_argnums=(4,))

    def columns(self, width: int) -> int:
        """Of a call that looks at ``width`` columns: those, and the new tokens' behind them."""
        return columns_for(width + self.config.chunk)

    def _decoder(self, params: DecodeParams) -> Decoder:
        return family_of(self._graphdef).decoder(self._graphdef, params)

    def _on_replicas(
        self, function: Callable[Arguments, DecodeState], whole: int, split: int
    ) -> Callable[Arguments, DecodeState]:
        """``function`` run by every replica; the first ``whole`` arguments are the same for all, ``split`` its own."""
        specs = (Spec(),) * whole + (Spec(DATA_AXIS),) * split
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=specs,
            out_specs=Spec(DATA_AXIS),
            # With one device per replica nothing is left for XLA to split, which kernels need to know.
            axis_names={DATA_AXIS} if self.mesh.shape["tensor"] > 1 else set(self.mesh.axis_names),
            check_vma=False,
        )

    def _empty(self, params: DecodeParams, slots: int, prompt_tokens: int, width: int) -> DecodeState:
        """A state with nothing in it: ``slots`` per replica, prompts of up to ``prompt_tokens``, calls that look at
        up to ``width`` columns of captions."""

        def of_replica(params: DecodeParams) -> DecodeState:
            config, model = self.config, self._decoder(params)
            shape, columns = (slots, config.group_size), self.columns(width)
            vocab = model.vocab_size
            penalised = config.sampling.repetition_penalty != 1.0
            prompt, captions = model.empty(
                groups=slots,
                prompt_tokens=prompt_tokens,
                captions=config.group_size,
                caption_tokens=columns,
            )
            state = DecodeState(
                tokens=jnp.full((*shape, columns), self.end[0], jnp.int32),
                lengths=jnp.zeros(shape, jnp.int32),
                done=jnp.ones(shape, bool),
                steps=jnp.zeros((slots,), jnp.int32),
                logits=jnp.zeros((*shape, vocab), jnp.float32),
                keys=candidate_keys(0, 0, jnp.zeros((slots,), jnp.int32), config.group_size),
                seen=jnp.zeros((*shape, vocab), bool) if penalised else None,
                prompt=prompt,
                captions=captions,
                suffixes=jnp.full((*shape, self.suffix_tokens), -1, jnp.int32)
                if self.suffix_tokens
                else None,
                logprobs=jnp.zeros((*shape, columns), jnp.float32) if self.logprobs else None,
            )
            return cut_over_tensor(state, model)

        return self._on_replicas(of_replica, 1, 0)(params)

    def shardings(self, params: DecodeParams, state: DecodeState) -> DecodeState:
        """Of the arrays of ``state``: split by slot over ``data``, and caches over ``tensor``. params, state: arrays or
        abstract."""
        axes: list[DecodeState] = []

        def look(params: DecodeParams) -> None:
            axes.append(tensor_axes(state, self._decoder(params)))

        def sharding(axis: int) -> NamedSharding:
            if axis < 1:
                first = DATA_AXIS if axis < 0 else (DATA_AXIS, "tensor")
                return NamedSharding(self.mesh, Spec(first))
            return NamedSharding(self.mesh, Spec(DATA_AXIS, *[None] * (axis - 1), "tensor"))

        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            jax.eval_shape(look, params)
        return jax.tree.map(sharding, axes[0])

    def _fill(
        self,
        params: DecodeParams,
        state: DecodeState,
        prompt: PromptBatch,
        features: Features | None,
        rows: Array,
        slots: Array,
        ids: Array,
        seed: Array,
        step: Array,
        suffixes: Array | None = None,
    ) -> DecodeState:
        """Prefills rows of ``prompt`` and puts them into slots, at step 0.

        rows, slots, ids: [replicas, n] int32, for each replica the rows of ``prompt`` it takes, its own slot for each
        (-1: none, the row is computed for nothing), and the group's id in ``candidate_keys``. n is 1 or all slots of a
        replica; then the k-th row can only go to the k-th slot. Prompts may be padded to fewer tokens than the state
        has room for.
        suffixes: [replicas, n, G, S], see ``DecodeState``, if programs are made for some; a candidate without one is
        not decoded. ids are then [replicas, n, Q], each of G / Q candidates in a row.
        """
        taken = jax.tree.map(lambda x: jnp.asarray(x)[rows.reshape(-1)], (prompt.without_vision(), features))
        fill = self._on_replicas(self._fill_replica, 3, 4)
        own = (slots.reshape(-1), ids.reshape(-1))
        if suffixes is None:
            return fill(params, seed, step, state, taken, *own)
        fill = self._on_replicas(self._fill_replica, 3, 5)
        return fill(params, seed, step, state, taken, *own, suffixes.reshape(-1, *suffixes.shape[2:]))

    def _fill_replica(
        self,
        params: DecodeParams,
        seed: Array,
        step: Array,
        state: DecodeState,
        taken: tuple[PromptBatch, Features | None],
        slots: Array,
        ids: Array,
        suffixes: Array | None = None,
    ) -> DecodeState:
        config, model = self.config, self._decoder(params)
        prompt, features = taken
        hidden, cache = model.prefill(prompt, features, chunk=config.prefill_chunk)
        logits, shape = model.logits(hidden), (slots.shape[0], config.group_size)
        seen = None
        if state.seen is not None:
            of_prompt = seen_tokens(prompt.tokens, prompt.lengths, logits.shape[-1])
            seen = jnp.broadcast_to(of_prompt[:, None], (*shape, logits.shape[-1]))
        new = DecodeState(
            tokens=jnp.full((*shape, state.tokens.shape[-1]), self.end[0], jnp.int32),
            lengths=jnp.zeros(shape, jnp.int32),
            done=jnp.zeros(shape, bool) if suffixes is None else (suffixes < 0).all(-1),
            steps=jnp.zeros(shape[:1], jnp.int32),
            logits=jnp.broadcast_to(logits[:, None], (*shape, logits.shape[-1])),
            keys=candidate_keys(seed, step, ids, math.prod(shape) // ids.shape[0]).reshape(shape),
            seen=seen,
            prompt=cache,
            captions=CaptionState((), model.begin(cache, config.group_size)),
            suffixes=suffixes,
            logprobs=None
            if state.logprobs is None
            else jnp.zeros((*shape, state.tokens.shape[-1]), jnp.float32),
        )
        # Columns need no clearing: what is older than a caption is never seen by it.
        old = replace(state, captions=CaptionState((), state.captions.carried))
        placed = jax.tree.map(partial(place, slots=slots), old, new)
        captions = replace(state.captions, carried=placed.captions.carried)
        return cut_over_tensor(replace(placed, captions=captions), model)

    def _decode(
        self, params: DecodeParams, state: DecodeState, slots: Array, candidates: Array, shape: Shape
    ) -> DecodeState:
        """``chunk`` tokens of the candidates [replicas, slots, candidates] of slots [replicas, slots], fewer where
        captions end or meet the budget."""

        def of_replica(
            params: DecodeParams, state: DecodeState, slots: Array, candidates: Array
        ) -> DecodeState:
            return self._decode_replica(params, state, slots[0], candidates[0], shape)

        return self._on_replicas(of_replica, 1, 3)(params, state, slots, candidates)

    def _decode_replica(
        self, params: DecodeParams, state: DecodeState, slots: Array, candidates: Array, shape: Shape
    ) -> DecodeState:
        config, model = self.config, self._decoder(params)
        chunk, width, temperature = config.chunk, shape.width, config.sampling.temperature
        columns = self.columns(width)
        everything = (shape.slots, shape.candidates) == state.done.shape
        part = part_of(state, slots, candidates, everything=everything)
        base, prompt = part.steps, part.prompt
        captions, axes = part.captions, model.token_axes(state.captions.columns)
        whole = everything and columns == state.tokens.shape[-1]
        if not whole:
            captions = replace(captions, columns=narrowed(captions.columns, axes, width, columns))
        end = jnp.asarray(self.end)
        column = jnp.arange(columns)
        before = column < jnp.minimum(base, width)[:, None]
        by_token, fixed = model.ahead(base[:, None] + jnp.arange(chunk), prompt)
        suffixes = part.suffixes
        begin = None if suffixes is None else (suffixes >= 0).sum(-1)

        def live(done: Array, i: Array) -> Array:
            return ~done & (base + i < config.max_completion_length)[:, None]

        def unfinished(carry: _Loop) -> Array:
            going = live(carry.done, carry.i).any()
            if self.mesh.shape["tensor"] > 1:
                # Products are joined over ``tensor`` in every round, so no replica may leave the loop before others.
                going = jax.lax.pmax(going.astype(jnp.int32), DATA_AXIS) > 0
            return (carry.i < chunk) & going

        def one(carry: _Loop) -> _Loop:
            i, drawn, lengths, done, logits, seen, captions = carry
            going, step = live(done, i), base + i
            if self.mesh.shape["tensor"] > 1:
                # Whole before the rules, which take one of two ways depending on a replica's own numbers.
                logits = jax.lax.with_sharding_constraint(logits, Spec())
            position = step[:, None] if begin is None else step[:, None] - begin  # in the caption itself
            token = sample(logits, part.keys, position, config.sampling, seen=seen, banned=self.banned)
            may_end = going
            if suffixes is not None:
                here = jnp.minimum(step, suffixes.shape[-1] - 1)[:, None, None]
                token = jnp.where(position < 0, jnp.take_along_axis(suffixes, here, axis=-1)[..., 0], token)
                may_end &= position >= 0
            token = jnp.where(going, token, end[0])
            said = Written(token, drawn_logprobs(logits, token, temperature) if self.logprobs else None)
            drawn = jax.tree.map(
                lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y[..., None], i, axis=2), drawn, said
            )
            seen = None if seen is None else update_seen(seen, token)
            visible = before | ((column >= width) & (column <= width + i))
            known = jnp.minimum(base, width)[:, None]
            columns_seen = Seen(visible, jnp.where(going, known, 0), jnp.where(going, i + 1, 0), width)
            at = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, 1, keepdims=False), by_token)
            hidden, captions = model.decode(token, at, fixed, width + i, columns_seen, prompt, captions)
            lengths = jnp.where(going, step[:, None] + 1, lengths)
            done |= may_end & (token[..., None] == end).any(-1)
            return _Loop(i + 1, drawn, lengths, done, model.logits(hidden), seen, captions)

        def several(carry: _Loop) -> _Loop:
            return jax.lax.fori_loop(0, self.tokens_per_look, lambda _, carry: one(carry), carry)

        shape_drawn = (*part.done.shape, chunk)
        nothing = Written(
            jnp.full(shape_drawn, end[0], jnp.int32),
            jnp.zeros(shape_drawn, jnp.float32) if self.logprobs else None,
        )
        first = _Loop(jnp.int32(0), nothing, part.lengths, part.done, part.logits, part.seen, captions)
        i, drawn, lengths, done, logits, seen, captions = jax.lax.while_loop(
            unfinished, one if self.tokens_per_look == 1 else several, first
        )
        steps = jnp.minimum(base + i, config.max_completion_length)
        store = captions.columns if whole else state.captions.columns
        added = jax.tree.map(
            lambda x, axis: jax.lax.slice_in_dim(x, width, width + chunk, axis=axis), captions.columns, axes
        )
        written, store = put_columns(
            (state.written, store), (drawn, added), axes, slots, candidates, base, state.captions.parts
        )
        changed = (lengths, done, logits, seen, captions.carried)
        if not everything:
            old = (state.lengths, state.done, state.logits, state.seen, state.captions.carried)
            at = (slots[:, None], candidates)
            changed = jax.tree.map(lambda x, y: x.at[at].set(y), old, changed)
            steps = state.steps.at[slots].set(steps)
        lengths, done, logits, seen, carried = changed
        changed_state = replace(
            state,
            tokens=written.tokens,
            logprobs=written.logprobs,
            lengths=lengths,
            done=done,
            steps=steps,
            logits=logits,
            seen=seen,
            captions=replace(state.captions, columns=store, carried=carried),
        )
        return cut_over_tensor(changed_state, model)
