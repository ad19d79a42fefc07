"""Where captions are drawn: a copy of the parameters on the devices of this process.

For training, parameters lie in float32, cut into parts over the devices. Gathering them for every token would cost
more than the token. So once per step they are cast to the type of the products and put whole (cut by ``tensor``
alone) on every device that has slots: one gather of the narrow copy, after which decoding communicates with nobody.

With several processes everything here belongs to one of them. Parameters come in on its devices
alone, in the types that captions are drawn with (``own_types``), prompts and features as NumPy or on
its devices. Out come its own groups, at its own pace.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jax.stages import Lowered, Wrapped
from jax.tree_util import KeyPath, PyTreeDef
from jax.typing import DTypeLike
from jaxtyping import PyTree

from vcap_jax.models.family import DecodeParams, GraphDef, Params, family_of
from vcap_jax.models.lora import is_adapter
from vcap_jax.parallel.arrays import AnyArray
from vcap_jax.parallel.sharding import abstract, dotted_path, partition
from vcap_jax.rollout.decode_state import DATA_AXIS

AXES = (DATA_AXIS, "tensor")


def local_mesh(tensor: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh (data, tensor) over ``devices`` (default: this process's), in their order.

    Raises ValueError if ``tensor`` does not divide their number.
    """
    devices = jax.local_devices() if devices is None else devices
    if len(devices) % tensor:
        raise ValueError(
            f"mesh.tensor is {tensor}, but this process draws captions on {len(devices)} devices; the parts of a "
            "product must be on one process: choose a divisor"
        )
    return jax.make_mesh((len(devices) // tensor, tensor), AXES, (AxisType.Auto,) * 2, devices=list(devices))


def mesh_of(tree: object) -> Mesh:
    """The local mesh for parameters as they lie: this process's part of their mesh, or their one device."""
    sharding = jax.tree.leaves(tree)[0].sharding if jax.tree.leaves(tree) else None
    if not isinstance(sharding, NamedSharding):
        devices = [jax.local_devices()[0]] if sharding is None else list(sharding.device_set)
        return local_mesh(devices=devices)
    mine = [d for d in sharding.mesh.devices.flat if d.process_index == jax.process_index()]
    return local_mesh(sharding.mesh.shape.get("tensor", 1), mine)


def own_types(graphdef: GraphDef, params: Params, dtype: DTypeLike) -> Params:
    """What parameters (arrays or abstract) are cast to before each process gets them whole: a tree like ``params``.

    graphdef: of their model.
    dtype: of the computation. Of the decoder's, all but adapters, which are small and may still be added to a matrix
    in float32 (``lora.Additions``). A cast made here is one that drawing captions makes anyway.
    """

    def of(path: KeyPath[Hashable], x: jax.Array, used: np.dtype) -> np.dtype:
        return x.dtype if is_adapter(tuple(dotted_path(path).split("."))) else used

    return jax.tree_util.tree_map_with_path(of, params, family_of(graphdef).decoded_types(params, dtype))


@dataclass(frozen=True)
class RolloutPlacement:
    """mesh: (data, tensor) of this process's devices. graphdef: of the model (see ``vcap_jax.models.policy``)."""

    mesh: Mesh
    graphdef: GraphDef

    def shardings(self, params: DecodeParams, mesh: Mesh | AbstractMesh | None = None) -> DecodeParams:
        """Of ``params`` (arrays or abstract): cut by ``tensor`` as in training, else whole on every device.

        mesh: another mesh with an axis ``tensor``.
        """
        mesh = self.mesh if mesh is None else mesh
        sizes = {"fsdp": 1, "tensor": mesh.shape.get("tensor", 1)}
        rules = family_of(self.graphdef).partition_rules

        def of(path: KeyPath[Hashable], leaf: jax.Array) -> NamedSharding:
            # A layer by itself: its path lacks the tower's, which no rule looks at.
            return NamedSharding(mesh, partition(dotted_path(path), leaf.shape, sizes, rules).spec)

        return jax.tree_util.tree_map_with_path(of, params)

    def abstract(self, trainable: Params, frozen: Params) -> DecodeParams:
        """Shapes, types and shardings of ``params``."""

        def laid_out(trainable: Params, frozen: Params) -> DecodeParams:
            family = family_of(self.graphdef)
            return family.lay_out(self.graphdef, *family.apart(self.graphdef, trainable, frozen))

        found = jax.eval_shape(laid_out, trainable, frozen)
        return abstract(found, self.shardings(found))

    def params(self, trainable: Params, frozen: Params) -> DecodeParams:
        """The copy to draw captions with. On one device, what already has its type is not copied (but for the layers,
        which training keeps stacked)."""
        wanted = self.abstract(trainable, frozen)
        call = self._call(wanted, trainable, frozen)
        layers, new = call.program(call.stacked, call.leaves)
        leaves = list(call.leaves)
        for i, leaf in zip(call.changed, new, strict=True):
            leaves[i] = leaf
        placed = DecodeParams(layers, jax.tree.unflatten(call.tree, leaves))
        return jax.tree.map(lambda x, target: _on_mesh(x, target.sharding), placed, wanted)

    def taken(self, trainable: Params, frozen: Params) -> list[jax.Array]:
        """The arrays that ``params`` takes as they are; it copies all others."""
        call = self._call(self.abstract(trainable, frozen), trainable, frozen)
        return [leaf for i, leaf in enumerate(call.leaves) if i not in call.changed]

    def lower(self, trainable: Params, frozen: Params) -> Lowered:
        """The program that ``params`` runs, lowered for abstract parameters with shardings."""
        call = self._call(self.abstract(trainable, frozen), trainable, frozen)
        return call.program.lower(call.stacked, call.leaves)

    def _call(self, wanted: DecodeParams, trainable: Params, frozen: Params) -> _Call:
        stacked, rest = family_of(self.graphdef).apart(self.graphdef, trainable, frozen)
        leaves, tree = jax.tree.flatten(rest)
        changed = tuple(
            i
            for i, (leaf, target) in enumerate(zip(leaves, jax.tree.leaves(wanted.rest), strict=True))
            if self.mesh.size > 1 or leaf.dtype != target.dtype
        )
        training = None if self.mesh.size == 1 else self._training_mesh((trainable, frozen))
        program = self._program(wanted, tree, changed, training)
        return _Call(program, stacked, leaves, tree, changed)

    def batch(self, tree: object) -> PyTree[jax.Array]:
        """Prompts or features on this process's devices, split by group where their number allows.

        tree: arrays with groups on the first axis (``PromptBatch``), NumPy or on these devices.
        """

        def put(x: AnyArray) -> jax.Array:
            split = x.shape[0] % self.mesh.shape[DATA_AXIS] == 0
            return jax.device_put(x, NamedSharding(self.mesh, Spec(DATA_AXIS) if split else Spec()))

        return jax.tree.map(put, tree)

    def _training_mesh(self, params: tuple[Params, Params]) -> Mesh | AbstractMesh:
        shardings = [leaf.sharding for leaf in jax.tree.leaves(params)]
        meshes = {x.mesh for x in shardings if isinstance(x, NamedSharding)}
        if len(meshes) != 1:
            raise ValueError(
                f"parameters lie on {len(meshes)} meshes, captions are drawn on {self.mesh.size} devices: place all "
                "parameters on one mesh of these (Placement.state)"
            )
        return meshes.pop()

    def _program(
        self,
        wanted: DecodeParams,
        tree: PyTreeDef,
        changed: tuple[int, ...],
        training: Mesh | AbstractMesh | None,
    ) -> Wrapped:
        """One jitted ``lay_out`` per model and target, so that a step compiles nothing; of the rest it returns the
        ``changed`` leaves."""
        key = (self.graphdef, changed, training)
        if key not in _PROGRAMS:

            def chosen(params: DecodeParams) -> tuple[object, list[jax.Array]]:
                leaves = jax.tree.leaves(params.rest)
                return params.layers, [leaves[i] for i in changed]

            def program(stacked: Params, leaves: list[jax.Array]) -> tuple[object, list[jax.Array]]:
                lay_out = family_of(self.graphdef).lay_out
                return chosen(lay_out(self.graphdef, stacked, jax.tree.unflatten(tree, leaves)))

            target = None if training is None else chosen(self.shardings(wanted, training))
            _PROGRAMS[key] = jax.jit(program, out_shardings=target)
        return _PROGRAMS[key]


@dataclass(frozen=True)
class _Call:
    """A jitted program that lays parameters out, and what it is called with: the layers, and the leaves of everything
    else, which are ``tree``'s. changed: the leaves it returns."""

    program: Wrapped
    stacked: Params
    leaves: list[jax.Array]
    tree: PyTreeDef
    changed: tuple[int, ...]


_PROGRAMS: dict[tuple[GraphDef, tuple[int, ...], Mesh | AbstractMesh | None], Wrapped] = {}


def _on_mesh(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """This process's parts of ``x`` as an array of its own; nothing is moved."""
    parts = {shard.device: shard.data for shard in x.addressable_shards}
    order = sharding.addressable_devices_indices_map(x.shape)
    return jax.make_array_from_single_device_arrays(x.shape, sharding, [parts[d] for d in order])
