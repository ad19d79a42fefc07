"""What waits in the host's memory is counted from shapes, and is what a run has there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.plan.tiny_run import tiny_run
from tests.tiny_policy import tiny_model
from vcap_jax.configuration import load_config
from vcap_jax.models.policy import split_model
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.plan.abstract import abstract_policy, largest_sizes, model_of
from vcap_jax.plan.offload import POOL, Waiting, outgrown_bytes, pool_needed, require_on_host, waiting_bytes
from vcap_jax.plan.planning import make_plan
from vcap_jax.plan.programs import step_programs
from vcap_jax.plan.tables import as_json, render
from vcap_jax.plan.targets import PlanningError
from vcap_jax.plan.trials import changes
from vcap_jax.plan.work import Step
from vcap_jax.rollout.config import Offloaded
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import GIB, hardware
from vcap_jax.training.optimizer import build_optimizer

PAPER = Path(__file__).resolve().parents[2] / "configs" / "paper"
EVERYTHING: tuple[Offloaded, ...] = ("optimizer", "reference", "parameters")


def waiting_run(folder: Path, *names: Offloaded, **model: str) -> RunConfig:
    config = tiny_run(folder)
    return dataclasses.replace(
        config,
        rollout=dataclasses.replace(config.rollout, offload=names),
        model=dataclasses.replace(config.model, **model),
        grpo=dataclasses.replace(config.grpo, objective=dataclasses.replace(config.grpo.objective, beta=0.1)),
    )


def step_of(config: RunConfig, devices: int) -> Step:
    model, there = model_of(config.model), jax.devices()[:devices]
    groups = max(2, devices)
    config = dataclasses.replace(
        config,
        grpo=dataclasses.replace(config.grpo, groups_per_step=groups, groups_per_micro_batch=groups),
        rollout=dataclasses.replace(config.rollout, groups_per_batch=groups),
    )
    return step_programs(
        config,
        model,
        abstract_policy(config, model, there[0]),
        largest_sizes(config, model),
        8,
        devices=there,
        host_devices=there,
        hosts=1,
    )


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow), 6])
def test_bytes_are_those_of_the_arrays_that_a_run_would_send(tmp_path: Path, devices: int) -> None:
    """Adam's moments, float32 and bfloat16, of a model whose parameters are placed; six devices divide none evenly."""
    config = waiting_run(tmp_path, *EVERYTHING, frozen_dtype="bfloat16")
    config = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, moment_dtype="bfloat16")
    )
    model = model_of(config.model)
    placement = Placement.build(MeshConfig(), jax.devices()[:devices], rules=model.family.partition_rules)
    params = placement.state(split_model(tiny_model(), ("visual",))[1])
    moments = placement.state(build_optimizer(config.optimizer, 10).init(params))
    reference = jax.tree.map(lambda x: x.astype("bfloat16"), params)

    def on_first(tree: object) -> int:
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))

    found = waiting_bytes(config, model, devices)
    assert found == {
        "optimizer": on_first(moments),
        "reference": on_first(reference),
        "parameters": on_first(params),
    }
    assert dict(step_of(config, devices).waiting) == found
    if devices == 1:
        numbers = sum(x.size for x in jax.tree.leaves(params))
        assert found["parameters"] == 4 * numbers
        assert found["reference"] == 2 * numbers
        assert found["optimizer"] - 6 * numbers in range(16)  # the counts of steps


@pytest.mark.parametrize("names", [("optimizer",), ("optimizer", "reference"), EVERYTHING])
def test_the_rollout_has_so_much_more_room_and_the_update_has_not(
    tmp_path: Path, names: tuple[Offloaded, ...]
) -> None:
    plain, step = step_of(waiting_run(tmp_path), 2), step_of(waiting_run(tmp_path, *names), 2)
    assert not plain.waiting
    assert set(step.waiting) == set(names)
    before, after = (sum(s.resident["rollout"].values()) for s in (plain, step))
    assert before - after == sum(step.waiting.values()) > 0
    assert step.resident["update"] == plain.resident["update"]
    for ours, theirs in zip(step.work, plain.work, strict=True):
        # Parameters are there until the copy that draws is made.
        made_of = step.waiting.get("parameters", 0) if ours.name == "copy for rollout" else 0
        assert ours.arguments == theirs.arguments + made_of


@pytest.mark.slow
def test_a_plan_says_what_the_host_needs_and_what_the_copies_take(tmp_path: Path) -> None:
    devices = jax.devices()[:2]
    only = frozenset({"copy", "prefill", "optimizer"})
    plain, plan = (
        make_plan(waiting_run(tmp_path, *names), hardware("h100x2"), devices=(devices, devices), only=only)
        for names in ((), EVERYTHING)
    )
    assert plain.waiting is None
    assert "In the host's memory" not in render(plain)
    assert "waiting" not in as_json(plain)
    waiting = plan.waiting
    assert waiting is not None
    peaks = [{row.name: row.peak for row in each.rows} for each in (plain, plan)]
    assert peaks[0]["prefill"] - peaks[1]["prefill"] == waiting.together
    assert peaks[0]["optimizer"] == peaks[1]["optimizer"]
    assert "In the host's memory while captions are drawn" in render(plan)
    assert "with the parameters on the devices" in render(plan)
    tight = dataclasses.replace(plan, waiting=dataclasses.replace(waiting, host_memory=waiting.on_host - 1))
    assert plan.fits
    assert not tight.fits
    assert "DOES NOT FIT: what waits takes 0.0 GiB of a host" in render(tight)
    kept = json.loads(json.dumps(as_json(plan)))["waiting"]
    assert kept["parts"] == dict(waiting.parts)
    assert kept["host_bytes"] == 2 * sum(waiting.parts.values())
    whole = dataclasses.replace(plan, left_out=())
    programs = sum(row.seconds * row.count for row in plan.rows)
    assert whole.step_seconds == pytest.approx(programs + waiting.seconds)
    assert "+ copies 0.0 s = " in render(whole)


