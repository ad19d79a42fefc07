"""A step's reward components as arrays, for advantages that normalise each of them alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from vcap_jax.grpo.records import GroupResult


class NoComponents(ValueError):
    """The rewards of a group are no weighted sum of components; the message names the remedy."""


def weighted_components(
    results: Sequence[GroupResult],
) -> tuple[Float[np.ndarray, "B G K"], Float[np.ndarray, "B K"]]:
    """The components of every candidate and the weights of every group, by all names of the step in order.

    0 where a candidate was not scored, and where a group has no such component.
    Raises NoComponents for a group with a scored candidate whose family gives no weights.
    """
    names = list(dict.fromkeys(name for result in results for name in result.scores.weights))
    size = max((len(result.scores.candidates) for result in results), default=0)
    components = np.zeros((len(results), size, len(names)))
    weights = np.zeros((len(results), len(names)))
    for row, result in enumerate(results):
        given, candidates = result.scores.weights, result.scores.candidates
        if not given and any(candidate.reward is not None for candidate in candidates):
            raise NoComponents(
                "grpo.advantages.per_component needs a reward that is a weighted sum of components, and the reward of "
                f"sample {result.sample_id!r} gives no weights (GroupScores.weights): set it to false"
            )
        for column, name in enumerate(names):
            weights[row, column] = given.get(name, 0.0)
            for place, candidate in enumerate(candidates):
                if candidate.reward is not None:
                    components[row, place, column] = candidate.components.get(name, 0.0)
    return components, weights
