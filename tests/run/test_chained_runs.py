"""Runs that start from runs: at any depth they load, export and serve; their own settings count; their start stays."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from vcap_jax.configuration import ConfigError, dump_config, load_config
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.export.hugging_face import adapter_to_peft, checkpoint_to_hf
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.lora import LoraConfig
from vcap_jax.models.policy import ModelConfig, Policy
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.plan.abstract import model_of
from vcap_jax.recipes.sft import run_sft
from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.run.checkpoint_source import lineage, load_captioner, load_start
from vcap_jax.run.config import RunConfig
from vcap_jax.run.folders import open_run
from vcap_jax.run.rollout_server import export_policy
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import MANIFEST, read_scenes, write_dataset

PLACEMENT = Placement.build(MeshConfig(fsdp=1))
LORA = LoraConfig(rank=2, alpha=4.0, targets=("q_proj", "up_proj"))


def config(path: Path | str = "embedded", **model: Any) -> RunConfig:
    return RunConfig(model=ModelConfig(path=str(path), **model), mesh=MeshConfig(fsdp=1))


def left_by(root: Path, started: RunConfig, *steps: int) -> Path:
    """What a run leaves that was started with these settings, its parameters moved at random in every step."""
    settings, folder = open_run(started, root)
    save(folder, load_start(settings, PLACEMENT), *(steps or (3,)))
    return root


def save(folder: RunFolder, policy: Policy, *steps: int, keep: int = 3) -> None:
    with Checkpointer(folder.checkpoints, keep=keep) as checkpoints:
        for step in steps:
            rng = np.random.default_rng(step)
            moved = jax.tree.map(
                lambda x, r=rng: x + jnp.asarray(r.normal(size=x.shape), x.dtype), policy.trainable
            )
            checkpoints.save(step, {"params": moved})
        checkpoints.wait()


def arrays(policy: Policy) -> dict[tuple[Any, ...], np.ndarray]:
    """Every parameter, trained or frozen."""
    state = nnx.split(policy.merge())[1]
    return {path: np.asarray(leaf[...], np.float32) for path, leaf in nnx.to_flat_state(state)}


def trained(policy: Policy) -> set[tuple[Any, ...]]:
    return {path for path, _ in nnx.to_flat_state(policy.trainable)}


def same(one: dict[Any, np.ndarray], other: dict[Any, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=str(name))


def exported(run: Path, target: Path) -> dict[str, np.ndarray]:
    checkpoint_to_hf(run, target, dtype="float32")
    return load_file(target / "model.safetensors")


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Path:
    return left_by(tmp_path_factory.mktemp("runs") / "full", config())


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, full) -> Path:
    """Adapters on what ``full`` trained."""
    return left_by(tmp_path_factory.mktemp("runs") / "adapted", config(full, lora=LORA))


@pytest.mark.slow
def test_a_start_is_the_captioner_it_names_at_any_depth(full, tmp_path) -> None:
    """The second trains the vision tower too, the third freezes it again: what each holds is found."""
    second = left_by(tmp_path / "second", config(full, frozen=("text.embed_tokens",)), 5)
    third = left_by(tmp_path / "third", config(second), 7)
    runs = [full, second, third]
    policies = [load_captioner(RunConfig(), str(run), PLACEMENT) for run in runs]
    for run, policy in zip(runs, policies, strict=True):
        same(arrays(load_start(config(run), PLACEMENT)), arrays(policy))
        hf = tmp_path / f"{run.name}-hf"
        checkpoint_to_hf(run, hf, dtype="float32")
        same(arrays(load_captioner(RunConfig(), str(hf), PLACEMENT)), arrays(policy))
    one, two, three = map(arrays, policies)
    in_vision = {path for path in one if path[0] == "visual"}
    assert trained(policies[1]) > in_vision
    assert trained(policies[2]).isdisjoint(in_vision)
    for path in in_vision:
        np.testing.assert_array_equal(two[path], three[path])
        assert not np.array_equal(one[path], two[path])
    np.testing.assert_array_equal(one["text", "embed_tokens"], two["text", "embed_tokens"])
    assert not np.array_equal(two["text", "embed_tokens"], three["text", "embed_tokens"])


@pytest.mark.slow
def test_what_a_run_holds_itself_is_not_asked_of_the_one_it_started_from(full, tmp_path) -> None:
    source = shutil.copytree(full, tmp_path / "source")
    run = left_by(tmp_path / "run", config(source), 5)
    before = exported(run, tmp_path / "before")
    shutil.rmtree(source / "checkpoints" / "3")
    same(exported(run, tmp_path / "after"), before)
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 3 \(model.step\)"):
        load_start(config(source, step=3), PLACEMENT)


def test_adapters_are_put_on_what_a_run_trained(full, adapted, tmp_path) -> None:
    start = load_start(config(full, lora=LORA), PLACEMENT)
    assert {path[-2] for path in trained(start)} == {"adapter"}
    base = arrays(load_captioner(RunConfig(), str(full), PLACEMENT))
    same({path: array for path, array in arrays(start).items() if path in base}, base)
    merged, plain = exported(adapted, tmp_path / "merged"), exported(full, tmp_path / "plain")
    moved = {name.split(".")[-2] for name in plain if not np.array_equal(plain[name], merged[name])}
    assert moved == {"q_proj", "up_proj"}


@pytest.mark.slow
def test_adapters_of_a_run_are_gone_on_with(adapted, tmp_path) -> None:
    further = left_by(tmp_path / "further", config(adapted, lora=LORA), 5)
    for run in (adapted, further):
        start = load_start(config(run, lora=replace(LORA, seed=1)), PLACEMENT)
        same(arrays(start), arrays(load_captioner(RunConfig(), str(run), PLACEMENT)))
    one, two = exported(adapted, tmp_path / "one"), exported(further, tmp_path / "two")
    moved = {name.split(".")[-2] for name in one if not np.array_equal(one[name], two[name])}
    assert moved == {"q_proj", "up_proj"}


@pytest.mark.parametrize(
    ("lora", "remedy"),
    [
        (None, r"not theirs \(null\).* set model.lora.rank=2 model.lora.alpha=4.0 "),
        (replace(LORA, rank=4), r"not theirs \(rank: 4\).* set model.lora.rank=2; "),
        (replace(LORA, targets=("q_proj",)), r"""set 'model.lora.targets=\["q_proj", "up_proj"\]'; """),
        (replace(LORA, adapter="other"), "set model.lora.adapter=null; "),
    ],
)
def test_other_adapters_than_the_runs_are_refused(adapted, tmp_path, lora, remedy) -> None:
    new = tmp_path / "new"
    with pytest.raises(ConfigError, match=remedy) as raised:
        open_run(config(adapted, lora=lora), new)
    assert f"launch/convert.py to-hf {shlex.quote(str(adapted))} FOLDER" in str(raised.value)
    assert not new.exists()
    with pytest.raises(ConfigError, match="trained adapters"):
        load_start(config(adapted, lora=lora), PLACEMENT)


@pytest.mark.slow
def test_exported_adapters_name_what_they_were_trained_on(full, adapted, tmp_path) -> None:
    on_backbone = left_by(tmp_path / "on-backbone", config(lora=LORA), 4)
    further = left_by(tmp_path / "further", config(on_backbone, lora=LORA), 5)
    named = {}
    for run in (adapted, on_backbone, further):
        adapter_to_peft(run, tmp_path / f"{run.name}-adapter")
        written = json.loads((tmp_path / f"{run.name}-adapter" / "adapter_config.json").read_text())
        named[run.name] = written["base_model_name_or_path"]
    backbone = str(BACKBONE_FOLDER.absolute())
    assert named == {"adapted": f"{full} at step 3", "on-backbone": backbone, "further": backbone}
    # Put on that base again, they are the run.
    again = config(full, lora=replace(LORA, adapter=str(tmp_path / "adapted-adapter")))
    same(arrays(load_start(again, PLACEMENT)), arrays(load_captioner(RunConfig(), str(adapted), PLACEMENT)))


def test_the_step_that_a_run_starts_from_stays(full, tmp_path) -> None:
    source, new = shutil.copytree(full, tmp_path / "source"), tmp_path / "new"
    begun, folder = open_run(config(source), new)
    assert (begun.model.step, folder.resumed) == (3, False)
    assert load_config(RunConfig, [folder.config]).model.step == 3
    start = arrays(load_start(begun, PLACEMENT))
    open_run(config(source), tmp_path / "idle")
    save(RunFolder(source), load_captioner(RunConfig(), str(source), PLACEMENT), 4, keep=2)
    # Begun anew, for it had done nothing: from what is there now, as the earlier step may be gone.
    assert open_run(config(source), tmp_path / "idle", resume=False)[0].model.step == 4
    resumed, folder = open_run(config(source), new)
    assert (resumed.model.step, folder.resumed) == (3, True)
    same(arrays(load_start(resumed, PLACEMENT)), start)
    assert open_run(config(source), tmp_path / "newer")[0].model.step == 4
    assert open_run(config(source, step=3), tmp_path / "older")[0].model.step == 3
    folder.metrics.write_text('{"step": 1}\n')
    with pytest.raises(RunFolderError, match=r"model\.step: 3 then, 4 now"):
        open_run(config(source, step=4), new)
    with pytest.raises(CheckpointError, match="no checkpoint of step 9"):
        open_run(config(source, step=9), tmp_path / "none")
    assert not (tmp_path / "none").exists()

    save(RunFolder(source), load_captioner(RunConfig(), str(source), PLACEMENT), 5, keep=2)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3 .*there are \[4, 5\]") as raised:
        load_start(open_run(config(source), new)[0], PLACEMENT)
    assert f"launch/convert.py to-hf {shlex.quote(str(source))} FOLDER --step 5" in str(raised.value)


def test_only_runs_have_steps(tmp_path) -> None:
    assert open_run(config(), tmp_path / "run")[0].model.step is None
    with pytest.raises(ConfigError, match="leave the step out"):
        open_run(config(step=3), tmp_path / "other")


def test_what_is_at_the_beginning_serves_processor_and_shapes(full, adapted, tmp_path) -> None:
    assert lineage(str(adapted)).origin == BACKBONE_FOLDER
    assert model_of(ModelConfig(path=str(adapted))) == model_of(ModelConfig(path="embedded"))
    export_policy(config(adapted, lora=LORA), tmp_path / "served")
    assert (tmp_path / "served" / "tokenizer.json").exists()
    assert (tmp_path / "served" / "model.safetensors").exists()


def test_a_line_that_leads_nowhere_is_refused(full, tmp_path) -> None:
    base = tmp_path / "base"
    checkpoint_to_hf(full, base)
    run = left_by(tmp_path / "run", config(base))
    base.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=f"{run} started from {base}, which is neither"):
        load_captioner(RunConfig(), str(run), PLACEMENT)
    (run / "config.yaml").write_text(dump_config(config(run, step=3)))
    with pytest.raises(ConfigError, match="its own start"):
        load_captioner(RunConfig(), str(run), PLACEMENT)


@pytest.mark.slow
def test_a_run_of_a_run_is_trained_and_resumed_after_the_first_went_on(full, tmp_path) -> None:
    """Supervised, two steps; adapters alone move, and the start of the summary is that of the pinned step."""
    write_dataset(tmp_path / "data", "image", "sft", 4, 0)
    rng = np.random.default_rng(0)
    captions = [
        PoolEntry(id=name, references=(full_caption(scene, rng),))
        for name, scene in read_scenes(tmp_path / "data").items()
    ]
    ReferencePool(captions).write(tmp_path / "captions.jsonl")
    source = shutil.copytree(full, tmp_path / "source")
    settings = config(source, lora=LORA)
    settings = replace(
        settings,
        data=replace(
            settings.data,
            manifest=str(tmp_path / "data" / MANIFEST),
            buckets=Buckets(tokens=(64,), frames=(1,), patches=(64,)),
        ),
        rollout=replace(settings.rollout, max_completion_length=192),
        sft=replace(
            settings.sft,
            captions=str(tmp_path / "captions.jsonl"),
            groups_per_step=2,
            groups_per_micro_batch=2,
            max_steps=2,
        ),
    )
    said: list[str] = []
    run_sft(*open_run(settings, tmp_path / "run", work="supervised"), say=said.append)
    assert f"starting policy: {source} at step 3" in said
    before = arrays(load_captioner(RunConfig(), str(tmp_path / "run"), PLACEMENT))
    base = arrays(load_captioner(RunConfig(), str(source), PLACEMENT))
    same({path: array for path, array in before.items() if path in base}, base)
    assert any(np.any(array) for path, array in before.items() if path[-2:] == ("adapter", "b"))
    save(RunFolder(source), load_captioner(RunConfig(), str(source), PLACEMENT), 4)
    run_sft(*open_run(settings, tmp_path / "run", work="supervised"), say=said.append)
    same(arrays(load_captioner(RunConfig(), str(tmp_path / "run"), PLACEMENT)), before)