def test_seconds_are_bytes_over_the_link_and_the_reference_goes_out_once_in_a_run() -> None:
    """By hand, for the paper's image run on 6 GPUs at 55 GB/s each way."""
    waiting = Waiting(
        parts={"optimizer": 14 * 10**9, "reference": 3 * 10**9, "parameters": 7 * 10**9},
        states=0,
        hardware=hardware("h800x6"),
        host_memory=144 * 10**9,
    )
    assert waiting.fits
    assert not dataclasses.replace(waiting, host_memory=144 * 10**9 - 1).fits
    assert waiting.together == 24 * 10**9
    assert waiting.on_host == 144 * 10**9
    assert waiting.out_seconds == pytest.approx(21 / 55)
    assert waiting.back_seconds == pytest.approx(24 / 55)
    assert waiting.seconds == pytest.approx(45 / 55)
    assert waiting.pool == 0


def test_a_pool_that_is_too_small_is_told_with_the_variable_that_lifts_it(tmp_path: Path) -> None:
    assert pool_needed(POOL) == 0
    assert pool_needed(POOL + 1) == 71  # 64 GiB and a tenth
    assert pool_needed(POOL + 1, limit=100 * GIB) == 0
    much = Waiting(
        parts={"optimizer": 60 * GIB}, states=10 * GIB, hardware=hardware("h800x1"), host_memory=256 * GIB
    )
    assert much.pool == 77
    assert dataclasses.replace(much, hardware=hardware("v5p-8")).pool == 0
    devices = jax.devices()[:2]
    plan = make_plan(
        waiting_run(tmp_path, "optimizer"),
        hardware("h100x2"),
        devices=(devices, devices),
        only=frozenset({"optimizer"}),
    )
    assert "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" not in render(plan)
    text = render(dataclasses.replace(plan, waiting=much))
    assert "and this is 70.0:\nset XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=77" in text


def test_the_papers_sizes_are_those_of_the_plans_that_were_compiled(tmp_path: Path) -> None:
    """docs/plans has the same bytes, as the compiler laid them out."""
    config = load_config(
        RunConfig, [PAPER / "image.yaml"], ["model.path=8B", f"rollout.offload=[{','.join(EVERYTHING)}]"]
    )
    for devices in (6, 8):
        plan = json.loads((PAPER.parents[1] / f"docs/plans/image-{devices}xh800.json").read_text())
        held = plan["resident"]["update"]
        found = waiting_bytes(config, model_of(config.model), devices)
        for name in EVERYTHING:
            np.testing.assert_allclose(found[name], held[name], rtol=1e-6)


def test_a_compiler_that_leaves_anything_on_the_devices_is_refused() -> None:
    require_on_host(100, 100)
    with pytest.raises(PlanningError, match=r"of the 2,000 bytes of rollout\.offload .* puts 1,999 into"):
        require_on_host(1_999, 2_000)


def test_waiting_is_among_what_is_tried_where_a_run_does_not_fit() -> None:
    def tried(*overrides: str) -> list[str]:
        config = load_config(RunConfig, [PAPER / "image.yaml"], list(overrides))
        names = [change.name for change in changes(config, hardware("h800x8"), 6)]
        return [name for name in names if name.startswith("rollout.offload")]

    assert tried() == [
        "rollout.offload=[optimizer]",
        "rollout.offload=[optimizer, reference]",
        "rollout.offload=[optimizer, reference, parameters]",
    ]
    assert tried("rollout.offload=[optimizer,reference]") == [
        "rollout.offload=[optimizer, reference, parameters]"
    ]
    assert tried("grpo.objective.beta=0") == [
        "rollout.offload=[optimizer]",
        "rollout.offload=[optimizer, parameters]",
    ]


def paper_video(*settings: str) -> RunConfig:
    return load_config(RunConfig, [PAPER / "video.yaml"], ["model.path=8B", *settings])


def test_a_group_waits_with_the_keys_and_values_of_its_prompt_and_captions() -> None:
    short = ("rollout.short_groups=32", "rollout.short_length=2048")
    config = paper_video(*short)
    model = model_of(config.model)
    found = outgrown_bytes(config, model)
    prompt = largest_sizes(config, model).tokens
    columns = columns_for(2048 + config.rollout.decode_steps_per_call)
    # 36 layers, 8 heads of keys and of values, 128 bfloat16 numbers each.
    caches = 36 * 2 * 8 * 128 * 2 * (prompt + 8 * columns)
    assert (
        1 <= found / config.grpo.groups_per_step / caches < 1.04
    )  # the rest: what was drawn, where draws stand
    processes = ["distributed.coordinator=a:1", "distributed.processes=2", "distributed.process_id=0"]
    assert outgrown_bytes(paper_video(*short, *processes), model) == found // 2
    assert outgrown_bytes(paper_video(), model) == 0
    # Where references are written, more may begin at once than a step has.
    fewer = paper_video(*short, "grpo.groups_per_step=16", "grpo.groups_per_micro_batch=16")
    assert outgrown_bytes(fewer, model) * config.grpo.groups_per_step == found * 32


def test_nothing_is_put_on_a_device() -> None:
    # Held, so that none of another test's goes meanwhile, and its id to another array.
    held = jax.live_arrays()
    before = {id(x) for x in held}
    config = paper_video("rollout.short_groups=32", "rollout.short_length=2048")
    outgrown_bytes(config, model_of(config.model))
    assert [x.shape for x in jax.live_arrays() if id(x) not in before] == []
