"""Settings that cannot be trained with are refused before any work, in a line that names them and the remedy."""

from __future__ import annotations

import argparse
import dataclasses
import re
import runpy
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests.processes_in_threads import in_threads
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.kernels import attention
from vcap_jax.kernels.attention import UnsupportedAttention
from vcap_jax.kernels.attention import backends as attention_choice
from vcap_jax.models.policy import ModelConfig
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.recipes.grpo import run
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run import checks
from vcap_jax.run import setup as preparing
from vcap_jax.run.checks import (
    check_equal_shares,
    check_offload,
    check_run,
    check_same_attention,
    check_sft_run,
)
from vcap_jax.run.command_line import config_parser, run_command
from vcap_jax.run.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["world.train_scenes=2", "world.heldout_scenes=1", "mesh.fsdp=1", "compilation_cache=null"]


def arguments(*overrides: str) -> argparse.Namespace:
    embedded = ["--config", str(ROOT / "configs" / "embedded" / "image.yaml")]
    return config_parser("A command.").parse_args([*embedded, *SMALL, *overrides])


def test_batches_that_processes_cannot_share_evenly_are_refused_by_name() -> None:
    placement = Placement.build(MeshConfig(), jax.devices()[:4])
    check_equal_shares({"sft.groups_per_micro_batch": 8}, Processes(0, 2), placement)
    check_equal_shares({"sft.groups_per_micro_batch": 2}, ALONE, placement)
    with pytest.raises(ConfigError, match=r"sft\.groups_per_micro_batch is 2.*4 devices.*a multiple of 4"):
        check_equal_shares({"sft.groups_per_micro_batch": 2}, Processes(0, 2), placement)


def test_a_real_batch_that_the_accelerators_of_one_process_cannot_share_is_refused() -> None:
    """Every one of them would compute all groups; the embedded world may, for it is small."""
    gpus = np.array([SimpleNamespace(platform="gpu")] * 6).reshape(1, 2, 3, 1)
    mesh = SimpleNamespace(shape={"data": 1, "fsdp": 2, "odd": 3, "tensor": 1}, devices=gpus)
    placement: Any = SimpleNamespace(mesh=mesh)
    check_equal_shares({"rollout.groups_per_batch": 6}, ALONE, placement)
    check_equal_shares({"rollout.groups_per_batch": 8}, ALONE, placement, embedded=True)
    with pytest.raises(ConfigError, match=r"rollout\.groups_per_batch is 8.*6 devices.*a multiple of 6"):
        check_equal_shares({"rollout.groups_per_batch": 8}, ALONE, placement)


