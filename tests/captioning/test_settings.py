"""Settings to caption with: a run's own, an export's, a folder's, and how many inputs have room."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from vcap_jax.captioning.engines import Drawing, drawn_by
from vcap_jax.captioning.settings import (
    checkpoint_config,
    default_buckets,
    endpoint_config,
    groups_side_by_side,
    own_requests,
    write_captioning,
)
from vcap_jax.configuration import dump_config, load_config, shipped_configs
from vcap_jax.models.buckets import Buckets
from vcap_jax.run.checkpoint_source import CheckpointSource
from vcap_jax.run.config import RunConfig


def paper(*settings: str) -> RunConfig:
    return load_config(RunConfig, [shipped_configs() / "paper" / "video.yaml"], settings)


def source(folder: Path, *, run: bool = False) -> CheckpointSource:
    return CheckpointSource(path=str(folder), folder=folder, run=run, step=3 if run else None)


def test_a_run_captions_by_its_own_settings_but_not_by_its_machines(tmp_path: Path) -> None:
    config = paper("data.video_prompt=Tell it.", "mesh.tensor=4", "mesh.fsdp=2", "data.on_bad_sample=refuse")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    own = checkpoint_config(source(tmp_path, run=True), ["data.max_frames=32"])
    assert own.data.video_prompt == "Tell it."
    assert (own.data.max_frames, own.data.max_frame_tokens, own.data.fps) == (32, 256, 2.0)
    assert own.rollout.max_completion_length == 6300
    assert own.rollout.sampling == config.rollout.sampling
    assert (own.model.dtype, own.model.param_dtype, own.model.attention) == ("bfloat16", "bfloat16", "auto")
    assert (own.mesh.tensor, own.mesh.fsdp) == (1, -1)
    assert own.data.buckets == default_buckets()
    assert own.data.on_bad_sample == "skip"
    given = checkpoint_config(source(tmp_path, run=True), ["mesh.tensor=2", "model.attention=chunked"])
    assert (given.mesh.tensor, given.mesh.fsdp, given.model.attention) == (2, 2, "chunked")


def test_adapters_of_a_run_keep_the_digits_that_they_were_trained_in(tmp_path: Path) -> None:
    config = paper("model.lora={rank: 4}", "model.param_dtype=float32")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    own = checkpoint_config(source(tmp_path, run=True)).model
    assert (own.dtype, own.frozen_dtype, own.param_dtype) == ("bfloat16", "bfloat16", "float32")


def test_captions_may_be_shorter_than_the_short_caches_of_a_run(tmp_path: Path) -> None:
    """Which only training has: ``drawn_by`` leaves them out."""
    config = paper("rollout.short_groups=64", "rollout.short_length=2048", "rollout.groups_per_batch=32")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    own = checkpoint_config(source(tmp_path, run=True), ["rollout.max_completion_length=256"])
    assert (own.rollout.max_completion_length, own.rollout.short_groups, own.rollout.short_length) == (
        256,
        0,
        0,
    )


def test_requests_are_known_of_what_was_trained_with_them(tmp_path: Path) -> None:
    run, export, bare = tmp_path / "run", tmp_path / "export", tmp_path / "bare"
    (run / "checkpoints").mkdir(parents=True)
    export.mkdir()
    bare.mkdir()
    config = paper("data.video_prompt=Tell it.")
    (run / "config.yaml").write_text(dump_config(config))
    write_captioning(config, export)
    assert own_requests(str(run)) == {"video": "Tell it."}, "with pictures it was never asked anything"
    assert own_requests(str(export)) == {"image": config.data.image_prompt, "video": "Tell it."}
    assert own_requests(str(bare)) == own_requests("http://127.0.0.1:1") == {}
    embedded = {
        "image": "Describe the image.",
        "video": "Describe the video in timed segments and a summary.",
    }
    assert own_requests("embedded") == embedded
    asked = ["data.image_prompt=What is it?"]
    assert own_requests(str(run), asked) == {"image": "What is it?", "video": "Tell it."}
    assert (
        own_requests(str(bare), asked)
        == own_requests("http://127.0.0.1:1", asked)
        == {"image": "What is it?"}
    )


def test_a_folder_captions_by_what_its_files_say(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "dtype": "bfloat16"}))
    bare = checkpoint_config(source(tmp_path))
    assert bare.rollout.max_completion_length == 2048
    assert bare.rollout.sampling.repetition_penalty == 1.0
    assert bare.model.path == str(tmp_path)
    assert bare.model.dtype == ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    generation = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "max_new_tokens": 512, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    told = checkpoint_config(source(tmp_path), ["rollout.sampling.top_k=5"])
    rules = told.rollout.sampling
    assert (rules.temperature, rules.top_p, rules.top_k, rules.repetition_penalty) == (0.7, 0.8, 5, 1.0)
    assert told.rollout.max_completion_length == 512


def test_an_export_captions_as_its_run_did(tmp_path: Path) -> None:
    run = paper("data.image_prompt=Was zeigt das Bild, 'genau'?\nÜberall: \"é\".", "data.max_pixels=4096")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "dtype": "float32"}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.1, "max_new_tokens": 5}))
    write_captioning(run, tmp_path)
    own = checkpoint_config(source(tmp_path), ["data.fps=1"])
    for name in ("image_prompt", "video_prompt", "max_pixels", "max_frames", "max_frame_tokens"):
        assert getattr(own.data, name) == getattr(run.data, name), name
    assert own.data.fps == 1
    assert own.rollout.sampling == run.rollout.sampling
    assert own.rollout.max_completion_length == 6300


def test_the_embedded_policy_is_asked_as_it_was_taught() -> None:
    embedded = CheckpointSource(path="embedded", folder=Path("somewhere"), run=False)
    config = checkpoint_config(embedded)
    assert config.data.image_prompt == "Describe the image."
    assert config.data.video_prompt.startswith("Describe the video in timed segments")
    assert endpoint_config().rollout.max_completion_length == 2048


@pytest.mark.parametrize(
    ("captions", "inputs", "ways", "groups"),
    [
        (1, 10**6, 1, 26),  # 8 groups of 8 captions: 8 * (2 + 8) / (2 + 1)
        (8, 10**6, 1, 8),
        (1, 10**6, 8, 32),
        (1, 1, 1, 1),
        (1, 1, 8, 8),
        (1, 3, 1, 4),
        (100, 10**6, 1, 1),
    ],
)
def test_as_many_inputs_as_have_room(captions: int, inputs: int, ways: int, groups: int) -> None:
    config = paper("rollout.groups_per_batch=8", "rollout.group_size=8", "grpo.groups_per_micro_batch=8")
    assert groups_side_by_side(config, captions, inputs, ways) == groups


def test_greedy_unless_it_is_asked_otherwise() -> None:
    config = paper()

    def temperature(sample: bool, given: float | None) -> float:
        return drawn_by(config, Drawing(sample=sample, temperature=given), 1).sampling.temperature

    assert [temperature(False, None), temperature(True, None), temperature(False, 0.3)] == [0, 1, 0.3]
    with pytest.raises(ValueError, match="would all be the same"):
        drawn_by(config, Drawing(captions=2, sample=True, temperature=0.0), 1)


def test_few_sizes_hold_prompts_of_every_size() -> None:
    sizes: Buckets = default_buckets()
    for what, smallest in (("tokens", 32), ("patches", 16)):
        for size in range(smallest, 20_000, 37):
            assert size <= sizes.fit(what, size) <= size * 1.5 + 1
        assert all(size % 4 == 0 for size in getattr(sizes, what)), "patches come in squares of four"
    assert len({sizes.fit("tokens", n) for n in range(1, 16_000)}) <= 20
    assert sizes.fit("frames", 1) == 1
