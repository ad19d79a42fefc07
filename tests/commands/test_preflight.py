"""What ``vcap preflight`` says of a run before it starts; the scripts' own tests go through it as well."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.tiny_policy import CONFIG
from vcap_jax.commands import preflight
from vcap_jax.configuration import dump_config, load_config
from vcap_jax.plan.abstract import parameter_counts
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.system.file_locks import LOCK, alone
from vcap_jax.system.hardware import hardware
from vcap_jax.world.dataset import write_png
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30


def paper(modality: str, *overrides: str) -> RunConfig:
    return load_config(RunConfig, [ROOT / "configs" / "paper" / f"{modality}.yaml"], list(overrides))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The sizes of the 8B checkpoint, and weights of a GiB."""
    text = {"num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "text_config": text}))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(GIB)
    return tmp_path


def test_what_waits_on_the_host_is_what_a_plan_counts(model: Path) -> None:
    """Hidden states of 36 layers: 32,000 prompt tokens and 8 captions of 6,336 columns, 4,096 bfloat16 numbers each."""
    size = [f"model.path={model}", "rollout.groups_per_batch=6"]
    one = paper("video", *size, "grpo.groups_per_micro_batch=1")
    assert preflight.offloaded_bytes(one) == 36 * (32_000 + 8 * 6_336) * 4_096 * 2
    six = paper("video", *size, "grpo.groups_per_micro_batch=6")
    assert preflight.offloaded_bytes(six) == 6 * preflight.offloaded_bytes(one)
    nodes = replace(six, distributed=replace(six.distributed, coordinator="a:1", processes=2, process_id=0))
    assert preflight.offloaded_bytes(nodes) == 3 * preflight.offloaded_bytes(one)
    with_attention = paper("video", *size, "grpo.groups_per_micro_batch=1", "model.remat=offload_attention")
    assert preflight.offloaded_bytes(with_attention) == 2 * preflight.offloaded_bytes(one)
    assert preflight.offloaded_bytes(paper("image", f"model.path={model}")) == 0


def test_a_checkpoint_is_written_from_a_copy_on_the_host(model: Path) -> None:
    config = paper("image", f"model.path={model}")
    assert preflight.saved_bytes(config) == 6 * GIB
    narrow = paper("image", f"model.path={model}", "optimizer.moment_dtype=bfloat16")
    assert preflight.saved_bytes(narrow) == 5 * GIB
    assert (
        preflight.saved_bytes(paper("image", f"model.path={model}", "model.param_dtype=bfloat16")) == 3 * GIB
    )
    adapters = load_config(
        RunConfig, [ROOT / "configs" / "paper" / "image.yaml", ROOT / "configs" / "lora.yaml"], []
    )
    assert preflight.saved_bytes(adapters) == 0


@pytest.mark.parametrize("stored", [2, 4, 0])
def test_parameters_are_counted_whatever_type_they_are_stored_in(tmp_path: Path, stored: int) -> None:
    """float32 counted twice, and an Orbax folder (0) as nothing."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    judge = "judge.urls=[http://127.0.0.1:8000]"
    config = paper("image", f"model.path={tmp_path}", "judge.sleep_mode=true", judge)
    trained, frozen = parameter_counts(config) or (0, 0)
    if stored:
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.truncate(stored * (trained + frozen))
    assert preflight.saved_bytes(config) == 3 * 4 * trained > 0
    if stored:
        assert preflight.slept_bytes(config) == round(1.4 * 2 * (trained + frozen))


def test_checkpoints_that_the_disk_cannot_hold_are_a_warning(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of 6 GiB stay, and the next is written beside them; those that lie there are not needed again."""
    config, root = paper("image", f"model.path={model}"), tmp_path / "runs" / "own"
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(23 * GIB))
    what, remedy = preflight.checkpoints(config, root)
    assert not remedy
    assert what.startswith(f"up to 24 GiB of checkpoints in {root}")
    assert "warning: 23 GiB are free there" in what
    (root / "checkpoints" / "20").mkdir(parents=True)
    with (root / "checkpoints" / "20" / "state").open("wb") as file:
        file.truncate(GIB)
    assert "warning" not in preflight.checkpoints(config, root)[0]
    best = ["evaluation.every=20", "logging.keep_best=judged/reward"]
    assert preflight.checkpoints(paper("image", f"model.path={model}", *best), root)[0].startswith("up to 30")


