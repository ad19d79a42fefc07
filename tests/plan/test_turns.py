"""What turns on shared devices come to, counted by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.plan.tiny_run import tiny_run
from vcap_jax.configuration import load_config
from vcap_jax.plan.abstract import model_of
from vcap_jax.plan.planning import make_plan
from vcap_jax.plan.tables import as_json, render
from vcap_jax.plan.turns import Turns, server_weights, take_turns, turns_of
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import GIB, hardware

PAPER = Path(__file__).resolve().parents[2] / "configs" / "paper"
ROLLOUT = ["rollout.engine=vllm", "rollout.vllm.urls=[http://127.0.0.1:8100]", "rollout.vllm.sleep_mode=true"]
JUDGE = ["judge.urls=[http://127.0.0.1:8000]", "judge.sleep_mode=true"]
NODE = hardware("h800x8")
LINK = NODE.chip.host_link


def paper(*overrides: str) -> RunConfig:
    return load_config(RunConfig, [PAPER / "image.yaml"], ["model.path=8B", *overrides])


def turns(**changes: object) -> Turns:
    given = Turns(judge=True, rollout=True, policy=40 * GIB, share=None, weights=16 * GIB, hardware=NODE)
    return dataclasses.replace(given, **changes)  # type: ignore[arg-type]


def test_jax_keeps_its_peak_and_servers_have_the_rest_in_turns() -> None:
    total = NODE.chip.memory
    found = turns(policy=int(0.581 * total))
    assert found.policy_share == 0.59
    assert found.server_share == pytest.approx(NODE.chip.usable - 0.59)
    assert found.caches == pytest.approx((NODE.chip.usable - 0.59) * total - 16 * GIB, abs=2)
    assert found.fits
    given = turns(share=0.8)
    assert given.policy_share == 0.8
    assert not given.fits


def test_weights_are_moved_once_each_way_at_the_links_peak() -> None:
    # A judge's leave and come back; the policy's leave in eight parts and go into every server.
    assert turns(rollout=False).seconds == pytest.approx(2 * 16 * GIB / LINK)
    assert turns(judge=False).seconds == pytest.approx((1 / 8 + 1) * 16 * GIB / LINK)
    assert turns().seconds == pytest.approx((3 + 1 / 8) * 16 * GIB / LINK)


def test_sleeping_judges_and_the_files_of_weights_take_the_hosts_memory() -> None:
    judges = round(1.4 * 8 * 16 * GIB)  # pinned memory comes in powers of two
    assert turns(rollout=False).host_bytes == judges
    assert turns(judge=False).host_bytes == 16 * GIB
    assert turns().host_bytes == judges + 16 * GIB


def test_the_policy_needs_no_memory_for_captions_that_servers_draw() -> None:
    config = paper(*ROLLOUT, *JUDGE)
    model, peaks = model_of(config.model), {"rollout": [60 * GIB], "update": [40 * GIB, 47 * GIB]}
    assert turns_of(config, model, peaks, share=None, hardware=NODE).policy == 47 * GIB
    drawn_here = turns_of(paper(*JUDGE), model, peaks, share=None, hardware=NODE)
    assert (drawn_here.policy, drawn_here.rollout, drawn_here.judge) == (60 * GIB, False, True)
    # Qwen3-VL-8B as published, in bfloat16.
    assert server_weights(config, model) == pytest.approx(17.5e9, rel=0.01)
    assert take_turns(config)
    assert not take_turns(paper())


@pytest.mark.long
def test_a_plan_tells_of_turns_where_servers_take_them(tmp_path: Path) -> None:
    import jax

    config = tiny_run(tmp_path)
    config = dataclasses.replace(
        config,
        judge=dataclasses.replace(config.judge, urls=("http://127.0.0.1:8000",), sleep_mode=True),
    )
    there = jax.devices()[:1], jax.devices()[:1]
    plan = make_plan(config, hardware("h100x1"), devices=there)
    told = render(plan)
    assert "In turns on 1 devices: policy, judge. " in told
    assert "the judge on the same in turns" in told
    assert "serve.py --check counts both" in told
    assert as_json(plan)["turns"]["policy_bytes"] == plan.peak  # type: ignore[index]
    assert plan.fits
    full = make_plan(config, hardware("h100x1"), devices=there, fraction=0.92)
    assert not full.fits
    assert "beside JAX's share a server in its turn has 0.0 GiB" in render(full)
    plain = make_plan(tiny_run(tmp_path), hardware("h100x1"), devices=there)
    assert plain.turns is None
    assert "turns" not in as_json(plain)
