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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, TypeAlias, TypeVar

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
    PromptState,
    family_of,
)
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.group_sharding import cut_by_tensor
from vcap_jax.rollout.sampling import SamplingConfig, candidate_keys, sample, seen_tokens, update_seen
from vcap_jax.rollout.schedule import Shape

Array = jax.Array
Arguments = ParamSpec("Arguments")
Columns = TypeVar("Columns")
"""Of captions: a pytree of arrays."""

DATA_AXIS = "data"
"""The mesh axis whose devices have slots of their own."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """Everything a decode call reads and writes. B slots of all replicas; every array has them on its first axis.

    tokens: [B, G, W] int32, the captions so far, padded with the first end token. W: ``DecodeSettings.columns`` of the
        largest width that calls look at.
    lengths: [B, G] int32, tokens written, the end token included.
    done: [B, G] bool: ended with an end token. An empty slot is done.
    steps: [B] int32, the next token's place in the captions of the slot.
    logits: [B, G, V] float32, what token ``steps`` is drawn from.
    keys: [B, G] random keys, one per candidate.
    seen: [B, G, V] bool for the repetition penalty, or None when the penalty is 1.
    prompt, captions: what decoding keeps of the prompts, shared by all candidates, and of the captions, in W columns.
    """

    tokens: Array
    lengths: Array
    done: Array
    steps: Array
    logits: Array
    keys: Array
    seen: Array | None
    prompt: PromptState
    captions: CaptionState


_Loop: TypeAlias = tuple[Array, Array, Array, Array, Array, Array | None, CaptionState]
"""Of a chunk: tokens drawn for each caption; tokens, lengths, done, logits, seen and captions as in ``DecodeState``."""


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """What the programs are made for. group: G; budget: T, tokens of a caption at most; prefill_chunk: see
    ``RolloutConfig``; end, banned: token ids."""

    group: int
    budget: int
    chunk: int
    prefill_chunk: int
    sampling: SamplingConfig
    end: tuple[int, ...]
    banned: tuple[int, ...]

    def columns(self, width: int) -> int:
        """Of a call that looks at ``width`` columns: those, and the new tokens' behind them."""
        return columns_for(width + self.chunk)


