"""Placement on eight simulated devices: the rules, and that splitting the work changes no result."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as Spec

from tests.models.qwen3_vl.parity_cases import MODELS
from vcap_jax.kernels.attention import Chunked
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.family import RULES, Qwen3VLFamily
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisionInputs, VisualFeatures
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.parallel.group_sharding import GroupShardedJit
from vcap_jax.parallel.sharding import MeshConfig, NoDevices, Partition, Placement, dotted_path, partition
from vcap_jax.plan.costs import Counter
from vcap_jax.plan.hlo import parse
from vcap_jax.training.logprobs import token_logprobs

EIGHT = {"data": 1, "fsdp": 8, "tensor": 1}
SIX = {"data": 1, "fsdp": 2, "odd": 3, "tensor": 1}

_TIED = MODELS["tied"]
CONFIG = replace(
    _TIED,
    text=replace(_TIED.text, num_hidden_layers=2),
    vision=replace(_TIED.vision, depth=2, deepstack_visual_indexes=(0,)),
    tie_word_embeddings=False,
)


def abstract_model(config: Qwen3VLConfig = CONFIG) -> Any:
    return nnx.split(nnx.eval_shape(lambda: Qwen3VL(config, rngs=nnx.Rngs(0), dtype=jnp.float32)))[1]


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (MeshConfig(), (1, 8, 1)),
        (MeshConfig(data=-1, fsdp=2, tensor=2), (2, 2, 2)),
        (MeshConfig(data=2, fsdp=2, tensor=1), (2, 2, 1)),
    ],
)
def test_mesh_sizes(config: MeshConfig, sizes: tuple[int, ...]) -> None:
    assert config.sizes(8) == sizes
    data, fsdp, tensor = sizes
    assert tuple(Placement.build(config).mesh.shape.values()) == (data, fsdp, 1, tensor)


@pytest.mark.parametrize(("fsdp", "parts"), [(6, (2, 3)), (7, (1, 7)), (3, (1, 3)), (4, (4, 1))])
def test_the_odd_factor_of_fsdp_has_an_axis_of_its_own(fsdp: int, parts: tuple[int, int]) -> None:
    shape = Placement.build(MeshConfig(fsdp=fsdp)).mesh.shape
    assert (shape["fsdp"], shape["odd"]) == parts


def test_impossible_meshes_are_refused() -> None:
    for config in (MeshConfig(fsdp=3, data=-1), MeshConfig(fsdp=16)):
        with pytest.raises(ValueError, match="does not fit 8 devices"):
            config.sizes(8)
    with pytest.raises(ValueError, match="only one"):
        MeshConfig(data=-1)
    with pytest.raises(ValueError, match=r"tensor.*\n.*greater than or equal to 1.*input_value=0"):
        MeshConfig(tensor=0)


def test_an_odd_factor_is_refused_under_a_jax_that_dies_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 0))
    monkeypatch.delenv("XLA_FLAGS")
    with pytest.raises(
        ValueError, match=r"mesh\.fsdp is 6, .*XLA_FLAGS has --xla_enable_hlo_sharding_v3=false"
    ):
        Placement.build(MeshConfig(fsdp=6))
    assert Placement.build(MeshConfig(fsdp=8)).mesh.size == 8
    monkeypatch.setenv("XLA_FLAGS", "--xla_enable_hlo_sharding_v3=false")
    assert Placement.build(MeshConfig(fsdp=6)).mesh.size == 6


@pytest.mark.parametrize(
    ("path", "shape", "sizes", "spec"),
    [
        ("text.layers.mlp.gate_up.kernel", (36, 4096, 24576), EIGHT, Spec(None, "fsdp", None)),
        ("text.layers.mlp.down.kernel", (36, 12288, 4096), EIGHT, Spec(None, None, "fsdp")),
        ("opt_state.1.0.mu.text.layers.mlp.down.kernel", (36, 12288, 4096), EIGHT, Spec(None, None, "fsdp")),
        ("text.layers.attention.q_norm.scale", (36, 128), EIGHT, Spec(None, None)),
        ("lm_head", (151936, 4096), EIGHT, Spec(None, "fsdp")),
        ("lm_head", (151936, 4096), {"data": 1, "fsdp": 2, "tensor": 4}, Spec("tensor", "fsdp")),
        ("text.layers.attention.qkv.kernel", (36, 4096, 6144), {"data": 1, "fsdp": 2, "tensor": 4},
         Spec(None, "fsdp", "tensor")),
        # The preferred axis does not divide: the other one is as good.
        ("text.layers.mlp.down.kernel", (2, 64, 12), EIGHT, Spec(None, "fsdp", None)),
        ("something.new", (3, 16, 64), EIGHT, Spec(None, None, "fsdp")),
        ("opt_state.0.count", (), EIGHT, Spec()),
        # Six devices: the whole of fsdp on one axis, else its factors 2 and 3 apart, the stack of layers last.
        ("text.layers.mlp.gate_up.kernel", (36, 4096, 24576), SIX, Spec(None, None, ("fsdp", "odd"))),
        ("something.new", (3, 10, 9), SIX, Spec(None, "fsdp", "odd")),
    ],
)  # fmt: skip
def test_rules(path: str, shape: tuple[int, ...], sizes: dict[str, int], spec: Spec) -> None:
    assert partition(path, shape, sizes, RULES) == Partition(spec)


def test_a_size_that_does_not_divide_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    tree = {"text": {"embed_tokens": jax.ShapeDtypeStruct((317, 100), jnp.float32)}}
    placement = Placement.build(MeshConfig(fsdp=4, tensor=2), rules=RULES)
    assert partition("text.embed_tokens", (317, 100), dict(placement.mesh.shape), RULES).spec == Spec(
        None, "fsdp"
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            placement.shardings(tree)
    assert [r.message for r in caplog.records] == [
        "text.embed_tokens (317, 100): tensor=2 does not divide 317; kept whole there"
    ]
    assert partition("text.embed_tokens", (317, 100), {"fsdp": 8}, RULES).fallbacks == (
        "text.embed_tokens (317, 100): 8 devices do not divide 100 or 317; kept whole there",
    )


def test_what_no_matrix_axis_takes_cuts_the_stack_of_layers() -> None:
    split = partition("text.layers.attention.out.kernel", (36, 4096, 4096), SIX, RULES)
    assert split.spec == Spec("odd", None, "fsdp")
    assert "share out the 36 layers" in split.fallbacks[0]
    vocabulary = partition("text.embed_tokens", (151936, 4096), SIX, RULES)
    assert vocabulary.spec == Spec(None, "fsdp")
    assert "3 devices do not divide 4096 or 151936; kept whole there" in vocabulary.fallbacks[0]


@pytest.mark.parametrize(("devices", "most"), [(6, 1.32), (7, 7.01), (8, 1.001)])
def test_bytes_of_the_8b_model_per_device(devices: int, most: float) -> None:
    """Trained in float32 with two moments: what a device holds, against an even share. Seven divide nothing."""
    config = Qwen3VLFamily().published("8B")
    model = nnx.eval_shape(lambda: Qwen3VL(config, rngs=nnx.Rngs(0), param_dtype=jnp.float32))
    flat = {
        dotted_path(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(nnx.state(model))[0]
    }
    trained = {path: leaf for path, leaf in flat.items() if not path.startswith("visual.")}
    placement = Placement.build(MeshConfig(fsdp=devices), rules=RULES)
    held = sum(
        16 * math.prod(placement.parameter(path, leaf.shape).shard_shape(leaf.shape))
        for path, leaf in trained.items()
    )
    everything = sum(16 * math.prod(leaf.shape) for leaf in trained.values())
    assert everything / devices <= held <= most * everything / devices
    if devices == 6:
        assert held < 30e9  # of which 10 GB are halves of the two vocabulary matrices


def test_every_matrix_of_the_model_is_split_and_no_layer_axis() -> None:
    params = abstract_model()
    placement = Placement.build(MeshConfig(fsdp=4, tensor=2), rules=RULES)
    shardings, sizes = placement.shardings(params), dict(placement.mesh.shape)
    for (path, leaf), sharding in zip(
        jax.tree_util.tree_flatten_with_path(params)[0], jax.tree.leaves(shardings), strict=True
    ):
        name = jax.tree_util.keystr(path)
        # 25 positions and a patch of 24 numbers: nothing here is indivisible.
        assert not partition(dotted_path(path), leaf.shape, sizes, RULES).fallbacks, name
        axes = tuple(sharding.spec) + (None,) * (leaf.ndim - len(sharding.spec))
        assert all(axis is None for axis in axes[:-2]), name
        if "scale" in name or "bias" in name:
            assert set(axes) == {None}, name
        else:
            assert "fsdp" in axes, name


def test_optimizer_state_is_split_like_its_parameters() -> None:
    placement = Placement.build(MeshConfig(), rules=RULES)
    params = abstract_model()
    moments = jax.eval_shape(optax.adamw(1e-3).init, params)[0]
    expected = jax.tree.leaves(placement.shardings(params))
    assert jax.tree.leaves(placement.shardings(moments).mu) == expected
    assert jax.tree.leaves(placement.shardings(moments).nu) == expected
    abstract = placement.abstract(moments)
    assert [leaf.sharding for leaf in jax.tree.leaves(abstract.mu)] == expected


def test_batches_are_split_by_group(caplog: pytest.LogCaptureFixture) -> None:
    placement = Placement.build(MeshConfig(data=2, fsdp=4), rules=RULES)
    features = placement.batch(VisualFeatures(np.zeros((16, 3, 4)), np.zeros((16, 2, 3, 4))))
    assert features.embeddings.sharding.spec == Spec(("data", "fsdp"))
    assert features.deepstack.sharding.spec == Spec(("data", "fsdp"))
    assert features.deepstack.addressable_shards[0].data.shape == (2, 2, 3, 4)
    with caplog.at_level(logging.WARNING):
        assert placement.batch({"x": np.zeros((12, 2))})["x"].sharding.spec == Spec(("fsdp",))
        assert placement.batch({"x": np.zeros((3, 2))})["x"].sharding.spec == Spec(None)
    assert [r.message.split(" groups")[0] for r in caplog.records] == ["12", "3"]


def example_batch(groups: int = 8, prompt: int = 9, size: int = 2, length: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    visual_index = np.full((groups, prompt), -1, np.int32)
    visual_index[:, 2:4] = [0, 1]
    # Two merged tokens from one frame of 2 x 4 patches.
    patches = rng.integers(0, 256, (groups, 1, 8, CONFIG.vision.patch_dim), np.uint8)
    grids = np.tile(np.array([2, 4], np.int32), (groups, 1, 1))
    return {
        "prompt": PromptBatch(
            tokens=rng.integers(0, 60, (groups, prompt)).astype(np.int32),
            positions=np.broadcast_to(np.arange(prompt, dtype=np.int32), (groups, 3, prompt)).copy(),
            lengths=rng.integers(5, prompt + 1, groups).astype(np.int32),
            visual_index=visual_index,
            vision=VisionInputs(patches, grids),
        ),
        "captions": rng.integers(0, 60, (groups, size, length)).astype(np.int32),
        "advantages": rng.normal(size=(groups, size)).astype(np.float32),
    }


GRAPHDEF, PARAMS = nnx.split(Qwen3VL(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.float32))


@jax.jit
def encode(params: Any, prompt: PromptBatch) -> VisualFeatures:
    return nnx.merge(GRAPHDEF, params).encode_vision(prompt.vision)


@jax.jit
@jax.value_and_grad
def caption_loss(params: Any, features: VisualFeatures, batch: dict[str, Any]) -> jax.Array:
    model = nnx.merge(GRAPHDEF, params)
    hidden = model.caption_hidden(batch["prompt"], features, batch["captions"])
    logprobs = token_logprobs(hidden, model.lm_head[...].T, batch["captions"], chunk=3)
    return -(logprobs * batch["advantages"][..., None]).mean()


@pytest.mark.long
def test_hidden_states_wait_for_the_backward_pass_once_not_on_every_device_of_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no more is sent for that: attention's own loops, here over blocks of tokens, see whole sequences."""
    layers, devices = 24, 4
    config = replace(CONFIG, text=replace(CONFIG.text, num_hidden_layers=layers))
    kernel = Chunked(queries=8, scores=512, diagonal=8, whole=0)
    model = Qwen3VL(config, rngs=nnx.Rngs(0), dtype=jnp.float32, remat="layer", kernel=kernel)
    graphdef, params = nnx.split(model)
    batch = example_batch(prompt=8, length=96)
    prompt = replace(batch["prompt"], vision=None)
    placement = Placement.build(MeshConfig(fsdp=1, tensor=devices), jax.devices()[:devices], rules=RULES)
    arguments = placement.state(params), placement.batch({"prompt": prompt, "captions": batch["captions"]})

    def compiled() -> tuple[int, float]:
        """Bytes of temporaries, and bytes that a device sends."""

        def loss(params: Any, batch: dict[str, Any]) -> jax.Array:
            model = nnx.merge(graphdef, params)
            return jnp.square(model.caption_hidden(batch["prompt"], None, batch["captions"])).sum()

        program = GroupShardedJit(jax.grad(loss)).lower(*arguments).compile()
        sent = Counter(parse(program.as_text() or "")).total().sent
        return int(program.memory_analysis().temp_size_in_bytes), sent

    temporaries, sent = compiled()
    monkeypatch.setattr("vcap_jax.models.qwen3_vl.text.cut_sequence", lambda x, **_: x)
    whole, sent_before = compiled()
    tokens = 8 * (8 + 2 * 96)
    states = layers * tokens * config.text.hidden_size * 4
    assert whole - temporaries > 0.7 * states * (1 - 1 / devices)
    assert 0 < sent < sent_before


