"""A model's parameters under the names of its public checkpoint, without files."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx

from vcap_jax.models.weight_map import Mapped, Shape, WeightMap, flat_parameters


def public_shapes(names: WeightMap) -> dict[str, Shape]:
    """Of every tensor of the checkpoint."""
    return {tensor.name: tensor.shape for tensor in names.tensors}


def public_arrays(names: WeightMap, state: Mapped | nnx.State) -> dict[str, np.ndarray]:
    """Every tensor as a checkpoint has it. state: a model, or a state of its structure, such as gradients."""
    leaves = flat_parameters(state)
    return {
        tensor.name: tensor.write(np.asarray(leaves[tensor.path])[tensor.at][..., slice(*tensor.columns)])
        for tensor in names.tensors
    }


def set_public_arrays(model: Mapped, arrays: Mapping[str, np.ndarray]) -> None:
    """Puts all tensors into ``model``, cast to its parameters' types."""
    filled = {path: np.array(leaf) for path, leaf in flat_parameters(model).items()}
    for tensor in model.weight_map.tensors:
        block = filled[tensor.path][tensor.at]
        block[..., slice(*tensor.columns)] = tensor.read(arrays[tensor.name], slice(None), slice(None))
    state = nnx.state(model, nnx.Param)
    for keys, param in nnx.to_flat_state(state):
        param.set_value(jnp.asarray(filled[".".join(map(str, keys))]))
    nnx.update(model, state)
