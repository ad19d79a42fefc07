"""What is tried for a quicker step of a run that fits, and of larger hardware for one that does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.plan.tiny_run import tiny_run
from vcap_jax.configuration import load_config
from vcap_jax.plan.planning import layout, make_plan
from vcap_jax.plan.result import Plan
from vcap_jax.plan.tables import render
from vcap_jax.plan.trials import backward_changes, changes, joined, rollout_changes, try_speedups
from vcap_jax.plan.turns import Turns
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Hardware, hardware

PAPER = Path(__file__).resolve().parents[2] / "configs" / "paper"
DEVICES = 2


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Two groups, one after the other on... two devices: there is nothing to gain from more side by side."""
    devices = jax.devices()[:DEVICES]
    return make_plan(
        tiny_run(tmp_path_factory.mktemp("model")), hardware("h100x2"), devices=(devices, devices)
    )


def paper(modality: str, *changed: str) -> RunConfig:
    return load_config(RunConfig, [PAPER / f"{modality}.yaml"], list(changed))


def test_the_backward_pass_may_store_more_than_it_does() -> None:
    names = [change.name for change in backward_changes(paper("image"))]
    assert names == [
        f"model.remat={name}"
        for name in ("offload_attention", "attention", "offload_mlp", "mlp", "dots", "dots_attention", "none")
    ]
    assert backward_changes(paper("video"))[0].config.model.remat == "offload_attention"
    assert backward_changes(paper("image", "model.remat=none")) == []


def test_more_groups_are_tried_where_they_save_a_round() -> None:
    """32 groups, 6 GPUs, 3 on each: two rounds. All at once needs 6 on each, with ever more in the host's memory."""
    six = paper("image", "rollout.groups_per_batch=18", "grpo.groups_per_micro_batch=6")
    (alternatives,) = rollout_changes(six, 6)
    assert [change.name for change in alternatives] == [
        "rollout.groups_per_batch=36",
        *(
            f"rollout.groups_per_batch=36 'rollout.offload=[{names}]'"
            for names in ("optimizer", "optimizer, reference", "optimizer, reference, parameters")
        ),
    ]
    assert alternatives[-1].config.rollout.offload == ("optimizer", "reference", "parameters")
    # One on each: six rounds; 6, 3, 2 on each make one, two, three; 4 and 5 make no fewer rounds than 3.
    one = paper("video", "rollout.groups_per_batch=6", "grpo.groups_per_micro_batch=6")
    assert [row[0].config.rollout.groups_per_batch for row in rollout_changes(one, 6)] == [36, 18, 12]
    assert rollout_changes(paper("image"), 8) == []  # a whole step at once already
    short = paper("video", "rollout.short_groups=32", "rollout.short_length=2048")
    assert rollout_changes(short, 8) == []


def test_programs_that_were_not_compiled_anew_are_those_of_the_plan(plan: Plan) -> None:
    gradient = next(row for row in plan.rows if row.kind == "gradient")
    half = dataclasses.replace(gradient, compute=0.0, memory=0.0, links=0.0, host=gradient.seconds / 2)
    part = dataclasses.replace(
        plan, rows=(half,), left_out=("decode (8 columns)",), decoding_longest=None, decoding_usual=None
    )
    whole = joined(plan, part)
    assert [row.name for row in whole.rows] == [row.name for row in plan.rows]
    assert whole.step_seconds is not None
    assert plan.step_seconds is not None
    assert plan.step_seconds - whole.step_seconds == pytest.approx(gradient.seconds * gradient.count / 2)
    assert whole.decoding_longest == plan.decoding_longest


def test_each_change_compiles_what_it_alters_and_the_quickest_comes_first(plan: Plan) -> None:
    tried: list[tuple[str, frozenset[str]]] = []

    def make(changed: RunConfig, on: Hardware, *, only: frozenset[str], **_: Any) -> Plan:
        """Storing attention takes half the gradient's time, what the MLP computes does not fit."""
        tried.append((changed.model.remat, only))
        gradient = next(row for row in plan.rows if row.kind == "gradient")
        if changed.model.remat.endswith("attention"):
            quick = dataclasses.replace(
                gradient, compute=0.0, memory=0.0, links=0.0, host=gradient.seconds / 2
            )
            return dataclasses.replace(plan, rows=(quick,), left_out=("decode",))
        large = dataclasses.replace(gradient, peak=plan.capacity + 1)
        return dataclasses.replace(plan, rows=(large,), left_out=("decode",))

    config = dataclasses.replace(plan.config, model=dataclasses.replace(plan.config.model, remat="layer"))
    trials = try_speedups(plan, config, fraction=None, policy_devices=None, say=lambda _: None, make=make)
    assert tried == [
        (name, frozenset({"gradient"})) for name in ("offload_attention", "attention", "offload_mlp")
    ]
    assert [trial.change for trial in trials] == [
        f"model.remat={name}" for name in ("offload_attention", "attention", "offload_mlp")
    ]
    assert trials[0].step_seconds is not None
    assert plan.step_seconds is not None
    assert trials[0].step_seconds < plan.step_seconds
    assert trials[-1].step_seconds is None
    assert trials[-1].peak > trials[-1].capacity
    text = render(plan, trials)
    assert "Tried for a quicker step" in text
    assert "FITS" in text