class DecodePrograms:
    """Compiled programs for one model definition, on one mesh with the axes ``data`` and ``tensor``.

    graphdef: static model definition (see ``vcap_jax.models.policy``). compiler_options: XLA's, for every program.
    """

    def __init__(
        self,
        graphdef: GraphDef,
        settings: DecodeSettings,
        mesh: Mesh,
        compiler_options: dict[str, str] | None = None,
    ) -> None:
        self._graphdef, self.settings, self.mesh = graphdef, settings, mesh
        self.replicas = mesh.shape[DATA_AXIS]
        jit = partial(jax.jit, compiler_options=compiler_options)
        self.empty = jit(self._empty, static_argnums=(1, 2, 3))
        # Each call reads one state and leaves the next in its place: the caches are never copied as a whole.
        self.fill = jit(self._fill, donate_argnums=(1,))
        self.decode = jit(self._decode, donate_argnums=(1,), static_argnums=(4,))

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
            settings, model = self.settings, self._decoder(params)
            shape, columns = (slots, settings.group), settings.columns(width)
            vocab = model.vocab_size
            penalised = settings.sampling.repetition_penalty != 1.0
            prompt, captions = model.empty(
                groups=slots,
                prompt_tokens=prompt_tokens,
                captions=settings.group,
                caption_tokens=columns,
            )
            state = DecodeState(
                tokens=jnp.full((*shape, columns), settings.end[0], jnp.int32),
                lengths=jnp.zeros(shape, jnp.int32),
                done=jnp.ones(shape, bool),
                steps=jnp.zeros((slots,), jnp.int32),
                logits=jnp.zeros((*shape, vocab), jnp.float32),
                keys=candidate_keys(0, 0, jnp.zeros((slots,), jnp.int32), settings.group),
                seen=jnp.zeros((*shape, vocab), bool) if penalised else None,
                prompt=prompt,
                captions=captions,
            )
            return _cut(state, model)

        return self._on_replicas(of_replica, 1, 0)(params)

    def shardings(self, params: DecodeParams, state: DecodeState) -> DecodeState:
        """Of the arrays of ``state``: split by slot over ``data``, and caches over ``tensor``. params, state: arrays or
        abstract."""
        axes: list[DecodeState] = []

        def look(params: DecodeParams) -> None:
            axes.append(_tensor_axes(state, self._decoder(params)))

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
    ) -> DecodeState:
        """Prefills rows of ``prompt`` and puts them into slots, at step 0.

        rows, slots, ids: [replicas, n] int32, for each replica the rows of ``prompt`` it takes, its own slot for each
        (-1: none, the row is computed for nothing), and the group's id in ``candidate_keys``. n is 1 or all slots of a
        replica; then the k-th row can only go to the k-th slot. Prompts may be padded to fewer tokens than the state
        has room for.
        """
        taken = jax.tree.map(lambda x: jnp.asarray(x)[rows.reshape(-1)], (prompt.without_vision(), features))
        fill = self._on_replicas(self._fill_replica, 3, 4)
        return fill(params, seed, step, state, taken, slots.reshape(-1), ids.reshape(-1))

    def _fill_replica(
        self,
        params: DecodeParams,
        seed: Array,
        step: Array,
        state: DecodeState,
        taken: tuple[PromptBatch, Features | None],
        slots: Array,
        ids: Array,
    ) -> DecodeState:
        settings, model = self.settings, self._decoder(params)
        prompt, features = taken
        hidden, cache = model.prefill(prompt, features, chunk=settings.prefill_chunk)
        logits, shape = model.logits(hidden), (slots.shape[0], settings.group)
        seen = None
        if state.seen is not None:
            of_prompt = seen_tokens(prompt.tokens, prompt.lengths, logits.shape[-1])
            seen = jnp.broadcast_to(of_prompt[:, None], (*shape, logits.shape[-1]))
        new = DecodeState(
            tokens=jnp.full((*shape, state.tokens.shape[-1]), settings.end[0], jnp.int32),
            lengths=jnp.zeros(shape, jnp.int32),
            done=jnp.zeros(shape, bool),
            steps=jnp.zeros(shape[:1], jnp.int32),
            logits=jnp.broadcast_to(logits[:, None], (*shape, logits.shape[-1])),
            keys=candidate_keys(seed, step, ids, settings.group),
            seen=seen,
            prompt=cache,
            captions=CaptionState((), model.begin(cache, settings.group)),
        )
        # Columns need no clearing: what is older than a caption is never seen by it.
        old = replace(state, captions=CaptionState((), state.captions.carried))
        placed = jax.tree.map(partial(place, slots=slots), old, new)
        captions = replace(state.captions, carried=placed.captions.carried)
        return _cut(replace(placed, captions=captions), model)

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
        settings, model = self.settings, self._decoder(params)
        chunk, width = settings.chunk, shape.width
        columns = settings.columns(width)
        everything = (shape.slots, shape.candidates) == state.done.shape
        part = _part(state, slots, candidates, everything=everything)
        base, prompt = part.steps, part.prompt
        captions, axes = part.captions, model.token_axes(state.captions.columns)
        whole = everything and columns == state.tokens.shape[-1]
        if not whole:
            captions = replace(captions, columns=_narrowed(captions.columns, axes, width, columns))
        end = jnp.asarray(settings.end)
        column = jnp.arange(columns)
        before = column < jnp.minimum(base, width)[:, None]
        by_token, fixed = model.ahead(base[:, None] + jnp.arange(chunk), prompt)

        def live(done: Array, i: Array) -> Array:
            return ~done & (base + i < settings.budget)[:, None]

        def unfinished(carry: _Loop) -> Array:
            i, _, _, done, *_ = carry
            going = live(done, i).any()
            if self.mesh.shape["tensor"] > 1:
                # Products are joined over ``tensor`` in every round, so no replica may leave the loop before others.
                going = jax.lax.pmax(going.astype(jnp.int32), DATA_AXIS) > 0
            return (i < chunk) & going

        def one(carry: _Loop) -> _Loop:
            i, tokens, lengths, done, logits, seen, captions = carry
            going, step = live(done, i), base + i
            if self.mesh.shape["tensor"] > 1:
                # Whole before the rules, which take one of two ways depending on a replica's own numbers.
                logits = jax.lax.with_sharding_constraint(logits, Spec())
            token = sample(
                logits, part.keys, step[:, None], settings.sampling, seen=seen, banned=settings.banned
            )
            token = jnp.where(going, token, end[0])
            tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[..., None], i, axis=2)
            seen = None if seen is None else update_seen(seen, token)
            visible = before | ((column >= width) & (column <= width + i))
            known = jnp.minimum(base, width)[:, None]
            columns_seen = Seen(visible, jnp.where(going, known, 0), jnp.where(going, i + 1, 0), width)
            at = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, 1, keepdims=False), by_token)
            hidden, captions = model.decode(token, at, fixed, width + i, columns_seen, prompt, captions)
            lengths = jnp.where(going, step[:, None] + 1, lengths)
            done |= going & (token[..., None] == end).any(-1)
            return i + 1, tokens, lengths, done, model.logits(hidden), seen, captions

        drawn = jnp.full((*part.done.shape, chunk), end[0], jnp.int32)
        first = (jnp.int32(0), drawn, part.lengths, part.done, part.logits, part.seen, captions)
        i, drawn, lengths, done, logits, seen, captions = jax.lax.while_loop(unfinished, one, first)
        steps = jnp.minimum(base + i, settings.budget)
        store = captions.columns if whole else state.captions.columns
        added = jax.tree.map(
            lambda x, axis: jax.lax.slice_in_dim(x, width, width + chunk, axis=axis), captions.columns, axes
        )
        tokens, store = _put_columns(
            (state.tokens, store), (drawn, added), axes, slots, candidates, base, state.captions.parts
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
            tokens=tokens,
            lengths=lengths,
            done=done,
            steps=steps,
            logits=logits,
            seen=seen,
            captions=replace(state.captions, columns=store, carried=carried),
        )
        return _cut(changed_state, model)


