"""Where captions are drawn: what is copied, what moves between devices, and that neither changes a caption.

On eight simulated devices (see conftest.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.tiny_policy import CONFIG as MODEL
from tests.tiny_policy import END, tiny_model, tiny_prompts
from vcap_jax.models.lora import LoraConfig, attach
from vcap_jax.models.policy import split_adapters
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.family import RULES
from vcap_jax.models.qwen3_vl.inputs import VisualFeatures
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.parallel.host_memory import free
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.plan.hlo import parse
from vcap_jax.rollout.placement import RolloutPlacement, local_mesh, mesh_of, own_types
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.rollout.slots import Outgrown, PromptGroups, Slots

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
CONFIG = RolloutConfig(
    group_size=2,
    max_completion_length=8,
    groups_per_batch=8,
    decode_steps_per_call=4,
    shrink=1,
    sampling=SamplingConfig(temperature=1.0, top_p=0.9, top_k=8, repetition_penalty=1.1),
)


def collectives(text: str) -> list[str]:
    """Kinds of collective operations in a compiled program."""
    instructions = [i for computation in parse(text).computations.values() for i in computation]
    return [i.opcode for i in instructions if i.opcode.startswith(COLLECTIVES)]


def twelve_groups(params: nnx.State, graphdef: object) -> list[PromptGroups]:
    """In two batches, the second shorter."""
    encode = jax.jit(lambda params, vision: nnx.merge(graphdef, params).encode_vision(vision))
    batches = []
    for first, count in ((0, 8), (8, 4)):
        prompt = tiny_prompts(count, seed=first)
        features = encode(params, prompt.vision)
        features = VisualFeatures(np.asarray(features.embeddings), np.asarray(features.deepstack))
        batches.append(PromptGroups(prompt, features, range(first, first + count)))
    return batches


def captions(
    placement: Placement,
    params: nnx.State,
    graphdef: object,
    batches: list[PromptGroups],
    config: RolloutConfig = CONFIG,
) -> dict[str, object]:
    """The groups' captions with the parameters placed as in training. cut: for each array of the decode state, the
    axes it was cut over behind any call, as one string each."""
    sampler = GroupSampler(
        graphdef,
        config,
        end_ids=[END, 11, 12],
        banned_ids=[5, 6, 7, 8],
        logprobs=True,
    )
    trainable, frozen = placement.state(params), nnx.State({})
    found: dict[int, np.ndarray] = {}
    cut: dict[str, set[str]] = {}
    decode = Slots.decode

    def spied(self: Slots) -> None:
        decode(self)
        for path, leaf in jax.tree.leaves_with_path(self.state):
            cut.setdefault(jax.tree_util.keystr(path), set()).add(str(leaf.sharding.spec))

    with pytest.MonkeyPatch.context() as patch:
        if placement.mesh.size > 1:
            patch.setattr(Slots, "decode", spied)
        for group in sampler.stream_batches(trainable, frozen, batches, seed=0, step=0):
            found[group.index] = group.tokens
    made = sampler.placement(trainable)
    placed = RolloutPlacement(made.mesh, graphdef).params(trainable, frozen)
    return {
        "tokens": [found[i].tolist() for i in sorted(found)],
        "replicas": made.mesh.shape["data"],
        "cut": cut,
        "decode": moved(made, trainable, frozen, batches[0], graphdef) if made.mesh.size > 1 else [],
        "whole": all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(placed)),
    }


def moved(
    made: RolloutPlacement, trainable: nnx.State, frozen: nnx.State, batch: PromptGroups, graphdef: object
) -> list[str]:
    """What a decode call sends between devices."""
    abstract = GroupSampler(graphdef, CONFIG, end_ids=[END], banned_ids=[5], mesh=made.mesh)
    calls = abstract.abstract_calls(trainable, frozen, made.batch(batch.prompt), made.batch(batch.features))
    return collectives(calls.decode().compile().as_text())


@pytest.fixture(scope="module")
def eight() -> dict:
    graphdef, params = nnx.split(tiny_model(key_heads=2))
    batches = twelve_groups(params, graphdef)
    meshes = {
        "one": (MeshConfig(), 1),
        "fsdp": (MeshConfig(fsdp=8), 8),
        "tensor": (MeshConfig(fsdp=4, tensor=2), 8),
    }
    return {
        name: captions(Placement.build(config, jax.devices()[:count], rules=RULES), params, graphdef, batches)
        for name, (config, count) in meshes.items()
    }


@pytest.mark.slow
def test_eight_devices_decode_side_by_side_and_tell_each_other_nothing(eight: dict) -> None:
    assert eight["fsdp"]["replicas"] == 8
    assert eight["fsdp"]["whole"]
    assert eight["fsdp"]["decode"] == []
    assert eight["fsdp"]["tokens"] == eight["one"]["tokens"]


@pytest.mark.slow
def test_a_model_cut_by_tensor_draws_the_same_captions(eight: dict) -> None:
    assert eight["tensor"]["replicas"] == 4
    assert not eight["tensor"]["whole"]
    assert "all-reduce" in eight["tensor"]["decode"]
    assert eight["tensor"]["tokens"] == eight["one"]["tokens"]


@pytest.mark.slow
def test_caches_are_cut_by_head_and_lie_the_same_behind_every_call(eight: dict) -> None:
    """Else every device would hold all of them, and a call behind another would be compiled again."""
    assert_cut_by_head(eight["tensor"]["cut"])


def assert_cut_by_head(cut: dict[str, set[str]]) -> None:
    assert len(cut) > 8
    for name, (spec,) in cut.items():
        assert ("tensor" in spec) == (".keys[" in name or ".values[" in name), name


@pytest.mark.long
@pytest.mark.parametrize("mesh", [MeshConfig(fsdp=4), MeshConfig(fsdp=2, tensor=2)], ids=["fsdp", "tensor"])
def test_groups_that_outgrow_short_caches_on_several_devices_draw_the_same(
    eight: dict, mesh: MeshConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are moved to the host and back, to whichever device has room."""
    moved_to = []
    resume = Slots.resume

    def spied(self: Slots, waiting: deque[Outgrown]) -> bool:
        before = [one.group.index for one in waiting]
        done = resume(self, waiting)
        moved_to.extend(before[: len(before) - len(waiting)])
        return done

    monkeypatch.setattr(Slots, "resume", spied)
    graphdef, params = nnx.split(tiny_model(key_heads=2))
    short = replace(
        CONFIG, groups_per_batch=4, short_groups=8, short_length=4, decode_steps_per_call=2, shrink=2
    )
    placement = Placement.build(mesh, jax.devices()[:4], rules=RULES)
    found = captions(placement, params, graphdef, twelve_groups(params, graphdef), short)
    assert found["tokens"] == eight["one"]["tokens"]
    assert len(set(moved_to)) == len(moved_to) > found["replicas"]
    if mesh.tensor > 1:
        assert_cut_by_head(found["cut"])