def test_memory_that_the_host_has_not_is_a_problem_with_its_parts(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = paper("image", f"model.path={model}")
    for limit, refused in ((37 * GIB, True), (38 * GIB, False), (None, False)):
        monkeypatch.setattr(preflight, "memory_limit", lambda limit=limit: limit)
        what, remedy = preflight.host_memory(config, 2)
        assert what == "38 GiB of this host's memory"
        assert bool(remedy) == refused
    monkeypatch.setattr(preflight, "memory_limit", lambda: 1)
    assert "32 for media caches of 2 judge servers (--media-cache-gb)" in preflight.host_memory(config, 2)[1]
    # As they were told.
    assert preflight.host_memory(config, 2, judge_cache_gb=2.5)[0] == "16 GiB of this host's memory"


@pytest.mark.parametrize(
    ("devices", "overrides", "refused"),
    [
        (8, [], False),
        (6, [], True),
        (8, ["mesh.tensor=2", "grpo.groups_per_micro_batch=4"], False),
        (8, ["distributed={coordinator: 'a:1', processes: 2, process_id: 0}"], True),
        (6, ["mesh.tensor=4"], True),
    ],
)
def test_group_counts_that_devices_cannot_share(devices: int, overrides: list[str], refused: bool) -> None:
    assert bool(preflight.group_counts(paper("image", *overrides), devices)[1]) == refused


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ('{"id": "a", "image": "a.png"}', ""),
        ('{"image": "a.png"}', 'rows.jsonl:1: "id" must be'),
        ('{"id": "a", "video": "a.mp4"}', "has no images, only 1 videos: set modality=video"),
        ('{"id": "a", "image": "b.png"}', "b.png does not exist"),
        ('{"id": "a", "imgae": "a.png"}', 'unknown key "imgae"'),
        ("", "is empty"),
    ],
)
def test_the_manifest_is_read_by_the_packages_own_reader(tmp_path: Path, row: str, told: str) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "rows.jsonl").write_text(row + "\n")
    given = (f"data.manifest={tmp_path / 'rows.jsonl'}", "max_steps=1", "model.path=embedded")
    what, remedy = preflight.inputs(paper("image", *given))
    assert told in remedy
    assert bool(remedy) == bool(told)
    assert bool(remedy) or what.endswith("rows.jsonl: 1 images")


def test_what_the_run_reads_beside_the_manifest_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "image": "a.png", "licence": "CC0"}\n')
    given = (f"data.manifest={tmp_path / 'rows.jsonl'}", "model.path=Qwen/Qwen3-VL-8B-Instruct")
    several = paper("image", *given, "data.references=nowhere.jsonl", "reward.instructions.image=none.md")
    _, remedy = preflight.inputs(several)
    assert "problems:" not in remedy, "they are told on one line, one after the other"
    assert "none.md" in remedy
    assert "nowhere.jsonl does not exist" in remedy
    assert "Qwen3-VL-8B" not in remedy, "that is told by its own name"
    what, remedy = preflight.starting_policy(several)
    assert what == "starting policy Qwen/Qwen3-VL-8B-Instruct"
    assert "hf download Qwen/Qwen3-VL-8B-Instruct --local-dir FOLDER" in remedy
    what, _ = preflight.inputs(paper("image", given[0], "model.path=embedded", "max_steps=1"))
    assert what.endswith("1 images; " + f"{tmp_path / 'rows.jsonl'}: ignored keys: licence")


@pytest.mark.parametrize(
    ("kind", "setting", "problem"),
    [
        ("own", "seed=0", True),
        ("own", "reward.family=balanced", True),
        ("own", "reward.family=imitation", False),
        ("own", "reward.family=random", False),
        ("own", "judge.urls=[http://127.0.0.1:8000]", False),
        ("unreadable", "seed=0", True),
        ("world", "seed=0", False),
        ("none", "seed=0", False),
    ],
)
def test_pictures_that_mean_nothing_to_the_embedded_judge_need_another(
    tmp_path: Path, kind: str, setting: str, problem: bool
) -> None:
    if kind == "world":
        write_png(tmp_path / "a.png", render_image(sample_image_scene(3, 0)))
    elif kind == "own":
        Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    else:
        (tmp_path / "a.png").touch()
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "image": "a.png"}\n')
    given = [] if kind == "none" else [f"data.manifest={tmp_path / 'rows.jsonl'}"]
    config = paper("image", "model.path=embedded", *given, setting)
    told = preflight.embedded_judge(config, hardware("h100x1"))
    assert (told is not None) == problem
    if told is not None:
        assert told[0] == "a judge is named"
        assert told[1].startswith("no GPU of h100x1 is left for a judge, and judge.urls is empty")
        assert preflight.embedded_judge(config, None) == (told[0], told[1].partition(", and ")[2])