def loss_and_gradients(placement: Placement) -> tuple[jax.Array, Any]:
    params, batch = placement.state(PARAMS), placement.batch(example_batch())
    down = params["text"]["layers"]["mlp"]["down"]["kernel"].get_value()
    if placement.mesh.shape["odd"] == 1:
        parts = placement.mesh.shape["fsdp"] * placement.mesh.shape["tensor"]
        assert down.addressable_shards[0].data.size * parts == down.size
    return caption_loss(params, encode(params, batch["prompt"]), batch)


@pytest.fixture(scope="module")
def on_one_device() -> tuple[jax.Array, Any]:
    return loss_and_gradients(Placement.build(MeshConfig(fsdp=1), rules=RULES))


@pytest.mark.parametrize(
    "config",
    [
        MeshConfig(),
        pytest.param(MeshConfig(fsdp=6), marks=pytest.mark.slow),
        pytest.param(MeshConfig(data=2, fsdp=2, tensor=2), marks=pytest.mark.slow),
    ],
    ids=["fsdp", "six", "data-fsdp-tensor"],
)
def test_loss_and_gradients_on_eight_devices_equal_those_on_one(
    config: MeshConfig, on_one_device: tuple[jax.Array, Any]
) -> None:
    expected_loss, expected = on_one_device
    loss, gradients = loss_and_gradients(Placement.build(config, rules=RULES))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for (path, ours), theirs in zip(
        jax.tree_util.tree_flatten_with_path(gradients)[0], jax.tree.leaves(expected), strict=True
    ):
        scale = np.abs(np.asarray(theirs)).max() + 1e-6
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * scale, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    "raised", [RuntimeError("Unable to initialize backend 'tpu': in use"), AssertionError()]
)
def test_where_jax_has_nothing_to_compute_on_that_is_told(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a platform that it has no plugin for, such as cuda, it raises an AssertionError without a word."""

    def devices() -> list[jax.Device]:
        raise raised

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    with pytest.raises(NoDevices, match="JAX_PLATFORMS is 'tpu'") as told:
        Placement.build(MeshConfig())
    assert str(raised) in str(told.value)