def test_on_one_device_nothing_is_copied_but_the_layers() -> None:
    graphdef, params = nnx.split(tiny_model())
    params = jax.tree.map(jnp.asarray, params)
    placed = RolloutPlacement(mesh_of(params), graphdef).params(params, nnx.State({}))
    table = placed.rest["text"]["embed_tokens"].get_value()
    assert table.unsafe_buffer_pointer() == params["text"]["embed_tokens"].get_value().unsafe_buffer_pointer()
    assert len(placed.layers) == 2


def test_the_copy_is_in_the_type_of_the_products_and_the_vision_tower_is_left() -> None:
    graphdef, params = nnx.split(
        Qwen3VL(Qwen3VLConfig.from_dict(MODEL), rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    )
    params = Placement.build(MeshConfig(), jax.devices()[:1]).state(params)
    placed = RolloutPlacement(mesh_of(params), graphdef).params(params, nnx.State({}))
    visual = placed.rest["visual"]
    text = jax.tree.leaves((placed.layers, placed.rest["text"]))
    assert {leaf.dtype for leaf in text} == {jnp.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in jax.tree.leaves(visual)} == {jnp.dtype(jnp.float32)}


def test_adapters_go_to_each_process_as_they_are_trained() -> None:
    """They may be added to a matrix in float32 (``lora.Additions``); rounded, they would draw by other weights."""
    whole = tiny_model()
    types = jax.tree.leaves(own_types(*nnx.split(whole), "bfloat16"))
    assert jnp.dtype(jnp.bfloat16) in types
    attach(whole, LoraConfig(rank=2))
    graphdef, adapters, _ = split_adapters(whole)
    assert set(jax.tree.leaves(own_types(graphdef, adapters, "bfloat16"))) == {jnp.dtype(jnp.float32)}


def test_a_tensor_axis_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mesh\.tensor is 3"):
        local_mesh(3, jax.devices()[:1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "dtype"),
    [(1, "bfloat16"), (2, "float32"), (1, "float32")],
)
def test_what_is_taken_as_it_is_is_all_that_may_not_be_given_up(devices: int, dtype: str) -> None:
    """The same captions when every other array is gone once the copy is begun."""
    model = Qwen3VL(Qwen3VLConfig.from_dict(MODEL), rngs=nnx.Rngs(0), dtype=jnp.dtype(dtype))
    graphdef, params = nnx.split(model)
    placed = Placement.build(MeshConfig(), jax.devices()[:devices], rules=RULES)
    sampler = GroupSampler(graphdef, CONFIG, end_ids=[END], banned_ids=[5, 6, 7, 8])

    def drawn(give_up: bool) -> list[list[int]]:
        # Its own: the model's arrays would be given up as well.
        trainable, frozen = placed.state(jax.tree.map(jnp.copy, params)), nnx.State({})
        taken = sampler.taken(trainable, frozen)
        leaves = jax.tree.leaves(trainable)
        visual = len(jax.tree.leaves(trainable["visual"]))
        # On one device: the vision side; where types are the same, also embedding and last norm.
        assert len(taken) == (0 if devices > 1 else visual + 2 * (dtype == "float32"))
        assert {id(x) for x in taken} <= {id(x) for x in leaves}
        (batch,) = twelve_groups(params, graphdef)[:1]

        def batches() -> Iterator[PromptGroups]:
            if give_up:
                free(trainable, keep=taken)
            yield batch

        groups = sampler.stream_batches(trainable, frozen, batches(), seed=0, step=0)
        return [group.tokens.tolist() for group in sorted(groups, key=lambda group: group.index)]

    assert drawn(give_up=True) == drawn(give_up=False)