def test_a_run_that_somebody_is_at_work_on_is_told_before_a_judge_is_loaded_for_it(tmp_path: Path) -> None:
    config, root = paper("image", "model.path=embedded"), tmp_path / "run"
    root.mkdir()
    with (root / LOCK).open("ab") as file:
        assert alone(file)
        what, remedy = preflight.run_folder(config, root)
        assert what == f"run folder {root}"
        assert remedy.startswith("another process is at work in it")
    assert preflight.run_folder(config, root) == (f"run folder {root}: a new run", "")


def test_a_run_whose_processes_may_not_change_goes_on_where_they_find_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--config", "configs/tpu/image.yaml"]
    settings = ["distributed.automatic=true", "grpo.objective.aggregation=bnpo", "model.path=embedded"]
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    folder.config.write_text(dump_config(load_config(RunConfig, [ROOT / command[1]], settings)))
    folder.metrics.write_text('{"step": 1}\n')
    preflight.main([*command, "--target", "v5p-32", "--run-dir", str(folder.root), *settings])
    assert f"ok\trun folder {folder.root}: the run there goes on\t" in capsys.readouterr().out


def test_what_waits_while_captions_are_drawn_is_asked_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 8B model: float32 moments of 8.2 thousand million parameters are 61 GiB on one GPU, 102 on six, whose odd
    number cuts some matrices in two only."""
    config = paper("image", "model.path=8B", "rollout.offload=[optimizer,reference]")
    assert preflight.waiting_bytes(paper("image", "model.path=8B"), 6) == 0
    one, six, eight = (preflight.waiting_bytes(config, devices) for devices in (1, 6, 8))
    assert one / GIB == pytest.approx(61.0 + 15.3, abs=0.1)
    assert eight / GIB == pytest.approx(one / GIB / 8, abs=0.02)
    assert six / GIB == pytest.approx(16.6, abs=0.05)
    assert preflight.waiting_bytes(config, None) == one
    nodes = replace(
        config, distributed=replace(config.distributed, coordinator="a:1", processes=2, process_id=0)
    )
    assert preflight.waiting_bytes(nodes, 4) == eight
    monkeypatch.setattr(preflight, "memory_limit", lambda: 192 * GIB)
    what, remedy = preflight.host_memory(config, 0, waiting=6 * six)
    # And the copy that a checkpoint is written from.
    assert what == "191 GiB of this host's memory, 99 of them for what waits while captions are drawn"
    assert not remedy
    what, remedy = preflight.host_memory(config, 1, waiting=6 * six)
    assert "99 for what waits while captions are drawn (rollout.offload=['optimizer', 'reference'])" in remedy


def test_a_pool_of_pinned_memory_that_is_too_small_is_a_problem_with_its_variable(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", raising=False)
    config = paper("video", f"model.path={model}", "grpo.groups_per_micro_batch=6")
    hidden = preflight.offloaded_bytes(config)
    assert preflight.pinned_pool(config, 0, 6, None) is None  # nothing new to say
    told = f"{(GIB + hidden // 6) / GIB:.1f} GiB of pinned host memory for each GPU"
    assert preflight.pinned_pool(config, GIB, 6, hardware("h800x8")) == (told, "")
    assert preflight.pinned_pool(config, GIB, 6, hardware("v5p-16")) is None
    _, remedy = preflight.pinned_pool(config, 60 * GIB, 6, None) or ("", "")
    assert remedy == "XLA takes at most 64 GiB: set XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=91 in the environment"
    monkeypatch.setenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "92")
    assert preflight.pinned_pool(config, 60 * GIB, 6, None) == (
        "82.7 GiB of pinned host memory for each GPU",
        "",
    )
    # Hidden states alone: one GPU has all six groups of the micro-batch.
    monkeypatch.delenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB")
    _, remedy = preflight.pinned_pool(config, 0, 1, None) or ("", "")
    assert remedy.startswith("XLA takes at most 64 GiB")


def test_the_command_tells_what_waits(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--target", "h800x8", "--devices", "6", "--config", "configs/paper/image.yaml"]
    settings = ["model.path=8B", "rollout.groups_per_batch=36", "grpo.groups_per_micro_batch=6"]
    preflight.main([*arguments, *settings, "rollout.offload=[optimizer,reference]"])
    told = capsys.readouterr().out
    # And the copy that a checkpoint is written from.
    assert "ok\t191 GiB of h800x8's memory, 99 of them for what waits while captions are drawn" in told
    assert "ok\t16.6 GiB of pinned host memory for each GPU" in told
    preflight.main([*arguments, *settings])
    assert "pinned" not in capsys.readouterr().out


def test_groups_that_wait_for_long_caches_are_asked_of_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--target", "h800x8", "--config", "configs/paper/video.yaml", "model.path=8B"]
    preflight.main([*arguments, "rollout.short_groups=32", "rollout.short_length=2048"])
    told = capsys.readouterr().out
    assert "217 of them for a step's groups if all outgrow short caches" in told
    preflight.main(arguments)
    assert "outgrow" not in capsys.readouterr().out
    preflight.main(
        [*arguments, "rollout.short_groups=32", "rollout.short_length=2048", "data.max_frames=null"]
    )
    assert "PROBLEM\trollout.short_groups\tdata.max_frames and" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("processes", "setting", "told"),
    [
        (3, "seed=0", "grpo.groups_per_step is 32, of 3 processes together"),
        (2, "rollout.ahead=1", "rollout.ahead is 1 in a run of 2 processes"),
        (2, "seed=0", None),
    ],
)
def test_what_several_processes_cannot_do_is_told_before_they_start(
    model: Path, capsys: pytest.CaptureFixture[str], processes: int, setting: str, told: str | None
) -> None:
    several = [
        "distributed.coordinator=a:1",
        f"distributed.processes={processes}",
        "distributed.process_id=0",
    ]
    config = ["--config", "configs/paper/image.yaml", f"model.path={model}"]
    preflight.main([*config, *several, setting])
    first = capsys.readouterr().out.splitlines()[0]
    if told is None:
        assert first.startswith("ok\tconfiguration")
    else:
        assert first.startswith(f"PROBLEM\tconfiguration\t{told}")


def test_a_sleeping_judge_is_counted_by_its_own_checkpoint(model: Path, tmp_path: Path) -> None:
    """A judge of 4 GiB beside a policy of 1 GiB was counted as another GiB."""
    judge = tmp_path / "judge"
    judge.mkdir()
    with (judge / "model.safetensors").open("wb") as file:
        file.truncate(4 * GIB)
    config = paper("image", f"model.path={model}")
    turns = paper(
        "image", f"model.path={model}", "judge.sleep_mode=true", "judge.urls=[http://127.0.0.1:8000]"
    )
    assert preflight.slept_bytes(config, judge) == 0
    # Pinned memory comes in powers of two.
    assert preflight.slept_bytes(turns, judge) == round(1.4 * 4 * GIB)
    assert preflight.slept_bytes(turns) == round(1.4 * GIB)
    target = hardware("h800x8")
    assert preflight.host_memory(turns, 2, target, judge_model=judge)[0] == "49 GiB of h800x8's memory"


def test_a_slice_that_finds_its_processes_is_counted_by_the_host(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What four hosts need together was asked of each."""
    config = ["--config", "configs/tpu/video.yaml", f"model.path={model}", "grpo.groups_per_micro_batch=16"]
    settings = [*config, "distributed.automatic=true"]
    preflight.main(["--target", "v5p-32", *settings])
    told = capsys.readouterr().out
    # Hidden states of 4 of 16 groups, a quarter of the copy for a checkpoint.
    assert "ok\t92 GiB of v5p-32's memory" in told
    assert "ok\tgroups divide by 16" in told
    preflight.main(["--target", "v5p-32", *settings, "rollout.ahead=1"])
    assert "rollout.ahead is 1 in a run of 4 processes" in capsys.readouterr().out
    monkeypatch.setattr(preflight, "memory_limit", lambda: 100 * GIB)
    preflight.main(["--host-memory", *settings])
    assert "that is of all processes together, and --target" in capsys.readouterr().out
