"""The compiled updates: of the vision tower by its probes, of the decoder by what it is to say."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.tree_util import KeyPath
from optax.contrib import MuonDimensionNumbers, muon

from vcap_jax.models.family import CaptionModel, Features, Params, PromptBatch
from vcap_jax.parallel.arrays import ArrayT
from vcap_jax.recipes.teaching.corpus import LessonBatch
from vcap_jax.recipes.teaching.probes import (
    PATCH_PROBES,
    PROBES,
    Readers,
    new_patch_readers,
    new_readers,
    patch_losses,
    probe_losses,
)
from vcap_jax.recipes.teaching.pupil import Pupil, Spread, Tree
from vcap_jax.training.logprobs import token_logprobs
from vcap_jax.world.tiny_policy import visual_tokens

_WARM_UP = 100
"""Steps of warming up, at most."""
_LAST = 0.02
"""Of the peak, what the learning rate ends at."""
_ADAM = 0.15
"""Adam's learning rate by Muon's."""
_DECAY = 0.02
_CLIP = 1.0
Array = jax.Array
Learning: TypeAlias = tuple[Params, dict[str, tuple[Readers, Readers]]]
"""What is learned by probes: the vision tower; by modality, the readers of places and of patches."""
Seen: TypeAlias = tuple[Array, dict[str, Array]]
"""The loss (nats), and the share of right answers by probe."""


def teaching_optimizer(params: Tree, steps: int, peak: float) -> optax.GradientTransformation:
    """An optimizer for so many steps, warmed up and then decaying by a cosine.

    Muon for the matrices, Adam for everything else: AdamW alone needed several times as many steps to read a picture.

    params: a tree; the leaves named ``kernel`` are matrices [in, out], or stacks of them. peak: Muon's learning rate.
    """

    def schedule(peak: float) -> optax.Schedule:
        return optax.warmup_cosine_decay_schedule(
            0.0, peak, max(1, min(_WARM_UP, steps // 10)), max(2, steps), peak * _LAST
        )

    def matrix(path: KeyPath[Hashable], leaf: jax.Array) -> MuonDimensionNumbers | None:
        if "kernel" not in jax.tree_util.keystr(path):
            return None
        return MuonDimensionNumbers(reduction_axis=leaf.ndim - 2, output_axis=leaf.ndim - 1)

    rule = muon(
        schedule(peak),
        weight_decay=_DECAY,
        adam_b2=0.98,
        adam_learning_rate=schedule(peak * _ADAM),
        muon_weight_dimension_numbers=jax.tree_util.tree_map_with_path(matrix, params),
    )
    return optax.chain(optax.clip_by_global_norm(_CLIP), rule)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Wanted(Generic[ArrayT]):
    """Right answers about n views. places: by probe, [n, owners]; patches: by probe of single patches, [n, patches]."""

    places: dict[str, ArrayT]
    patches: dict[str, ArrayT]


class TowerUpdates:
    """Teaches the vision tower, by the probes of some modalities.

    grids: rows and columns of a view's visual tokens, by modality. merge: patches along one side of a token.
    spread: over which devices, all by default.
    """

    def __init__(
        self,
        pupil: Pupil,
        grids: Mapping[str, tuple[int, int]],
        merge: int,
        steps: int,
        peak: float,
        *,
        spread: Spread | None = None,
    ) -> None:
        self._spread = spread or Spread()
        self._graphdef, self._rest = pupil.graphdef, self._spread.whole(pupil.rest)
        width = pupil.model().head().shape[0]
        readers = {
            name: (
                new_readers(PROBES[name], grid, width),
                new_patch_readers(PATCH_PROBES[name], merge, width),
            )
            for name, grid in grids.items()
        }
        # A copy: what is learned is updated in its place.
        self._learning: Learning = self._spread.whole((jax.tree.map(jnp.copy, pupil.visual), readers))
        self._optimizer = teaching_optimizer(self._learning, steps, peak)
        self._state = self._spread.whole(self._optimizer.init(self._learning))
        self._update = jax.jit(self._updated, static_argnums=(0,), donate_argnums=(1, 2))
        self._judge = jax.jit(self._losses, static_argnums=(0,))

    @property
    def visual(self) -> Params:
        """The tower as it is now."""
        return self._spread.alone(self._learning[0])

    def update(self, modality: str, prompt: PromptBatch, wanted: Wanted[np.ndarray]) -> Seen:
        """One step; what was seen before it."""
        prompt, wanted = self._spread.batch((prompt, wanted))
        self._learning, self._state, seen = self._update(
            modality, self._learning, self._state, prompt, wanted
        )
        return seen

    def check(self, modality: str, prompt: PromptBatch, wanted: Wanted[np.ndarray]) -> Seen:
        """What is seen, without a step."""
        return self._judge(modality, self._learning, *self._spread.batch((prompt, wanted)))

    def _losses(self, modality: str, learning: Learning, prompt: PromptBatch, wanted: Wanted[Array]) -> Seen:
        visual, readers = learning
        assert prompt.vision is not None
        model: CaptionModel = nnx.merge(self._graphdef, visual, self._rest)
        tokens = visual_tokens(model.encode_vision(prompt.vision))
        views = next(iter(wanted.patches.values())).shape[0]
        tokens = tokens.reshape(views, -1, tokens.shape[-1])
        of_places, of_patches = readers[modality]
        loss, rights = probe_losses(PROBES[modality], of_places, tokens, wanted.places)
        more, filled = patch_losses(of_patches, tokens, wanted.patches)
        return loss + more, rights | {f"{name} of patches": share for name, share in filled.items()}

    def _updated(
        self,
        modality: str,
        learning: Learning,
        state: optax.OptState,
        prompt: PromptBatch,
        wanted: Wanted[Array],
    ) -> tuple[Learning, optax.OptState, Seen]:
        seen, gradients = jax.value_and_grad(partial(self._losses, modality), has_aux=True)(
            learning, prompt, wanted
        )
        updates, state = self._optimizer.update(gradients, state, learning)
        return optax.apply_updates(learning, updates), state, seen


def answer_loss(
    model: CaptionModel, prompt: PromptBatch, features: Features, batch: LessonBatch[Array]
) -> Array:
    """Mean negative log-likelihood (nats) of the answers' tokens, given picture, question and answer so far."""
    hidden = model.caption_hidden(prompt, features, batch.tokens)
    logprobs = token_logprobs(hidden, model.head(), batch.tokens, chunk=None)
    place = jnp.arange(batch.tokens.shape[-1])
    learned = (place >= batch.starts[..., None]) & (place < batch.lengths[..., None])
    return -jnp.where(learned, logprobs, 0.0).sum() / jnp.maximum(learned.sum(), 1)


