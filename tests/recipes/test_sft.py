"""A whole supervised run on rendered pictures: what it leaves, and that a kill in between changes nothing."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.docs.metrics_page import unexplained
from vcap_jax.configuration import ConfigError
from vcap_jax.data.config import DataConfig
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.evals.config import EvaluationConfig, EvaluatorConfig
from vcap_jax.models.buckets import Buckets
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.recipes import sft
from vcap_jax.recipes.sft import run_sft
from vcap_jax.references.writing import PoolError
from vcap_jax.report.evaluations import Results
from vcap_jax.report.metrics import MetricsWriter, deterministic, read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.run.checkpoint_source import load_captioner
from vcap_jax.run.config import LoggingConfig, RunConfig
from vcap_jax.run.setup import prepare
from vcap_jax.sft.config import SFTConfig
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import read_scenes, write_dataset


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> RunConfig:
    root = tmp_path_factory.mktemp("data")
    manifest = write_dataset(root, "image", "sft", 6, 0)
    rng = np.random.default_rng(0)
    # The third sample has one caption where the others have two, and the last none at all.
    ReferencePool(
        PoolEntry(id=identity, references=tuple(full_caption(scene, rng) for _ in range(1 if i == 2 else 2)))
        for i, (identity, scene) in enumerate(read_scenes(root).items())
        if i < 5
    ).write(root / "captions.jsonl")
    return RunConfig(
        name="sft",
        data=DataConfig(
            manifest=str(manifest),
            image_prompt="Describe the image.",
            buckets=Buckets(tokens=(32,), frames=(1,), patches=(64,)),
        ),
        rollout=RolloutConfig(max_completion_length=192),
        sft=SFTConfig(
            captions=str(root / "captions.jsonl"),
            groups_per_step=4,
            groups_per_micro_batch=2,
            max_steps=4,
            optimizer=dataclasses.replace(SFTConfig().optimizer, learning_rate=1e-3),
        ),
        mesh=MeshConfig(fsdp=1),
        evaluation=EvaluationConfig(
            every=2,
            evaluators=(
                EvaluatorConfig(
                    use="tests.evals.own_evaluators:Words",
                    captions=1,
                    sampling=SamplingConfig(temperature=0),
                    options={"manifest": str(manifest)},
                ),
            ),
        ),
        logging=LoggingConfig(save_every=2, print_every=100),
    )


@pytest.fixture(scope="module")
def left_alone(config, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "alone"
    run_sft(config, RunFolder.open(root, config), say=lambda _: None)
    return root


def weights(config: RunConfig, root: Path) -> list[np.ndarray]:
    policy = load_captioner(config, str(root), Placement.build(MeshConfig(fsdp=1)))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(policy.trainable)]


def test_a_run_learns_and_leaves_what_other_commands_take(config, left_alone) -> None:
    rows = read_metrics(left_alone / "metrics.jsonl")
    assert unexplained(set().union(*rows)) == []
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["nll"] < rows[0]["nll"]
    assert [row["compiles"] for row in rows[2:]] == [0, 0]
    assert all(0 < row["positions/real"] <= 1 for row in rows)
    summary = json.loads((left_alone / "summary.json").read_text())
    assert summary["steps"] == 4
    assert list(summary["evaluations"]["words"]) == ["start", "step-2", "trained"]
    for row, when in ((rows[1], "step-2"), (rows[3], "trained")):
        assert row["eval/words/words"] == summary["evaluations"]["words"][when]["metrics"]["words"]["value"]
        assert row["eval/words/failed"] == 0
    assert not any(name.startswith("eval/") for row in (rows[0], rows[2]) for name in row)
    greedy = [json.loads(line) for line in (left_alone / "evaluations/words/start.jsonl").open()]
    assert [len(row["captions"]) for row in greedy] == [1] * 8
    # Greedy: what the evaluator asks for with another seed is the same.
    assert greedy[6]["captions"] == greedy[0]["captions"]
    noted = json.loads((left_alone / "references.json").read_text())
    assert (noted["source"], noted["entries"]) == (config.sft.captions, 5)
    base = load_captioner(config, "embedded", Placement.build(MeshConfig(fsdp=1)))
    moved = zip(weights(config, left_alone), jax.tree.leaves(base.trainable), strict=True)
    assert any(not np.array_equal(ours, np.asarray(theirs)) for ours, theirs in moved)


@pytest.mark.long
def test_the_starting_policy_does_not_stay_on_the_devices(config, tmp_path, monkeypatch) -> None:
    """Its float32 parameters would lie beside those that are trained for the whole run."""
    loaded = []

    def kept(*arguments, **options):
        loaded.append(prepare(*arguments, **options))
        return loaded[-1]

    monkeypatch.setattr(sft, "prepare", kept)
    of_another_command = dataclasses.replace(config.sft, max_steps=None, epochs=1)
    short, said = dataclasses.replace(config, max_steps=99, sft=of_another_command), list[str]()
    run_sft(short, RunFolder.open(tmp_path / "run", short), say=said.append)
    assert any(line.startswith("max_steps=99 is for reinforcement learning: this run takes") for line in said)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(loaded[0].ctx.policy.trainable))


@pytest.mark.long
def test_killed_and_resumed_is_bit_for_bit_the_same(config, left_alone, tmp_path, monkeypatch) -> None:
    """It dies in the evaluation after the second step, then after the third is logged, one after the checkpoint."""
    root, write, results = tmp_path / "killed", MetricsWriter.write, Results.write

    class Killed(BaseException):
        pass

    def die_in_evaluation(self, path):
        if self.step == 2:
            raise Killed
        results(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(Results, "write", die_in_evaluation)
        with pytest.raises(Killed):
            run_sft(config, RunFolder.open(root, config), say=lambda _: None)
    assert "eval/words/words" not in read_metrics(root / "metrics.jsonl")[-1]

    def die(self, row):
        written = write(self, row)
        if row["step"] == 3:
            raise Killed
        return written

    with monkeypatch.context() as patched:
        patched.setattr(MetricsWriter, "write", die)
        with pytest.raises(Killed):
            run_sft(config, RunFolder.open(root, config, resume=True), say=lambda _: None)
    said: list[str] = []
    with monkeypatch.context() as patched:
        # A plot that cannot be drawn at the end takes nothing with it.
        patched.setattr(sft, "plot_run", lambda *_, **__: 1 / 0)
        run_sft(config, RunFolder.open(root, config, resume=True), say=said.append)
    assert "resuming after step 2 of 4" in said
    assert any("plots.png could not be drawn: ZeroDivisionError" in line for line in said)
    assert json.loads((root / "summary.json").read_text())["steps"] == 4
    rows = [[deterministic(row) for row in read_metrics(r / "metrics.jsonl")] for r in (root, left_alone)]
    assert rows[0] == rows[1]
    ours, theirs = (sorted((r / "evaluations" / "words").iterdir()) for r in (root, left_alone))
    assert [path.name for path in ours] == [path.name for path in theirs]
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]
    for ours, theirs in zip(weights(config, root), weights(config, left_alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_too_few_captions_are_told_before_the_start_is_evaluated(config, tmp_path) -> None:
    few = dataclasses.replace(config, sft=dataclasses.replace(config.sft, max_steps=None, groups_per_step=6))
    folder = RunFolder.open(tmp_path / "few", few)
    with pytest.raises(ConfigError, match="5 samples do not fill one step of 6 groups"):
        run_sft(few, folder, say=lambda _: None)
    assert not (folder.root / "evaluations").exists()


@pytest.mark.parametrize(("text", "problem"), [("long " * 300, "none of 6"), ("a<|im_end|>", "is no text")])
def test_captions_that_cannot_be_learned_are_told_before_any_work(
    text, problem, config, tmp_path, monkeypatch
) -> None:
    path = tmp_path / "captions.jsonl"
    ReferencePool(
        PoolEntry(id=entry.id, references=(text,))
        for entry in ReferencePool.read(config.sft.captions).entries()
    ).write(path)
    held = write_dataset(tmp_path / "held", "image", "held", 2, 1)
    own = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, heldout=str(held)),
        sft=dataclasses.replace(config.sft, captions=str(path)),
    )
    monkeypatch.setattr(sft, "answering_judge", lambda *_, **__: nullcontext(JudgeConfig()))
    folder = RunFolder.open(tmp_path / "run", own)
    with pytest.raises(ConfigError, match=problem):
        run_sft(own, folder, say=lambda _: None)
    assert not (folder.root / "references").exists()
    assert not (folder.root / "references.json").exists()  # corrected, they may be gone on with
    assert not folder.begun


def test_captions_that_are_gone_cost_no_wait_for_the_judge(config, tmp_path, monkeypatch) -> None:
    captions = str(tmp_path / "gone.jsonl")
    gone = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, heldout=config.data.manifest),
        sft=dataclasses.replace(config.sft, captions=captions),
    )
    monkeypatch.setattr(sft, "answering_judge", None)
    with pytest.raises(ManifestError, match=r"the pool of captions \S+gone\.jsonl does not exist"):
        run_sft(gone, RunFolder.open(tmp_path / "run", gone), say=lambda _: None)


def test_other_captions_under_the_same_name_are_refused(config, left_alone) -> None:
    path = Path(config.sft.captions)
    before = path.read_text()
    try:
        path.write_text("".join(before.splitlines(keepends=True)[:-1]))
        with pytest.raises(PoolError, match="began with the captions of"):
            run_sft(config, RunFolder.open(left_alone, config, resume=True), say=lambda _: None)
    finally:
        path.write_text(before)
