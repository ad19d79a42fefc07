"""A batch is divided among devices where its rows can be, and is whole on each where they cannot."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from vcap_jax.recipes.teaching.spread import Spread


@pytest.mark.parametrize(("rows", "own"), [(8, 4), (5, 5)])
def test_rows_of_a_batch_on_each_of_two_devices(rows: int, own: int) -> None:
    batch = {"a": np.arange(rows), "b": np.ones((rows, 3))}
    placed = Spread(jax.devices()[:2]).batch(batch)
    jax.tree.map(np.testing.assert_array_equal, placed, batch)
    for leaf in jax.tree.leaves(placed):
        assert [len(shard.data) for shard in leaf.addressable_shards] == [own, own]


def test_what_was_on_all_devices_comes_to_one() -> None:
    spread = Spread(jax.devices()[:2])
    everywhere = spread.whole({"a": np.arange(3)})["a"]
    assert len(everywhere.devices()) == 2
    assert spread.alone(everywhere).devices() == {jax.devices()[0]}
