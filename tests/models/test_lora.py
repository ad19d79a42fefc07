"""Adapters: zero at first, equal to what they merge into, and the only thing that is trained."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.public_arrays import public_arrays
from tests.models.qwen3_vl.checkpoints import load_pretrained, save_pretrained
from tests.tiny_policy import tiny_model, tiny_prompts
from vcap_jax.models.lora import TARGETS, Additions, LoraConfig, adapters, attach, is_adapter
from vcap_jax.models.policy import ModelConfig, split_adapters
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.partition import RULES
from vcap_jax.models.weight_map import flat_parameters
from vcap_jax.parallel.sharding import MeshConfig, Placement, partition


def adapted(lora: LoraConfig, *, seed: int | None = 0) -> Qwen3VL:
    """The tiny model with adapters; seed: of a random ``b``, None leaves it zero."""
    model = tiny_model()
    attach(model, lora)
    rng = np.random.default_rng(seed)
    for node in adapters(model).values() if seed is not None else ():
        node.b.set_value(jnp.asarray(0.1 * rng.normal(size=node.b.shape), jnp.float32))
    return model


@jax.jit
def hidden(model: Qwen3VL) -> jax.Array:
    prompt = tiny_prompts(2)
    return model.hidden(prompt, model.encode_vision(prompt.vision))


@pytest.fixture(scope="module")
def base() -> np.ndarray:
    return np.asarray(hidden(tiny_model()))


def test_new_adapters_change_nothing(base):
    np.testing.assert_array_equal(hidden(adapted(LoraConfig(rank=3), seed=None)), base)


@pytest.mark.parametrize(
    ("targets", "rslora"),
    [
        (TARGETS, False),
        (("q_proj", "v_proj", "down_proj"), True),
        pytest.param(("k_proj", "up_proj"), False, marks=pytest.mark.slow),
    ],
)
def test_the_merged_export_is_the_adapted_model(tmp_path, base, targets, rslora):
    lora = LoraConfig(rank=4, alpha=6.0, targets=targets, use_rslora=rslora)
    model = adapted(lora)
    ours = np.asarray(hidden(model))
    assert np.abs(ours - base).max() > 1e-2
    save_pretrained(model, tmp_path / "merged")
    merged = load_pretrained(tmp_path / "merged", dtype=jnp.float32)
    np.testing.assert_allclose(np.asarray(hidden(merged)), ours, rtol=0, atol=2e-6 * np.abs(ours).max())
    # What was named has changed and nothing else, by the product that the public definition gives.
    before = public_arrays(model.weight_map, tiny_model())
    added = {name: array - before[name] for name, array in public_arrays(model.weight_map, merged).items()}
    assert {name.split(".")[-2] for name, array in added.items() if array.any()} == set(targets)
    path, name = next(
        (path, name)
        for path, name in (("down", "mlp.down_proj"), ("gate_up", "mlp.up_proj"))
        if name.split(".")[1] in targets
    )
    node = adapters(model)[f"text.layers.mlp.{path}"]
    width = node.parts[-1][1] - node.parts[-1][0]
    product = np.asarray(node.a[...][1][:, -4:]) @ np.asarray(node.b[...][1][:, -width:])
    scaled = (3.0 if rslora else 1.5) * product.T
    np.testing.assert_allclose(added[f"model.language_model.layers.1.{name}.weight"], scaled, atol=1e-6)


@pytest.mark.parametrize("measured", [2**18, 64])
@pytest.mark.parametrize(("size", "low", "high"), [(1e-5, 0, 0.05), (2e-3, 0.1, 0.9), (30.0, 0.99, 1.01)])
def test_an_export_says_how_much_of_the_adapters_rounding_has_left(
    tmp_path, monkeypatch, measured, size, low, high
):
    """Beside a base that is exact in bfloat16, young adapters vanish in it and grown ones do not. What is measured of
    every matrix is what the files hold, and a part of its rows is near to all of them."""
    monkeypatch.setattr("vcap_jax.models.lora._MEASURED", measured)
    model = adapted(LoraConfig(rank=4))
    exact = nnx.state(model, nnx.filterlib.Not(is_adapter))
    nnx.update(
        model,
        jax.tree.map(lambda x: jnp.asarray(np.asarray(x).astype(jnp.bfloat16).astype(np.float32)), exact),
    )
    for node in adapters(model).values():
        node.b.set_value(size * node.b[...])
    kept = save_pretrained(model, tmp_path / "rounded", dtype=jnp.bfloat16)
    assert low <= kept <= high
    if measured > 64:
        additions, along, whole = Additions(model), 0.0, 0.0
        stored = flat_parameters(load_pretrained(tmp_path / "rounded", dtype=jnp.float32))
        for tensor in model.weight_map.tensors:
            if (added := additions.of(tensor)) is None:
                continue
            here, there = (
                np.asarray(params[tensor.path])[tensor.layer][:, slice(*tensor.columns)]
                for params in (flat_parameters(model), stored)
            )
            along, whole = along + ((there - here) * added).sum(), whole + (added**2).sum()
        assert kept == pytest.approx(along / whole, rel=1e-3, abs=1e-6)
    assert save_pretrained(model, tmp_path / "exact", dtype=jnp.float32) == pytest.approx(1, abs=1e-2)


def test_nothing_is_kept_or_lost_where_nothing_is_added(tmp_path):
    for name, model in (("base", tiny_model()), ("new", adapted(LoraConfig(rank=2), seed=None))):
        assert save_pretrained(model, tmp_path / name, dtype=jnp.bfloat16) is None


def test_gradients_reach_the_adapters_and_nothing_else():
    graphdef, trainable, frozen = split_adapters(adapted(LoraConfig(rank=2)))
    names = set(flat_parameters(trainable))
    assert names == {
        f"text.layers.{place}.adapter.{half}"
        for place in ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down")
        for half in "ab"
    }
    assert not any("adapter" in name for name in flat_parameters(frozen))

    def loss(params):
        return jnp.sum(jnp.sin(hidden.__wrapped__(nnx.merge(graphdef, params, frozen))))

    gradients = jax.jit(jax.grad(loss))(trainable)
    for name, gradient in flat_parameters(gradients).items():
        assert np.abs(gradient).max() > 0, name


def test_an_abstract_model_gets_abstract_adapters_of_the_same_shapes():
    lora = LoraConfig(rank=2, targets=("q_proj", "k_proj", "v_proj", "up_proj"))
    model = Qwen3VL.abstract(tiny_model().config)
    attach(model, lora, param_dtype=jnp.bfloat16)
    there = flat_parameters(adapted(lora))
    here = flat_parameters(model)
    assert {n: x.shape for n, x in here.items()} == {n: x.shape for n, x in there.items()}
    assert {str(x.dtype) for n, x in here.items() if ".adapter." in n} == {"bfloat16"}
    assert isinstance(here["text.layers.attention.qkv.adapter.a"], jax.ShapeDtypeStruct)


def test_on_a_mesh_they_are_cut_with_the_matrices_they_add_to():
    sizes = {"fsdp": 4, "tensor": 2}
    for path, shape, spec in (
        ("attention.qkv.adapter.a", (36, 4096, 48), (None, "fsdp", None)),
        ("attention.qkv.adapter.b", (36, 16, 6144), (None, "fsdp", "tensor")),
        ("mlp.down.adapter.a", (36, 12288, 16), (None, "tensor", "fsdp")),
        ("mlp.down.adapter.b", (36, 16, 4096), (None, None, "fsdp")),
    ):
        for before in ("text.layers.", "opt_state.1.mu.text.layers."):
            split = partition(before + path, shape, sizes, RULES)
            assert (*split.spec,) == spec, path
            assert not split.fallbacks
    model, lora = tiny_model(), LoraConfig(rank=2)
    attach(
        model, lora, sharding=Placement.build(MeshConfig(fsdp=2), jax.devices()[:2], rules=RULES).parameter
    )
    whole = flat_parameters(adapted(lora, seed=None))
    for name, array in flat_parameters(model).items():
        if ".adapter." in name:
            assert array.addressable_shards[0].data.size == array.size // 2, name
            np.testing.assert_array_equal(array, whole[name])


def test_the_draw_depends_on_the_seed_and_the_place_alone():
    first, again, other = (
        flat_parameters(adapted(LoraConfig(rank=2, seed=seed), seed=None)) for seed in (0, 0, 1)
    )
    down, out = "text.layers.mlp.down.adapter.a", "text.layers.attention.out.adapter.a"
    np.testing.assert_array_equal(first[down], again[down])
    assert not np.array_equal(first[down], other[down])
    fewer = flat_parameters(adapted(LoraConfig(rank=2, targets=("o_proj",)), seed=None))
    np.testing.assert_array_equal(first[out], fewer[out])
    # Uniform within 1 / sqrt(24 inputs).
    assert 0.8 < float(jnp.abs(first[down]).max()) * 24**0.5 <= 1


def test_settings_that_cannot_be_are_refused_with_their_names():
    for settings, message in (
        ({"rank": 0}, "rank\n.*greater than or equal to 1.*input_value=0"),
        ({"alpha": 0.0}, "alpha\n.*greater than 0.*input_value=0.0"),
        ({"targets": ("qkv",)}, "targets.0\n.*should be 'q_proj', .*input_value='qkv'"),
        ({"targets": ()}, "targets\n.*give one or more"),
    ):
        with pytest.raises(ValueError, match=message):
            LoraConfig(**settings)
    with pytest.raises(ValueError, match=r"model\.frozen is \[\] beside model\.lora"):
        ModelConfig(lora=LoraConfig(), frozen=())
