"""A tiny run planned from end to end for simulated devices, and what is said of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.tiny_policy import CONFIG
from vcap_jax.configuration import load_config
from vcap_jax.models.policy import ModelConfig
from vcap_jax.plan import targets
from vcap_jax.plan.abstract import abstract_policy, largest_sizes, model_of
from vcap_jax.plan.compiled import used_memory
from vcap_jax.plan.planning import layout, make_plan
from vcap_jax.plan.result import Plan
from vcap_jax.plan.tables import as_json, render, table
from vcap_jax.plan.trials import changes, try_changes
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Hardware, hardware

PAPER = Path(__file__).resolve().parents[2] / "configs" / "paper"
DEVICES = 2


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return load_config(
        RunConfig,
        [],
        [
            f"model.path={folder}",
            "data.max_pixels=64",
            "data.buckets={tokens: [16], frames: [1], patches: [16]}",
            "rollout={group_size: 2, max_completion_length: 8, groups_per_batch: 4, decode_steps_per_call: 4}",
            "grpo={groups_per_step: 8, groups_per_micro_batch: 2, logprob_chunk: 8, objective: {beta: 0.1}}",
        ],
    )


@pytest.fixture(scope="module")
def plan(config: RunConfig) -> Plan:
    devices = jax.devices()[:DEVICES]
    return make_plan(config, hardware("h100x2"), devices=(devices, devices))


def test_every_program_of_a_step_is_there_as_often_as_a_step_runs_it(plan: Plan) -> None:
    counts = {row.kind: row.count for row in plan.rows}
    assert counts == {
        "copy": 1,
        "vision": 4,
        "prefill": 4,
        "decode": 2 * 8,
        "log-probabilities": 4,
        "gradient": 4,
        "optimizer": 1,
    }


def test_bytes_are_those_of_the_state(plan: Plan) -> None:
    held = plan.resident["update"]
    # Adam's two moments are cut and typed as the parameters are; the step counters are a few bytes.
    assert 0 <= held["optimizer"] - 2 * held["parameters"] < 64
    assert held["gradients"] == held["parameters"] == held["reference"]
    rows = {row.name: row for row in plan.rows}
    optimizer = rows["optimizer"]
    assert optimizer.compiled.arguments == pytest.approx(
        held["parameters"] + held["optimizer"] + held["gradients"], abs=64
    )
    assert optimizer.peak >= sum(held.values())
    # Pictures are looked at while others decode, whose caches are beside the program.
    state = rows["prefill"].peak - rows["prefill"].resident - rows["prefill"].compiled.temporaries
    vision = rows.pop("vision")
    known = vision.resident + vision.compiled.temporaries
    assert known + 0.9 * state < vision.peak < known + 1.1 * state + vision.compiled.arguments
    for row in rows.values():
        # What a run keeps of a program's results is in the table of what stays.
        results = 0 if row.kind == "copy" else row.compiled.results
        assert row.peak == pytest.approx(
            row.resident + results + row.compiled.temporaries, abs=row.compiled.arguments + 1
        )
    # Each device has the features of its own prompts.
    patches, width = 16, 16
    features = patches // 4 * width * 4 * 2  # visual tokens, float32, the last layer's and one tap's
    assert vision.compiled.results == pytest.approx(features, abs=64)
    copy = next(row for row in plan.rows if row.name == "copy for rollout")
    assert copy.compiled.results == pytest.approx(plan.resident["rollout"]["rollout copy"], rel=0.01)


def test_the_roofline_takes_the_slowest(plan: Plan) -> None:
    for row in plan.rows:
        assert row.seconds == max(row.compute, row.memory, row.links, row.host) > 0
        assert getattr(row, row.bound) == row.seconds
    gradient = next(row for row in plan.rows if row.name == "gradient")
    # An H100's float32, half its bfloat16: the tiny run computes in float32.
    assert plan.config.model.dtype == "float32"
    assert gradient.compiled.cost.flops / 494.7e12 == gradient.compute
    assert gradient.compiled.cost.sent > 0  # parameters are gathered
    # Of decoding see below.
    assert plan.decoding_longest is not None
    others = sum(row.seconds * row.count for row in plan.rows if row.kind != "decode")
    assert plan.step_seconds == pytest.approx(others + plan.decoding_longest.seconds)


def test_no_program_takes_less_than_it_must(plan: Plan) -> None:
    rows = {row.kind: row for row in plan.rows}
    for name, row in rows.items():
        assert row.floor is not None, name
        assert row.reached is not None
        assert 0 < row.reached <= 1, name
        assert row.floor.flops <= row.compiled.cost.flops
        assert row.floor.moved <= row.compiled.cost.moved, name
    gradient, forward = rows["gradient"].floor, rows["log-probabilities"].compiled.cost.flops
    assert gradient is not None
    assert gradient.flops == min(3 * forward, rows["gradient"].compiled.cost.flops)
    assert plan.decoding_longest is not None
    others = sum(row.floor.seconds * row.count for row in plan.rows if row.floor and row.kind != "decode")
    assert plan.floor_seconds == pytest.approx(others + plan.decoding_longest.at_least)
    assert plan.step_seconds is not None
    assert plan.floor_seconds < plan.step_seconds


def test_a_token_reads_the_layers_once_each_prompt_once_and_every_caption(
    plan: Plan, config: RunConfig
) -> None:
    model = model_of(config.model)
    spec, policy = model.spec, abstract_policy(config, model, jax.devices("cpu")[0])
    layers, _ = model.family.apart(policy.graphdef, policy.trainable, policy.frozen)
    numbers = sum(x.size for x in jax.tree.leaves(layers)) + spec.text.hidden_size * spec.text.vocab_size
    # Two groups on each device: 16 prompt tokens and two captions of 8, a key and a value for each head and layer.
    tokens = 2 * (16 + 2 * 8)
    numbers += tokens * 2 * spec.text.num_key_value_heads * spec.text.head_dim * spec.text.num_hidden_layers
    decode = next(row for row in plan.rows if row.name.startswith("decode"))
    assert decode.floor is not None
    # The prompts' lengths and next places are two numbers more of each.
    assert decode.floor.moved == 4 * (numbers + 2 * 2)


def test_a_steps_decoding_is_that_of_the_runs_own_rounds(plan: Plan) -> None:
    """8 tokens are the mean and the longest here, and the least columns that a cache has: so two rounds of 8 tokens,
    all with the largest caches."""
    decode = next(row for row in plan.rows if row.kind == "decode")
    longest = plan.decoding_longest
    assert longest is not None
    assert (longest.mean, longest.longest, longest.through) == (8, 8, decode.count)
    assert longest.seconds == pytest.approx(decode.seconds * decode.count, rel=0.01)
    assert decode.floor is not None
    assert longest.at_least == pytest.approx(decode.floor.seconds * decode.count, rel=0.01)
    assert plan.decoding_usual == longest
    assert plan.usual_seconds == plan.step_seconds
    assert f"for {longest.through} tokens one after the" in render(plan)


def test_decoding_that_computes_longer_than_it_reads_counts_with_the_largest_caches(plan: Plan) -> None:
    computing = dataclasses.replace(plan, decoding_longest=None, decoding_usual=None)
    assert computing.step_seconds == pytest.approx(sum(row.seconds * row.count for row in plan.rows))
    assert computing.usual_seconds is None
    assert "Decoding is not bound by memory" in render(computing)


def test_a_plan_can_be_read_and_kept(plan: Plan) -> None:
    text = render(plan)
    assert "FITS" in text
    assert "Estimate" in text
    for row in plan.rows:
        assert f"| {row.name} " in text
    kept = json.loads(json.dumps(as_json(plan)))
    assert kept["fits"] is True
    assert kept["peak"] == plan.peak == max(program["peak"] for program in kept["programs"])


def test_a_plan_of_some_programs_gives_no_verdict_and_no_time_of_a_step(config: RunConfig) -> None:
    devices = jax.devices()[:DEVICES]
    part = make_plan(config, hardware("h100x2"), devices=(devices, devices), only=frozenset({"optimizer"}))
    assert part.left_out == (
        *("copy for rollout", "vision", "prefill", "decode (8 columns)", "log-probabilities", "gradient"),
    )
    assert part.step_seconds is None
    text = render(part)
    assert "Not compiled, of a step: copy for rollout, vision" in text
    assert "NO VERDICT" in text
    assert "6 of 7 programs" in text
    for whole in ("FITS", "At the roofline", "h an epoch"):
        assert whole not in text
    kept = json.loads(json.dumps(as_json(part)))
    assert kept["left_out"] == list(part.left_out)
    assert kept["fits"] is None
    assert kept["step_seconds"] is None
    # One program that is too large is enough to know.
    tight = dataclasses.replace(part, capacity=part.peak - 1)
    assert as_json(tight)["fits"] is False
    assert "DOES NOT FIT: optimizer" in render(tight)


def test_a_tpus_link_to_its_host_is_marked_as_an_estimate(plan: Plan) -> None:
    assert "GB/s to the host" not in render(plan)
    rows = tuple(dataclasses.replace(row, host=1e3) for row in plan.rows)
    on_tpu = dataclasses.replace(plan.layout, policy=hardware("v5e-4"))
    waiting = dataclasses.replace(plan, rows=rows, layout=on_tpu)
    assert "Estimate: 25 GB/s to the host's memory" in render(waiting)
    assert "host (estimate)" in render(waiting)
    assert as_json(waiting)["estimates"]["host_link"] == 25e9
    assert "host_link" not in as_json(plan)["estimates"]


def test_what_does_not_fit_is_mended_by_trying(config: RunConfig, plan: Plan) -> None:
    tight = dataclasses.replace(plan, capacity=plan.peak - 1)
    tried: list[tuple[str, Any]] = []

    def make(changed: RunConfig, on: Hardware, *, only: Any = None, **_: Any) -> Plan:
        tried.append((changed.model.remat, only))
        # Only recomputing the layers helps.
        return dataclasses.replace(tight, capacity=plan.peak + (changed.model.remat == "layer") - 1)

    trials = try_changes(tight, config, fraction=None, policy_devices=None, say=lambda _: None, make=make)
    assert trials[0].change == "model.remat=layer"
    assert [trial.peak <= trial.capacity for trial in trials] == [True] + [False] * (len(trials) - 1)
    # First the programs that were too large, then all of them.
    assert [only is None for remat, only in tried if remat == "layer"] == [False, True]
    assert "DOES NOT FIT" in render(tight, trials)
    assert "model.remat=layer" in render(tight, trials)


def test_a_plan_says_that_it_counts_a_rollout_that_servers_do(plan: Plan) -> None:
    assert "vLLM servers draw" not in render(plan)
    servers = dataclasses.replace(plan.config.rollout.vllm, urls=("http://127.0.0.1:8100",))
    rollout = dataclasses.replace(plan.config.rollout, engine="vllm", vllm=servers)
    served = dataclasses.replace(plan, config=dataclasses.replace(plan.config, rollout=rollout))
    assert "note: vLLM servers draw (rollout.engine)" in render(served)


def test_what_servers_draw_in_turns_needs_no_memory_of_the_policy(config: RunConfig, plan: Plan) -> None:
    """Decoding here would be too large, and nobody decodes here."""
    vllm = dataclasses.replace(plan.config.rollout.vllm, urls=("http://127.0.0.1:8100",), sleep_mode=True)
    rollout = dataclasses.replace(plan.config.rollout, engine="vllm", vllm=vllm)
    capacity = max(row.peak for row in plan.rows if row.phase == "update")
    rows = tuple(
        dataclasses.replace(row, peak=capacity + 1) if row.kind == "decode" else row for row in plan.rows
    )
    here = dataclasses.replace(plan, rows=rows, capacity=capacity)
    assert not here.fits
    assert "DOES NOT FIT: decode" in render(here)
    served = dataclasses.replace(here, config=dataclasses.replace(plan.config, rollout=rollout))
    assert served.fits
    assert as_json(served)["peak"] == capacity
    assert "FITS: the peak is" in render(served)
    tight = dataclasses.replace(served, capacity=capacity - 1)
    asked: list[Any] = []

    def make(changed: RunConfig, on: Hardware, *, only: Any = None, **_: Any) -> Plan:
        asked.append(only)
        return tight

    try_changes(tight, config, fraction=None, policy_devices=None, say=lambda _: None, make=make)
    assert all("decode" not in only for only in asked)


def test_a_plan_says_that_it_counts_one_picture_of_a_prompt_that_has_room_for_several(plan: Plan) -> None:
    paper = dataclasses.replace(plan.sizes, tokens=14_000, visual=6272)
    text = render(dataclasses.replace(plan, sizes=paper))
    assert "note: of one picture. Its tokens have room for 2 of the largest" in text
    assert "of one picture" not in render(
        dataclasses.replace(plan, sizes=dataclasses.replace(paper, tokens=8000))
    )


def test_changes_are_those_that_are_left() -> None:
    config = load_config(RunConfig, [PAPER / "image.yaml"])
    names = [change.name for change in changes(config, hardware("h800x8"), 6)]
    assert "the judge elsewhere" in names
    assert "hardware h800x16, the judge elsewhere" in names
    assert "model.remat=layer" not in names  # already so in this configuration
    assert all(
        change.config == config or change.hardware.name == "h800x8"
        for change in changes(config, hardware("h800x8"), 6)
    )


def test_adapters_are_tried_only_where_the_tower_is_frozen() -> None:
    for frozen, tried in (("[visual]", True), ("[]", False)):
        config = load_config(RunConfig, [PAPER / "image.yaml"], [f"model.frozen={frozen}"])
        names = [change.name for change in changes(config, hardware("h800x8"), None)]
        assert any(name.startswith("model.lora=") for name in names) == tried


def test_heads_are_cut_only_for_kernels_that_can_be_cut() -> None:
    config = load_config(RunConfig, [PAPER / "image.yaml"])
    chunked = load_config(RunConfig, [PAPER / "image.yaml"], ["model.attention=chunked"])

    def cut(config: RunConfig, target: str) -> bool:
        names = [change.name for change in changes(config, hardware(target), None)]
        return any(name.startswith("mesh.tensor=") for name in names)

    assert not cut(config, "h800x8")
    assert cut(chunked, "h800x8")
    assert cut(load_config(RunConfig, [PAPER / "image.yaml"], ["model.attention=auto"]), "v5p-16")


def test_groups_are_cut_to_the_devices() -> None:
    config = load_config(RunConfig, [PAPER / "image.yaml"])
    whole = layout(config, hardware("h800x8"), None)
    assert (whole.groups, whole.batch, whole.micro, whole.judge, whole.note) == (32, 32, 8, 0, "")
    six = layout(config, hardware("h800x8"), 6)
    # The step keeps its groups: five whole micro-batches and a short one. Five slots on each, which is what divides.
    assert (six.groups, six.batch, six.micro, six.judge) == (32, 30, 6, 2)
    assert "rollout.groups_per_batch=30 grpo.groups_per_micro_batch=6" in six.note
    apart = load_config(RunConfig, [PAPER / "image.yaml"], ["rollout.groups_per_batch=18"])
    three = layout(apart, hardware("h800x8"), 6)
    assert (three.batch, three.micro) == (18, 6)
    with pytest.raises(ValueError, match="judge is elsewhere"):
        layout(config, hardware("v5p-16"), 6)
    with pytest.raises(ValueError, match="8 GPUs"):
        layout(config, hardware("h800x8"), 9)


@pytest.mark.parametrize(
    ("modality", "visual", "tokens"), [("image", 6272, 14_000), ("video", 25_600, 32_000)]
)
def test_the_largest_prompt_is_the_papers(modality: str, visual: int, tokens: int) -> None:
    config = load_config(RunConfig, [PAPER / f"{modality}.yaml"])
    sizes = largest_sizes(config, model_of(config.model))
    assert (sizes.visual, sizes.tokens, sizes.captions) == (visual, tokens, 8)


def test_a_plan_without_a_visual_budget_is_refused() -> None:
    config = load_config(RunConfig, [PAPER / "image.yaml"], ["data.max_pixels=null"])
    with pytest.raises(ValueError, match=r"data\.max_pixels"):
        largest_sizes(config, model_of(ModelConfig(path="8B")))


def test_models_by_folder_and_by_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert (
        model_of(ModelConfig(path=str(tmp_path))).spec.text.vocab_size == CONFIG["text_config"]["vocab_size"]
    )
    assert model_of(ModelConfig(path="8B")) == model_of(ModelConfig(path="Qwen3-VL-8B-Instruct"))
    assert model_of(ModelConfig(path="8B")).spec.text.num_hidden_layers == 36
    with pytest.raises(ValueError, match="published size"):
        model_of(ModelConfig(path="no/such/folder"))
    for other in ("Qwen2.5-VL-32B-Instruct", "/models/InternVL3-8B"):
        with pytest.raises(ValueError, match="published size"):
            model_of(ModelConfig(path=other))


def test_what_a_tpu_compiler_says_of_too_large_a_program() -> None:
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory. Used 17.25G of 15.75G hbm."
    )
    assert used_memory(message) == int(17.25 * 2**30)
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (118.5G) "
        "exceeds available HBM (95.74G)."
    )
    assert used_memory(message) == int(118.5 * 2**30)
    assert used_memory("INTERNAL: something else") is None


def test_a_missing_compiler_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda _: None)
    for name in ("h100x1", "v5p-8"):
        machine = hardware(name)
        with pytest.raises(targets.MissingPlugin, match=r"install -e \"\.\[plan\]\""):
            targets.devices(machine.chip, machine.topology)


def test_tables_line_up() -> None:
    lines = table(["a", "b"], [["long name", "1"], ["x", "1,000"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].startswith("|-")
    assert lines[1].endswith(":|")
