"""What a plan says of a run on several hosts, and of one on a single device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from tests.plan.tiny_run import tiny_run
from tests.tiny_policy import CONFIG
from vcap_jax.configuration import load_config
from vcap_jax.plan.abstract import abstract_policy, largest_sizes, model_of
from vcap_jax.plan.compiled import compile_program
from vcap_jax.plan.programs import step_programs
from vcap_jax.plan.work import FORWARD
from vcap_jax.rollout.config import Offloaded
from vcap_jax.run.config import RunConfig


def test_each_of_several_hosts_gets_the_parameters_as_it_decodes_with_them(tmp_path: Path) -> None:
    """The run's own program: float32 parameters cut over all hosts come whole, the decoder's in bfloat16."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = load_config(
        RunConfig,
        [],
        [
            f"model={{path: {tmp_path}, dtype: bfloat16, frozen_dtype: bfloat16}}",
            "data.max_pixels=64",
            "data.buckets={tokens: [16], frames: [1], patches: [16]}",
            "rollout={group_size: 2, max_completion_length: 8, groups_per_batch: 4, decode_steps_per_call: 4}",
            "grpo={groups_per_step: 8, groups_per_micro_batch: 4, logprob_chunk: 8, objective: {beta: 0.1}}",
        ],
    )
    model = model_of(config.model)
    policy = abstract_policy(config, model, jax.devices("cpu")[0])
    devices = jax.devices()[:4]
    step = step_programs(
        config,
        model,
        policy,
        largest_sizes(config, model),
        8,
        devices=devices,
        host_devices=devices[:2],
        hosts=2,
    )
    work = next(work for work in step.work if work.name == "parameters of this host")
    numbers = [sum(leaf.size for leaf in jax.tree.leaves(t)) for t in (policy.trainable, policy.frozen)]
    # The rest is given up when it is copied.
    assert step.resident["rollout"]["parameters of this host"] == 2 * numbers[1]
    assert step.resident["update"]["frozen of this host"] == 2 * numbers[1]
    copying = next(work for work in step.work if work.name == "copy for rollout")
    assert copying.arguments == 2 * numbers[0]
    compiled = compile_program(work.lower())
    assert compiled.results == pytest.approx(2 * numbers[0], rel=0.05)
    assert compiled.arguments == pytest.approx(step.resident["rollout"]["parameters"], rel=0.05)


def test_a_step_drawn_ahead_has_another_pass_and_two_steps_prompts(tmp_path: Path) -> None:
    device = jax.devices("cpu")[0]
    shown = []
    for ahead in (0, 1):
        config = tiny_run(tmp_path)
        config = replace(
            config,
            rollout=replace(config.rollout, ahead=ahead),
            grpo=replace(config.grpo, groups_per_micro_batch=1),
        )
        model = model_of(config.model)
        step = step_programs(
            config,
            model,
            abstract_policy(config, model, device),
            largest_sizes(config, model),
            8,
            devices=[device],
            host_devices=[device],
            hosts=1,
        )
        passes = sum(work.count for work in step.work if work.name == FORWARD)
        shown.append((passes, step.resident["rollout"]["prompts and features"]))
    (passes, held), (more_passes, more_held) = shown
    assert (passes, more_passes) == (2, 4)  # of two micro-batches
    assert more_held == 2 * held > 0


@pytest.mark.parametrize("override", ["model.dtype=float32", "model.dtype=bfloat16", "model.lora.rank=2"])
@pytest.mark.parametrize("offload", [(), ("parameters",)])
def test_on_one_device_what_is_taken_without_a_copy_is_counted_once(
    tmp_path: Path, override: str, offload: tuple[Offloaded, ...]
) -> None:
    device = jax.devices("cpu")[0]
    config = tiny_run(tmp_path, override)
    config = replace(config, rollout=replace(config.rollout, offload=offload))
    model = model_of(config.model)
    policy = abstract_policy(config, model, device)
    step = step_programs(
        config,
        model,
        policy,
        largest_sizes(config, model),
        8,
        devices=[device],
        host_devices=[device],
        hosts=1,
    )
    copying = next(work for work in step.work if work.name == "copy for rollout").lower()
    made = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(copying.out_info))
    held = step.resident["rollout"]["rollout copy"]
    if offload and override == "model.dtype=float32":
        assert held > made  # trained parameters that are taken are on the device although the others wait
    else:
        assert held == made


@pytest.mark.slow
def test_short_caches_have_programs_of_their_own(tmp_path: Path) -> None:
    """Four groups: all at once up to 4 tokens, then two at a time up to 8."""
    device = jax.devices("cpu")[0]
    config = tiny_run(tmp_path)
    found = {}
    for short in (0, 4):
        length = 4 if short else 0
        chosen = replace(
            config,
            rollout=replace(config.rollout, short_groups=short, short_length=length, decode_steps_per_call=2),
            grpo=replace(config.grpo, groups_per_step=4, groups_per_micro_batch=1),
        )
        model = model_of(chosen.model)
        step = step_programs(
            chosen,
            model,
            abstract_policy(chosen, model, device),
            largest_sizes(chosen, model),
            8,
            devices=[device],
            host_devices=[device],
            hosts=1,
        )
        found[short] = {work.name: work for work in step.work}
        assert (step.decoding.short is not None) == bool(short)
    plain, both = found[0], found[4]
    assert set(both) - set(plain) == {"decode (4 columns)"}
    assert plain["decode (8 columns)"].count == 2 * 8
    assert (both["decode (4 columns)"].count, both["decode (8 columns)"].count) == (4, 2 * 4)
    assert both["decode (8 columns)"].arguments == plain["decode (8 columns)"].arguments
    # Prompts come into the short caches, of which there are four.
    assert both["prefill"].arguments == both["decode (4 columns)"].arguments
    assert both["vision"].arguments != plain["vision"].arguments
    for name in ("decode (4 columns)", "decode (8 columns)", "prefill"):
        assert compile_program(both[name].lower()).temporaries > 0