def test_a_change_that_leaves_servers_no_room_in_their_turn_does_not_fit(plan: Plan) -> None:
    """The judge sleeps on the same devices: what the policy's programs need more, its server has less."""
    memory = plan.layout.policy.chip.memory
    turns = Turns(
        judge=True,
        rollout=False,
        policy=plan.peak,
        share=None,
        weights=memory // 4,
        hardware=plan.layout.policy,
    )
    shared = dataclasses.replace(plan, turns=turns)
    assert shared.fits

    def make(changed: RunConfig, on: Hardware, *, only: frozenset[str], **_: Any) -> Plan:
        gradient = next(row for row in plan.rows if row.kind == "gradient")
        large = dataclasses.replace(gradient, peak=int(0.8 * memory))
        assert large.peak < plan.capacity
        return dataclasses.replace(plan, rows=(large,), left_out=("decode",))

    config = dataclasses.replace(plan.config, model=dataclasses.replace(plan.config.model, remat="layer"))
    trials = try_speedups(shared, config, fraction=None, policy_devices=None, say=lambda _: None, make=make)
    assert [(trial.change, trial.fits, trial.step_seconds) for trial in trials] == [
        ("model.remat=offload_attention", False, None)
    ]
    assert trials[0].peak < trials[0].capacity
    line = next(
        line for line in render(shared, trials).splitlines() if "model.remat=offload_attention" in line
    )
    assert [cell.strip() for cell in line.split("|")][3] == "no"


def test_of_what_may_wait_in_the_hosts_memory_the_least_that_makes_room_is_taken(plan: Plan) -> None:
    asked: list[tuple[str, ...]] = []

    def make(changed: RunConfig, on: Hardware, *, only: frozenset[str], **_: Any) -> Plan:
        if only == {"gradient"}:
            raise ValueError("not this one")
        asked.append(changed.rollout.offload)
        fits = "reference" in changed.rollout.offload
        rows = [row for row in plan.rows if row.kind in only]
        rows[0] = dataclasses.replace(rows[0], peak=plan.capacity + (0 if fits else 1))
        return dataclasses.replace(plan, rows=tuple(rows), left_out=("gradient",))

    config = dataclasses.replace(
        paper("image", "rollout.groups_per_batch=18", "grpo.groups_per_micro_batch=6"),
    )
    six = dataclasses.replace(plan, layout=dataclasses.replace(plan.layout, policy=hardware("h100x8")))
    said: list[str] = []
    trials = try_speedups(six, config, fraction=None, policy_devices=None, say=said.append, make=make)
    assert asked == [(), ("optimizer",), ("optimizer", "reference")]
    assert trials[0].change == "rollout.groups_per_batch=32 'rollout.offload=[optimizer, reference]'"
    assert [trial.step_seconds is None for trial in trials] == [False, True, True]
    assert any("is not possible: not this one" in text for text in said)


def test_a_plan_says_where_the_next_second_is(plan: Plan) -> None:
    seconds = plan.program_seconds()
    most = max(seconds, key=lambda name: seconds[name][0])
    assert f"Most of a step: {most} {seconds[most][0]:.1f} s" in render(plan)
    assert sum(total for total, _ in seconds.values()) == pytest.approx(plan.step_seconds)
    assert sum(least for _, least in seconds.values()) == pytest.approx(plan.floor_seconds)


@pytest.mark.parametrize(
    ("target", "policy", "name", "policies"),
    [
        ("h800x4", 3, "hardware h800x8", 7),
        ("h800x8", 6, "hardware h800x16, the judge elsewhere", 16),
        ("h800x8", None, "hardware h800x16", 16),
        ("h800x8", 8, "hardware h800x16", 16),
        ("v5p-16", None, "hardware v5p-32", 16),
    ],
)
def test_on_larger_hardware_the_policy_has_what_is_more(
    target: str, policy: int | None, name: str, policies: int
) -> None:
    """With as many GPUs as before nothing could come of it but the same plan."""
    larger = changes(paper("image"), hardware(target), policy)[-1]
    assert larger.name == name
    assert layout(larger.config, larger.hardware, larger.policy_devices).policy.devices == policies
