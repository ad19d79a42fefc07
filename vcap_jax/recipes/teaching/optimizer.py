"""Muon for the matrices, Adam for everything else: AdamW alone needed several times as many steps to read a picture."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

import jax
import optax
from jax.tree_util import KeyPath
from optax.contrib import MuonDimensionNumbers, muon

Tree = TypeVar("Tree")

_WARM_UP = 100
"""Steps, at most."""
_LAST = 0.02
"""Of the peak, what the learning rate ends at."""
_ADAM = 0.15
"""Adam's learning rate by Muon's."""
_DECAY = 0.02
_CLIP = 1.0


def teaching_optimizer(params: Tree, steps: int, peak: float) -> optax.GradientTransformation:
    """An optimizer for so many steps, warmed up and then decaying by a cosine.

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