@pytest.mark.parametrize(
    ("overrides", "count", "message"),
    [
        (
            ["grpo.groups_per_step=5", "grpo.groups_per_micro_batch=8", "rollout.groups_per_batch=8"],
            2,
            "grpo.groups_per_step is 5, of 2 processes together.*a multiple of 2",
        ),
        (
            ["rollout.engine=vllm", "rollout.vllm.urls=[http://127.0.0.1:8100]"],
            2,
            "rollout.engine is vllm in a run of 2 processes.*rollout.engine=jax",
        ),
        (
            ["judge.sleep_mode=true", "judge.urls=[http://127.0.0.1:8000]"],
            2,
            "judge.sleep_mode is true in a run of 2 processes.*judge.sleep_mode=false",
        ),
        (
            ["judge.sleep_mode=true", "judge.urls=[http://127.0.0.1:8000]", "rollout.ahead=1"],
            1,
            "rollout.ahead draws the next captions while the judge works.*rollout.ahead=0",
        ),
        (
            ["judge.sleep_mode=true", "judge.urls=[http://judge:8000]"],
            1,
            r"judge.sleep_mode is for servers on the policy's own GPUs.*http://127\.0\.0\.1:PORT",
        ),
        (
            [
                "evaluation.other_judge.urls=[http://127.0.0.1:8000]",
                "evaluation.other_judge.sleep_mode=true",
            ],
            1,
            "evaluation.other_judge.sleep_mode is true, and only the run's own judge takes turns",
        ),
        (["rollout.ahead=1"], 2, "rollout.ahead is 1 in a run of 2 processes.*rollout.ahead=0"),
        (
            ["rollout.engine=vllm", "rollout.vllm.urls=[http://127.0.0.1:8100]", "rollout.ahead=1"],
            1,
            "rollout.ahead is for the JAX sampler, and rollout.engine is vllm.*rollout.ahead=0",
        ),
        (
            [
                "rollout.engine=vllm",
                "rollout.vllm.urls=[http://127.0.0.1:8100]",
                "rollout.offload=[optimizer]",
            ],
            1,
            r"rollout.offload is \['optimizer'\].*rollout.engine is vllm.*Set rollout.offload=\[\].*sleep_mode=true",
        ),
        (
            ["rollout.offload=[optimizer,reference]", "grpo.objective.beta=0"],
            1,
            "rollout.offload is .*, but grpo.objective.beta is 0: there is no reference.*leave reference out",
        ),
        (["rollout.offload=[optimizer,optimizer]"], 1, "rollout.offload .*name each once"),
        (
            ["rollout.offload=[moments]"],
            1,
            "rollout.offload .*expected list.*optimizer.*reference.*parameters",
        ),
        (["rollout.ahead=2"], 1, r"rollout.ahead .*expected int in \[0, 1\], given 2"),
        (
            ["rollout.vllm.urls=[http://10.0.0.1:8100]"],
            1,
            r"rollout.vllm.urls .*must be http://127.0.0.1:PORT, given .*http://10.0.0.1:8100",
        ),
        (["mesh.fsdp=64"], 1, "mesh data=1 fsdp=64 tensor=1 does not fit 8 devices"),
        (["mesh.data=3", "mesh.fsdp=-1"], 1, "mesh data=3 fsdp=-1 tensor=1 does not fit 8 devices"),
        (
            [
                "model.param_dtype=bfloat16",
                "grpo.groups_per_step=16",
                "grpo.groups_per_micro_batch=8",
                "rollout.groups_per_batch=8",
            ],
            1,
            "gradients of the 2 micro-batches.*model.param_dtype=float32",
        ),
        (["seed=4294967296"], 1, r"seed .*expected int in \[0, 4294967296\), given 4294967296"),
        (["rollout.group_size=1"], 1, "rollout.group_size is 1.*at least 2"),
        (["logging.save_every=0"], 1, "logging.save_every .*expected int >= 1, given 0"),
        (["data.threads=0"], 1, r"data.threads .*expected int >= 1 \| null, given 0"),
    ],
)
def test_what_cannot_be_trained_with_is_refused_before_any_work(
    overrides, count, message, tmp_path, capsys
) -> None:
    """By the run itself, which has left nothing in its folder by then."""

    def command(config: RunConfig) -> int:
        run(config, RunFolder(tmp_path), say=print, processes=Processes(0, count))
        return 0

    assert run_command(arguments(*overrides), command) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: a problem in the configuration:\n  - ")
    (line,) = shown.err.splitlines()[1:]
    assert re.search(message, line), line
    assert not shown.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.frozen=[visual,txt]"], "model.frozen names 'txt'.*they start with text, visual"),
        pytest.param(
            ["model.frozen=[visual,text]"],
            "model.frozen = .* leaves nothing to train",
            marks=pytest.mark.slow,
        ),
        (["model.lora={adapter: /nowhere}"], "/nowhere"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_when_it_is_read(overrides, message, tmp_path, capsys) -> None:
    def command(config: RunConfig) -> int:
        run(config, RunFolder(tmp_path), say=lambda _: None)
        return 0

    assert run_command(arguments(*overrides), command) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert re.search(message, err), err
    assert not (tmp_path / "references").exists()


@pytest.mark.parametrize(
    ("platform", "flags", "exactly"),
    [
        ("cpu", "", True),
        ("tpu", "", True),
        ("gpu", "", False),
        ("gpu", "--xla_gpu_deterministic_ops=false --xla_dump_to=x", False),
        ("gpu", "--xla_gpu_deterministic_ops=true", True),
        ("gpu", "--xla_dump_to=x --xla_gpu_deterministic_ops --xla_gpu_autotune_level=4", True),
        ("gpu", "--xla_gpu_exclude_nondeterministic_ops=True", True),
        ("gpu", "--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false", False),
    ],
)
def test_only_a_gpu_without_its_flag_adds_in_any_order(platform: str, flags: str, exactly: bool) -> None:
    assert checks.repeats_exactly(platform, flags) == exactly


def test_groups_of_one_are_for_whoever_compares_nothing(caplog) -> None:
    check_sft_run(load_config(RunConfig, [], ["rollout.group_size=1", "mesh.fsdp=1"]), ALONE)


def test_supervised_training_is_refused_for_the_same_reasons(caplog) -> None:
    config = load_config(RunConfig, [], ["model.param_dtype=bfloat16", "mesh.fsdp=1"])
    with pytest.raises(ConfigError, match=r"8 micro-batches of a step.*sft\.groups_per_step 32"):
        check_sft_run(config, ALONE)
    single = load_config(
        RunConfig, [], ["model.param_dtype=bfloat16", "mesh.fsdp=1", "sft.groups_per_micro_batch=32"]
    )
    check_sft_run(single, ALONE)
    assert "model.param_dtype=float32" in caplog.text
    with pytest.raises(ConfigError, match=r"mesh data=1 fsdp=99"):
        check_sft_run(load_config(RunConfig, [], ["mesh.fsdp=99"]), ALONE)


@pytest.mark.parametrize("odd", [None, 0, 2])
def test_processes_that_would_compute_attention_differently_are_told_apart(odd: int | None) -> None:
    def told(processes: Processes) -> str:
        try:
            check_same_attention("chunked" if processes.index == odd else "native", processes)
        except UnsupportedAttention as error:
            return str(error)
        return ""

    one, two, three = in_threads(3, told)
    assert one == two == three
    if odd is None:
        assert not one
    else:
        assert f"chunked in process {odd} on {socket.gethostname()}" in one
        assert f"native in process 1 on {socket.gethostname()}" in one
        assert "model.attention=chunked" in one


def test_a_policy_is_prepared_alike_by_all_or_by_none(tmp_path, monkeypatch) -> None:
    """What one host lacks is found before anything is captioned: here the second of two has no compiler."""
    config = load_config(RunConfig, [ROOT / "configs" / "embedded" / "image.yaml"], SMALL)
    (tmp_path / "run").mkdir()
    mine = threading.local()
    load = preparing.load_start

    def load_start(settings: RunConfig, *rest, **more):
        name = ("native", "chunked")[mine.index]
        model = dataclasses.replace(settings.model, attention=name)
        return load(dataclasses.replace(settings, model=model), *rest, **more)

    monkeypatch.setattr(preparing, "load_start", load_start)

    def told(processes: Processes) -> str:
        mine.index = processes.index
        with pytest.raises(UnsupportedAttention) as raised:
            preparing.prepare(config, RunFolder(tmp_path / "run"), lambda _: None, processes=processes)
        return str(raised.value)

    one, two = in_threads(2, told)
    assert one == two
    assert "native with native for new tokens in process 0" in one
    assert "chunked with dense for new tokens in process 1" in one


@pytest.mark.long
def test_a_gradient_without_the_kernel_that_was_chosen_ends_the_run(tmp_path, capsys, monkeypatch) -> None:
    """Of the kernel nothing is to be found in the compiled program, as it is called otherwise here."""
    try:
        attention.kernel("native").check("float32", 16)
    except UnsupportedAttention as error:
        pytest.skip(str(error))
    monkeypatch.setitem(attention_choice.CUSTOM_CALLS, "native", "called otherwise")
    small = ["max_steps=1", "rollout.group_size=2", "rollout.max_completion_length=8", "rollout.shrink=1"]
    groups = ["grpo.groups_per_step=2", "grpo.groups_per_micro_batch=2", "rollout.groups_per_batch=2"]

    def command(config: RunConfig) -> int:
        run(config, RunFolder.open(tmp_path, config), say=lambda _: None)
        return 0

    assert run_command(arguments("model.attention=native", *small, *groups), command) == 1
    err = capsys.readouterr().err
    assert "error: attention native was chosen, but the program contains no call of it" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*/*.yaml")), ids=lambda path: path.name)
def test_our_own_configurations_pass(path: Path) -> None:
    if path.parent.name in ("embedded", "paper"):
        config = load_config(RunConfig, [path], ["mesh.data=1", "mesh.fsdp=-1", "mesh.tensor=1"])
        check_run(config, ALONE)


@pytest.mark.parametrize("frozen", [(), ("visual.blocks",), ("text.embed_tokens",)])
def test_a_run_that_would_train_the_vision_tower_is_refused(tmp_path: Path, frozen: tuple[str, ...]) -> None:
    """Its gradient would be zero and weight decay all that moves it: features are computed outside of the gradient."""
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"keep visual in model\.frozen"):
        run(RunConfig(model=ModelConfig(frozen=frozen)), folder)
    assert not folder.root.exists()


@pytest.mark.parametrize("command", ["train", "sft"])
def test_what_is_refused_leaves_no_folder_behind(command: str, tmp_path: Path, monkeypatch, capsys) -> None:
    """The next start, with the setting put right, would find it used."""
    folder = tmp_path / "run"
    config = ROOT / "configs" / "embedded" / "image.yaml"
    words = ["--config", str(config), "--run-dir", str(folder), *SMALL, "mesh.fsdp=3", "mesh.data=5"]
    monkeypatch.setattr(sys, "argv", [command, *words])
    main = runpy.run_path(str(ROOT / "launch" / f"{command}.py"))["main"]
    assert main() == 1
    assert "mesh" in capsys.readouterr().err
    assert not folder.exists()


def test_devices_that_cannot_reach_the_hosts_memory_are_refused_by_name() -> None:
    config = load_config(RunConfig, [], ["rollout.offload=[optimizer]"])
    check_offload(config, jax.devices()[0])

    def device(*kinds: str) -> Any:
        memories = [SimpleNamespace(kind=kind) for kind in kinds]
        return SimpleNamespace(device_kind="Chip", addressable_memories=lambda: memories)

    check_offload(config, device("device", "pinned_host"))
    with pytest.raises(
        ConfigError, match=r"rollout\.offload is .*but Chip has no .*pinned_host: it has device\."
    ):
        check_offload(config, device("device"))
    with pytest.raises(ConfigError, match="it has none that it names"):
        check_offload(config, device())
    check_offload(load_config(RunConfig, [], []), device("device"))


def test_a_run_on_such_devices_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "has_host_memory", lambda device: False)
    config = load_config(RunConfig, [], [*SMALL, "rollout.offload=[optimizer]"])
    with pytest.raises(ConfigError, match="has no memory of the kind pinned_host"):
        run(config, RunFolder(tmp_path), say=print)
    assert not list(tmp_path.iterdir())
