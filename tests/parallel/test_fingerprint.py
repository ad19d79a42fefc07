from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.parallel.fingerprint import fingerprint


def tree():
    rng = np.random.default_rng(0)
    return {
        "a": {"kernel": jnp.asarray(rng.normal(size=(8, 16)), jnp.float32)},
        "b": jnp.asarray(rng.normal(size=(8,)), jnp.bfloat16),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t | {"b": t["b"].at[3].set(-t["b"][3])},
        lambda t: t | {"b": t["b"][::-1]},
        lambda t: t | {"b": t["b"].astype(jnp.float32)},
        lambda t: {"a": t["a"], "c": t["b"]},
        lambda t: t | {"a": {"kernel": t["a"]["kernel"].at[7, 15].multiply(1 + 2**-22)}},
        lambda t: t | {"a": {"kernel": t["a"]["kernel"].reshape(16, 8)}},
        lambda t: t | {"a": {"kernel": t["a"]["kernel"].T.reshape(8, 16)}},
        lambda t: (
            t | {"a": {"kernel": t["a"]["kernel"].at[[0, 1], [1, 0]].set(t["a"]["kernel"][[1, 0], [0, 1]])}}
        ),
    ],
)
def test_a_change_of_a_bit_a_place_a_name_or_a_type_shows(change) -> None:
    assert fingerprint(change(tree())) != fingerprint(tree())


def test_where_the_parameters_lie_does_not() -> None:
    assert jax.device_count() >= 8  # tests/conftest.py simulates them
    mesh = jax.make_mesh((8,), ("x",))
    cut = jax.device_put(tree(), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    assert fingerprint(cut) == fingerprint(tree())
