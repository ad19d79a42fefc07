"""What a process of a run has for itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding

from tests.tiny_policy import CONFIG as MODEL
from tests.tiny_policy import END, tiny_model, tiny_prompts
from vcap_jax.configuration import load_config
from vcap_jax.models.lora import LoraConfig, attach
from vcap_jax.models.policy import Policy, split_model
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.partition import RULES
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.parallel.sharding import MeshConfig, Placement, dotted_path
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.rollout.placement import own_types
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext, group_sampler, own_file

CONFIG = RolloutConfig(
    group_size=2, max_completion_length=8, groups_per_batch=4, decode_steps_per_call=4, shrink=1
)


@pytest.mark.parametrize(
    ("processes", "slots"), [(ALONE, 8), (Processes(1, 2), 4), (Processes(2, 3), 2), (Processes(0, 16), 1)]
)
def test_a_process_has_slots_for_its_share_of_a_batch(processes: Processes, slots: int) -> None:
    """And memory for no more: its groups never take the others' slots."""
    graphdef, params = nnx.split(tiny_model())
    processor: Any = SimpleNamespace(eos_token_ids=(END,), banned_token_ids=())
    policy = Policy(graphdef, params, nnx.State({}), processor)
    sampler = group_sampler(policy, RolloutConfig(groups_per_batch=8), processes)
    # On one device; on two, each has half of them.
    assert sampler.buckets(1).slots[-1] == slots
    assert sampler.buckets(2).slots[-1] == -(-slots // 2)
    assert sampler.config.groups_per_batch == slots


@pytest.mark.parametrize(
    ("settings", "frozen"),
    [
        ([], False),
        (["rollout.offload=[parameters]"], True),
        (["rollout.offload=[optimizer]"], False),
        # As a supervised run may have it, whose held-out pictures its own tower looks at.
        (["rollout.offload=[parameters]", "model.frozen=[]"], False),
    ],
)
def test_pictures_are_looked_at_without_trained_parameters_only_by_a_frozen_tower(
    settings: list[str], frozen: bool
) -> None:
    nothing: Any = None
    policy = Policy(nnx.split(tiny_model())[0], nnx.State({}), nnx.State({}), nothing)
    placement = Placement.build(MeshConfig(), jax.devices()[:1])
    config = load_config(RunConfig, [], settings)
    ctx = RunContext(config, nothing, policy, placement, nothing, nothing)
    assert ctx.batcher(2).frozen_vision == frozen


@pytest.mark.parametrize(("processes", "gone"), [(ALONE, False), (Processes(1, 2), True)])
def test_a_process_gives_up_its_copy_once_captions_have_their_own(processes: Processes, gone: bool) -> None:
    """But for what both have in common; alone they are the parameters that are trained."""
    processor: Any = SimpleNamespace(eos_token_ids=(END,), banned_token_ids=())
    policy = Policy(*split_model(tiny_model(), ("visual",)), processor)
    placement = Placement.build(MeshConfig(fsdp=1), jax.devices()[:1])
    sampler = group_sampler(policy, CONFIG, processes)
    nothing: Any = None
    ctx = RunContext(RunConfig(), nothing, policy, placement, sampler, nothing, processes)
    own = jax.tree.map(jnp.copy, policy.trainable)
    shared = {id(array) for array in sampler.taken(own, policy.frozen)}
    ctx.give_up(own)
    leaves = jax.tree.leaves(own)
    assert {array.is_deleted() for array in leaves if id(array) in shared} == {False}
    assert {array.is_deleted() for array in leaves if id(array) not in shared} == {gone}


def is_cut(sharding: NamedSharding) -> bool:
    """By one of the axes that cut parameters."""
    return bool({"fsdp", "odd"} & set(jax.tree.leaves(tuple(sharding.spec))))


@pytest.mark.slow
def test_parameters_for_one_process_are_cast_before_they_are_sent() -> None:
    """What each of several processes gets: the decoder in the type of the products, sent in it, and captions as from
    the parameters themselves."""
    model = Qwen3VL(Qwen3VLConfig.from_dict(MODEL), rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    attach(model, LoraConfig(rank=2, targets=("q_proj",)))
    graphdef, untrained = nnx.split(model)
    placement = Placement.build(MeshConfig(), jax.devices()[:2], rules=RULES)
    local = Placement.build(MeshConfig(data=-1, fsdp=1), jax.devices()[:1], rules=RULES)
    trained = placement.state(untrained)
    program = placement.gathering(trained, own_types(graphdef, trained, "bfloat16"), local)
    assert placement.gathering(trained, own_types(graphdef, trained, "bfloat16"), local) is program

    own, narrow = program(trained), 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(own)[0]:
        name = dotted_path(path)
        wide = name.startswith("visual.") or ".adapter." in name
        narrow += not wide
        assert leaf.dtype == (jnp.float32 if wide else jnp.bfloat16), name
        assert leaf.sharding.is_fully_replicated, name
    # Before the compiler's passes (the CPU's sends everything in float32): each is cast, and then still where it lay.
    equations = [(equation.primitive.name, equation) for equation in program.trace(trained).jaxpr.jaxpr.eqns]
    assert sum(name == "convert_element_type" for name, _ in equations) == narrow
    kept = [equation for name, equation in equations if name == "sharding_constraint"]
    cut = [x for x in kept if x.outvars[0].aval.dtype == jnp.bfloat16 and is_cut(x.params["sharding"])]
    assert len(cut) >= 5

    sampler = GroupSampler(graphdef, CONFIG, end_ids=[END], banned_ids=[5])
    prompt = tiny_prompts(4)
    features = jax.jit(lambda vision: model.encode_vision(vision))(prompt.vision)

    def drawn(params: nnx.State) -> list[list[int]]:
        groups = sampler.stream(params, nnx.State({}), prompt, features, seed=0, step=0, group_ids=range(4))
        return [g.tokens.tolist() for g in sorted(groups, key=lambda g: g.index)]

    assert drawn(own) == drawn(trained)


def test_no_two_processes_write_one_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    names = [own_file(folder, "judgements.sqlite", Processes(index, 3)).name for index in range(3)]
    assert names == ["judgements.sqlite", "judgements-1.sqlite", "judgements-2.sqlite"]
