"""Trees of arrays as Orbax stores and reads them: by path."""

from __future__ import annotations

from typing import TypeAlias

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.tree_util import keystr

from vcap_jax.parallel.arrays import AnyArray

Leaf: TypeAlias = jax.Array | np.ndarray | jax.ShapeDtypeStruct


def paths(tree: object) -> dict[tuple[str, ...], Leaf]:
    """Leaves by path, in the tree's order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {tuple(keystr((key,), simple=True) for key in path): leaf for path, leaf in leaves}


def own_copy(path: tuple[str, ...], leaf: object) -> AnyArray:
    """An array that nothing else writes to."""
    if isinstance(leaf, np.ndarray | np.generic):
        return np.array(leaf)
    if not isinstance(leaf, jax.Array):
        raise TypeError(
            f"state{list(path)} is a {type(leaf).__name__}, not an array: keep such facts in meta"
        )
    return leaf


def abstract(leaf: Leaf) -> np.ndarray | jax.ShapeDtypeStruct:
    """What is to be read in the place of ``leaf``: an array of NumPy's stays one."""
    return leaf if isinstance(leaf, np.ndarray) else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def restore_args(leaf: Leaf) -> ocp.RestoreArgs:
    """In the dtype of ``leaf`` and where it is; without a sharding on the first device."""
    if isinstance(leaf, np.ndarray):
        return ocp.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return ocp.ArrayRestoreArgs(
        restore_type=jax.Array, dtype=leaf.dtype, sharding=sharding, global_shape=leaf.shape, strict=True
    )