def _tensor_axes(state: DecodeState, model: Decoder) -> DecodeState:
    """A pytree like ``state`` of int, see ``Decoder.tensor_axes``."""
    whole = jax.tree.map(lambda _: -1, state)
    rows = 0 if state.captions.parts > 1 else -1
    columns = jax.tree.map(lambda _: rows, state.captions.columns)
    return replace(
        whole, prompt=model.tensor_axes(state.prompt), captions=replace(whole.captions, columns=columns)
    )


def _cut(state: DecodeState, model: Decoder) -> DecodeState:
    """``state`` of a replica as it lies on the devices of ``tensor``, the same behind every program."""

    def of(x: Array, axis: int) -> Array:
        return cut_by_tensor(x, axis if axis >= 0 else None)

    return jax.tree.map(of, state, _tensor_axes(state, model))


def place(old: Array, new: Array, *, slots: Array) -> Array:
    """Rows of ``new`` in the slots of ``old``; a slot of -1 is none. What a row is shorter by is zeros, as in
    ``Decoder.empty``."""
    if new.shape[1:] != old.shape[1:]:
        missing = [(0, there - here) for there, here in zip(old.shape[1:], new.shape[1:], strict=True)]
        new = jnp.pad(new, [(0, 0), *missing])
    if new.shape[0] == old.shape[0]:
        return jnp.where((slots >= 0).reshape(-1, *[1] * (old.ndim - 1)), new, old)
    (slot,) = slots
    here = jnp.maximum(slot, 0)
    kept = jax.lax.dynamic_index_in_dim(old, here, 0)
    return jax.lax.dynamic_update_index_in_dim(old, jnp.where(slot >= 0, new, kept), here, 0)


def of_each_part(function: Callable[..., Array], *arrays: Array, parts: int) -> Array:
    """``function`` of the rows of each part of caption columns [parts n, ...], see ``CaptionState``."""
    if parts == 1:
        return function(*arrays)
    apart = (x.reshape(parts, -1, *x.shape[1:]) for x in arrays)
    found = jax.vmap(function)(*apart)
    return found.reshape(-1, *found.shape[2:])