class DecoderUpdates:
    """Teaches the decoder, the vision tower being frozen; its features are given. spread: over which devices, all by
    default."""

    def __init__(self, pupil: Pupil, steps: int, peak: float, *, spread: Spread | None = None) -> None:
        self._spread = spread or Spread()
        self._graphdef, self._visual = pupil.graphdef, self._spread.whole(pupil.visual)
        # A copy: what is learned is updated in its place.
        self._rest: Params = self._spread.whole(jax.tree.map(jnp.copy, pupil.rest))
        self._optimizer = teaching_optimizer(self._rest, steps, peak)
        self._state = self._spread.whole(self._optimizer.init(self._rest))
        self._update = jax.jit(self._updated, donate_argnums=(0, 1))

    @property
    def rest(self) -> Params:
        """All but the tower, as it is now."""
        return self._spread.alone(self._rest)

    def update(self, prompt: PromptBatch, features: Features, batch: LessonBatch[np.ndarray]) -> Array:
        """One step; the loss before it."""
        given = self._spread.batch((prompt, features, batch))
        self._rest, self._state, loss = self._update(self._rest, self._state, *given)
        return loss

    def _updated(
        self,
        rest: Params,
        state: optax.OptState,
        prompt: PromptBatch,
        features: Features,
        batch: LessonBatch[Array],
    ) -> tuple[Params, optax.OptState, Array]:
        def loss_of(rest: Params) -> Array:
            return answer_loss(nnx.merge(self._graphdef, self._visual, rest), prompt, features, batch)

        loss, gradients = jax.value_and_grad(loss_of)(rest)
        updates, state = self._optimizer.update(gradients, state, rest)
        return optax.apply_updates(rest, updates), state, loss
