"""The folder and the command of a rollout server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.configuration import load_config
from vcap_jax.models.family import VisualBudget
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.run.config import RunConfig
from vcap_jax.run.rollout_server import export_policy, serve_command
from vcap_jax.world.backbone import BACKBONE_FOLDER

ROOT = Path(__file__).resolve().parents[2]


def config(modality: str, *overrides: str) -> RunConfig:
    return load_config(RunConfig, [ROOT / "configs" / "embedded" / f"{modality}.yaml"], list(overrides))


def test_the_folder_has_the_weights_and_the_runs_budget(tmp_path):
    target = tmp_path / "policy"
    export_policy(config("image", "data.max_pixels=4096"), target)
    assert (target / "model.safetensors").resolve() == (BACKBONE_FOLDER / "model.safetensors").resolve()
    assert (target / "config.json").read_bytes() == (BACKBONE_FOLDER / "config.json").read_bytes()
    served, own = (
        Processor.from_pretrained(target),
        Processor.from_pretrained(BACKBONE_FOLDER, VisualBudget(max_pixels=4096)),
    )
    assert served.image == own.image
    assert served.video == own.video
    assert served.eos_token_ids == own.eos_token_ids
    with pytest.raises(FileExistsError, match="not empty"):
        export_policy(config("image"), target)


def test_the_command_says_what_the_engine_relies_on(tmp_path):
    command = serve_command(config("video"), tmp_path, port=8123, vllm="/v/vllm", more=["--seed=1"])
    assert command[:3] == ["/v/vllm", "serve", str(tmp_path)]
    flags = dict(flag.partition("=")[::2] for flag in command[3:])
    assert flags["--host"] == "127.0.0.1"
    assert flags["--port"] == "8123"
    assert flags["--logprobs-mode"] == "processed_logprobs"
    assert flags["--generation-config"] == "vllm"
    assert flags["--dtype"] == "float32"
    assert json.loads(flags["--hf-overrides"]) == {"head_dtype": "float32"}
    assert "--trust-request-mm-kwargs" in flags
    assert json.loads(flags["--limit-mm-per-prompt"]) == {"image": 0, "video": 1}
    video = config("video")
    longest = video.data.buckets.tokens[-1] + video.rollout.max_completion_length
    assert flags["--max-model-len"] == str(longest)
    assert command[-1] == "--seed=1"
    assert "--no-enable-chunked-prefill" not in command
    cpu = serve_command(config("image"), tmp_path, port=8123, vllm="/v/vllm", cpu=True)
    assert "--no-enable-chunked-prefill" in cpu


def test_a_server_takes_the_longest_captions_of_the_run_whoever_asks_for_them(tmp_path):
    def longest(*overrides: str) -> int:
        command = serve_command(config("video", *overrides), tmp_path, port=8123, vllm="vllm")
        (flag,) = [flag for flag in command if flag.startswith("--max-model-len=")]
        return int(flag.partition("=")[2]) - config("video").data.buckets.tokens[-1]

    rollout, references, evaluated = (
        "rollout.max_completion_length=300",
        "references.max_completion_length=700",
        "evaluation.evaluators=[{use: heldout}, {use: judged, max_completion_length: 900}]",
    )
    assert longest(rollout) == 300
    assert longest(rollout, references) == 700
    assert longest(rollout, references, evaluated) == 900
    assert longest("rollout.max_completion_length=1000", references, evaluated) == 1000


def test_prompts_of_several_pictures_are_taken_as_by_the_jax_sampler(tmp_path):
    def limit(*overrides: str) -> dict[str, int]:
        command = serve_command(config("image", *overrides), tmp_path, port=8123, vllm="vllm")
        (flag,) = [flag for flag in command if flag.startswith("--limit-mm-per-prompt=")]
        return json.loads(flag.partition("=")[2])

    assert limit("data.buckets.frames=[]") == {"image": 32, "video": 0}
    assert limit("data.buckets.frames=[]", "data.buckets.max_frames=3") == {"image": 3, "video": 0}
    assert limit("data.buckets.frames=[1,6]") == {"image": 6, "video": 0}


def test_a_server_that_takes_turns_has_sleep_mode_where_vllm_has_one(tmp_path):
    def flags(**more: bool) -> list[str]:
        return serve_command(config("image"), tmp_path, port=8123, vllm="vllm", **more)

    assert "--enable-sleep-mode" not in flags()
    assert "--enable-sleep-mode" in flags(sleep_mode=True)
    assert "--enable-sleep-mode" not in flags(sleep_mode=True, cpu=True)