def _part(state: DecodeState, slots: Array, candidates: Array, *, everything: bool) -> DecodeState:
    """The chosen slots and candidates. Columns of tokens and caches are left for ``_narrowed``."""
    if everything:
        return state
    whole_slots = slots.shape[0] == state.done.shape[0]
    whole_groups = candidates.shape[1] == state.done.shape[1]

    def of_slots(x: Array) -> Array:
        return x if whole_slots else x[slots]

    def of_candidates(x: Array) -> Array:
        return of_slots(x) if whole_groups else x[slots[:, None], candidates]

    def of_rows(x: Array) -> Array:
        """Rows of slot, candidate and head."""
        apart = x.reshape(*state.done.shape, -1, *x.shape[1:])
        return of_candidates(apart).reshape(-1, *x.shape[1:])

    by_part = partial(of_each_part, of_rows, parts=state.captions.parts)

    return DecodeState(
        tokens=state.tokens,
        lengths=of_candidates(state.lengths),
        done=of_candidates(state.done),
        steps=of_slots(state.steps),
        logits=of_candidates(state.logits),
        keys=of_candidates(state.keys),
        seen=None if state.seen is None else of_candidates(state.seen),
        prompt=jax.tree.map(of_slots, state.prompt),
        captions=replace(
            state.captions,
            columns=jax.tree.map(by_part, state.captions.columns),
            carried=jax.tree.map(of_candidates, state.captions.carried),
        ),
    )


def _narrowed(columns: Columns, axes: object, width: int, total: int) -> Columns:
    """The first ``width`` columns, and empty ones for new tokens, ``total`` together."""

    def of(x: Array, axis: int) -> Array:
        padding = [(0, total - width if i == axis else 0) for i in range(x.ndim)]
        return jnp.pad(jax.lax.slice_in_dim(x, 0, width, axis=axis), padding)

    return jax.tree.map(of, columns, axes)


def _put_columns(
    stored: tuple[Array, Columns],
    new: tuple[Array, Columns],
    axes: object,
    slots: Array,
    candidates: Array,
    base: Array,
    parts: int,
) -> tuple[Array, Columns]:
    """New tokens and their caches [slots, candidates, ...] into their columns, ``base`` of each slot, in place.

    parts: of the caches, see ``CaptionState``. One slot after another, or one candidate after another if not all are
    there: a block each, where a scatter would go through every number.
    """
    size, per_slot = stored[0].shape[1], candidates.shape[1]
    # A block: all candidates of a slot, or one.
    together = per_slot == size
    blocks = 1 if together else per_slot
    tokens, added = new
    tokens = tokens.reshape(-1, tokens.shape[-1])

    def one(k: Array, stored: tuple[Array, Columns]) -> tuple[Array, Columns]:
        slot = k // blocks
        candidate = jnp.int32(0) if together else candidates[slot, k % blocks]
        first = slots[slot] * size + candidate

        def put(x: Array, y: Array, axis: int) -> Array:
            # Rows of one candidate lie together: one, or one per head.
            rows, per_candidate = (
                y.shape[0] // (slots.shape[0] * blocks),
                x.shape[0] // (stored[0].shape[0] * size),
            )
            block = jax.lax.dynamic_slice_in_dim(y, k * rows, rows, axis=0)
            start = [jnp.int32(0)] * x.ndim
            start[0], start[axis] = first * per_candidate, base[slot]
            return jax.lax.dynamic_update_slice(x, block, start)

        def put_in_parts(x: Array, y: Array, axis: int) -> Array:
            return of_each_part(partial(put, axis=axis), x, y, parts=parts)

        flat = put(stored[0].reshape(-1, stored[0].shape[-1]), tokens, 1)
        caches = jax.tree.map(put_in_parts, stored[1], added, axes)
        return flat.reshape(stored[0].shape), caches

    return jax.lax.fori_loop(0, slots.shape[0] * blocks, one, stored)
