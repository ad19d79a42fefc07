"""Arrays go to the host's memory and come back as they were, and leave nothing on the devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vcap_jax.parallel.host_memory import HOST, free, has_host_memory, on_devices, sent, to_devices, to_host
from vcap_jax.parallel.sharding import MeshConfig, Placement

VALUES = np.arange(48, dtype=np.float32).reshape(8, 6) / 7


def tree() -> dict[str, jax.Array]:
    """A matrix cut over four devices, a vector whole on each of them, a number on one."""
    placement = Placement.build(MeshConfig(), jax.devices()[:4])
    placed = placement.state({"cut": VALUES, "whole": VALUES[0]})
    return {**placed, "number": jax.device_put(jnp.bfloat16(1.5), jax.devices()[1])}


def kinds(of: Any) -> set[str | None]:
    return {shard.data.sharding.memory_kind for x in jax.tree.leaves(of) for shard in x.addressable_shards}


def same(ours: Any, theirs: Any) -> None:
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_a_tree_lies_in_the_hosts_memory_and_comes_back_to_the_same_programs() -> None:
    first = tree()
    there = to_host(first)
    assert kinds(first) == {"device"}
    assert kinds(there) == {HOST}
    same(there, first)
    for name, array in there.items():
        assert array.sharding.device_set == first[name].sharding.device_set
        assert {s.device: s.index for s in array.addressable_shards} == {
            s.device: s.index for s in first[name].addressable_shards
        }
    back = to_devices(there)
    assert kinds(back) == {"device"}
    for name, array in back.items():
        assert array.sharding == first[name].sharding
    same(back, first)
    doubled = jax.jit(lambda x: 2 * x)
    doubled(first["cut"])
    doubled(back["cut"])
    assert doubled._cache_size() == 1


def test_what_lies_where_it_is_wanted_is_not_copied() -> None:
    here = tree()
    there = to_host(here)
    for name, array in here.items():
        assert to_devices(here)[name] is array
        assert to_host(there)[name] is there[name]


def test_what_is_sent_is_given_up_on_the_devices_but_for_what_stays() -> None:
    first = tree()
    expected = {name: np.asarray(array) for name, array in first.items()}
    gone = sent(first, keep=[first["whole"]])
    assert [array.is_deleted() for array in first.values()] == [True, False, True]
    assert gone["whole"] is first["whole"]
    assert kinds([gone["cut"], gone["number"]]) == {HOST}
    same(gone, expected)
    again = sent(gone, keep=[gone["whole"]])
    assert again["cut"] is gone["cut"]
    assert not again["cut"].is_deleted()


def test_what_came_for_a_while_is_given_up_and_the_tree_stays() -> None:
    there = to_host(tree())
    with on_devices(there) as here:
        assert kinds(here) == {"device"}
        result = here["cut"] + 1
    assert all(array.is_deleted() for array in here.values())
    np.testing.assert_array_equal(result, VALUES + 1)
    same(there, tree())
    lying = tree()
    with on_devices(lying) as here:
        assert here is lying
    assert not any(array.is_deleted() for array in lying.values())
    with on_devices(None) as nothing:
        assert nothing is None


def test_programs_that_were_begun_end_with_the_numbers_that_are_given_up() -> None:
    large = jax.device_put(jnp.ones((512, 512)), jax.devices()[0])
    product = large
    for _ in range(20):
        product = product @ large / 512
    free(large)
    np.testing.assert_allclose(product, 1, rtol=1e-3)


def test_a_device_without_such_memory_is_known() -> None:
    assert has_host_memory(jax.devices()[0])
    without: Any = SimpleNamespace(addressable_memories=lambda: [SimpleNamespace(kind="device")])
    assert not has_host_memory(without)
