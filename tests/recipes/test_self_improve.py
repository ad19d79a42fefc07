"""The order of rounds: who starts from what, whose references it learns from, and what is skipped."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vcap_jax import references
from vcap_jax.configuration import ConfigError
from vcap_jax.data.config import DataConfig
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.recipes import self_improve as module
from vcap_jax.references import heldout_pool, reference_pool
from vcap_jax.references.writing import PoolError
from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.report.summary import FactRow
from vcap_jax.reward.config import RewardConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.run.manifest_note import remember_samples
from vcap_jax.run.setup import heldout_samples, manifest_samples
from vcap_jax.system.shutdown import TrainingStopped

references_by = module._references_by


def shares(coverage: float) -> FactRow:
    return {
        "coverage": coverage,
        "hallucination": 0.1,
        "coverage_interval": [coverage, coverage],
        "hallucination_interval": [0.1, 0.1],
        "claims_per_caption": 3.0,
        "scenes": 8,
        "invented_share": 0.05,
        "invented_share_interval": [0.05, 0.05],
    }


class Rounds:
    """Stands in for the runs: notes what each was given and leaves what a run leaves."""

    def __init__(self) -> None:
        self.trained: list[tuple[str, str, str | None]] = []
        self.pools: list[tuple[str, str]] = []
        self.stops_at: str | None = None
        self.compared_with: dict[str, dict[str, tuple[str, ...]]] = {}

    def run(self, config, folder, *, say, processes):
        name = folder.root.name
        self.trained.append((name, config.model.path, config.data.references))
        if config.data.references is not None:
            assert Path(config.data.references).exists()
        assert (folder.data / "shared").exists() or config.data.manifest is not None
        heldout = heldout_samples(config)
        if config.data.manifest is not None:
            remember_samples(folder, config.data.manifest, manifest_samples(config, say), heldout)
        if heldout:
            ctx = SimpleNamespace(config=config, folder=folder, processes=processes, say=say)
            self.compared_with[name] = heldout_pool(ctx, heldout).texts()
        if name == self.stops_at:
            raise TrainingStopped("the judge is gone")
        folder.metrics.write_text(json.dumps({"step": 1, "reward/mean": 0.25 * len(self.trained)}) + "\n")
        level = 0.5 + 0.1 * int(name[1:])
        summary = {"start": shares(0.5), "references": shares(level - 0.1), "trained": shares(level)}
        folder.summary.write_text(json.dumps(summary))

    def references_by(self, config, folder, writer, stage, say, processes):
        self.pools.append((writer, stage.root.name))
        pool = folder.root / "pools" / f"{writer}.jsonl"
        pool.parent.mkdir(exist_ok=True)
        write_pool(pool, f"by {writer}", manifest_samples(config, say) if config.data.manifest else [])


def write_pool(path: Path, text: str, samples: Sequence[Sample]) -> None:
    ReferencePool(PoolEntry(id=sample.id, references=(text,)) for sample in samples).write(path)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    stand_in = Rounds()
    monkeypatch.setattr(module, "run", stand_in.run)
    monkeypatch.setattr(module, "_references_by", stand_in.references_by)
    monkeypatch.setattr(module, "answering_judge", lambda *_, **__: nullcontext())
    return stand_in


def opened(tmp_path: Path) -> RunFolder:
    folder = RunFolder.open(tmp_path / "all", RunConfig(), resume=True)
    (folder.data / "shared").mkdir(parents=True, exist_ok=True)
    return folder


def test_every_round_starts_from_the_base_with_the_pool_of_the_one_before(tmp_path, rounds) -> None:
    folder, said = opened(tmp_path), []
    summary = module.self_improve(RunConfig(), folder, rounds=3, say=said.append)
    pools = folder.root / "pools"
    assert rounds.trained == [
        ("e1", "embedded", None),
        ("e2", "embedded", str(pools / "e1.jsonl")),
        ("e3", "embedded", str(pools / "e2.jsonl")),
    ]
    assert rounds.pools == [("e1", "e2"), ("e2", "e3")]
    rows = summary["rows"]
    assert list(rows) == [
        "base",
        *(f"{what}{k}" for k in ("e1", "e2", "e3") for what in ("references of ", "")),
    ]
    assert rows["e3"]["coverage"] == pytest.approx(0.8)
    assert any("references of e2" in text and "70.0%" in text for text in said)
    assert json.loads(folder.summary.read_text())["rounds"]["e2"]["reward"] == [0.5, 0.5]


def test_steps_in_which_nothing_was_scored_leave_the_rewards_of_the_others(
    tmp_path, rounds, monkeypatch
) -> None:
    """Their reward is not a number, and made that of the round one."""
    rewards = {"e1": (math.nan, 0.25, 0.75), "e2": (math.nan, math.nan)}

    def run(config, folder, **rest):
        rounds.run(config, folder, **rest)
        rows = enumerate(rewards[folder.root.name], 1)
        folder.metrics.write_text(
            "".join(json.dumps({"step": step, "reward/mean": reward}) + "\n" for step, reward in rows)
        )

    monkeypatch.setattr(module, "run", run)
    folder, said = opened(tmp_path), []
    module.self_improve(RunConfig(), folder, say=said.append)
    told = json.loads(folder.summary.read_text())["rounds"]
    assert [told[name]["reward"] for name in ("e1", "e2")] == [[0.25, 0.75], None]
    assert "e1: reward 0.250 in the first tenth of its steps, 0.750 in the last" in said
    assert "e2: nothing was scored in any of its steps" in said


def test_what_is_complete_is_not_done_again(tmp_path, rounds) -> None:
    rounds.stops_at = "e2"
    with pytest.raises(TrainingStopped):
        module.self_improve(RunConfig(), opened(tmp_path), rounds=2, say=lambda _: None)
    rounds.stops_at = None
    module.self_improve(RunConfig(), opened(tmp_path), rounds=2, say=lambda _: None)
    assert [name for name, *_ in rounds.trained] == ["e1", "e2", "e2"]
    module.self_improve(RunConfig(), opened(tmp_path), rounds=3, say=lambda _: None)
    assert [name for name, *_ in rounds.trained] == ["e1", "e2", "e2", "e3"]
    # Whoever asks for fewer keeps what is told of the others.
    whole = opened(tmp_path).summary.read_text()
    module.self_improve(RunConfig(), opened(tmp_path), rounds=1, say=lambda _: None)
    assert opened(tmp_path).summary.read_text() == whole
    assert len(rounds.trained) == 4


def test_the_folder_of_a_distillation_is_refused_and_one_of_before_is_taken(tmp_path, rounds) -> None:
    folder = opened(tmp_path)
    folder.claim("distillation")
    with pytest.raises(RunFolderError, match="is distillation, this command's is self-improvement"):
        module.self_improve(RunConfig(), folder, say=lambda _: None)
    assert rounds.trained == []
    folder.kind.unlink()  # earlier versions wrote none
    for _ in range(2):
        module.self_improve(RunConfig(), opened(tmp_path), rounds=1, say=lambda _: None)
    assert [name for name, *_ in rounds.trained] == ["e1"]


def test_no_round_is_refused(tmp_path, rounds) -> None:
    with pytest.raises(ValueError, match="0 rounds"):
        module.self_improve(RunConfig(), opened(tmp_path), rounds=0)


def test_a_reward_without_references_has_nothing_to_improve_by(tmp_path, rounds) -> None:
    config = RunConfig(reward=RewardConfig(use_reference=False))
    with pytest.raises(ConfigError, match="uses no references"):
        module.self_improve(config, opened(tmp_path), say=lambda _: None)
    assert rounds.trained == []


def holding_out(tmp_path: Path, *, own: bool) -> RunConfig:
    """Twenty pictures, a part of them held out. own: whether the rows bring references."""
    rows = [
        {"id": str(n), "image": f"{n}.png"} | ({"references": ["its row's"]} if own else {})
        for n in range(20)
    ]
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunConfig(data=DataConfig(manifest=str(manifest), heldout_share=0.3))


def of_a_pool(config: RunConfig, tmp_path: Path, *, heldout: int) -> RunConfig:
    """With a pool of all that is trained on and so many of the samples held out."""
    path = tmp_path / "given.jsonl"
    held = heldout_samples(config)
    assert heldout <= len(held)
    write_pool(path, "the pool's", [*manifest_samples(config, print), *held[:heldout]])
    return replace(config, data=replace(config.data, references=str(path)))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many references the starting policy was asked for, each time."""
    asked: list[int] = []

    def by_policy(ctx: Any, path: Path, samples: Sequence[Sample]) -> ReferencePool:
        if not path.exists():
            asked.append(len(samples))
            write_pool(path, f"the policy's for {ctx.folder.root.name}", samples)
        return ReferencePool.read(path)

    monkeypatch.setattr(references, "references_by_policy", by_policy)
    return asked


@pytest.mark.parametrize("source", ["rows", "pool", "pool before rows", "policy", "a part by the policy"])
def test_held_out_captions_are_compared_with_the_same_references_in_all_rounds(
    tmp_path: Path, rounds: Rounds, written: list[int], source: str
) -> None:
    """Those of the round before are of the samples that it trained on."""
    config = holding_out(tmp_path, own=source in ("rows", "pool before rows"))
    held = len(heldout_samples(config))
    if "pool" in source:
        config = of_a_pool(config, tmp_path, heldout=held)
    if source == "a part by the policy":
        config = of_a_pool(config, tmp_path, heldout=2)
    said: list[str] = []
    module.self_improve(config, opened(tmp_path), rounds=3, say=said.append)
    told = rounds.compared_with
    assert list(told) == ["e1", "e2", "e3"]
    assert told["e1"] == told["e2"] == told["e3"]
    texts = Counter(text for (text,) in told["e1"].values())
    assert (
        texts
        == {
            "rows": {"its row's": held},
            "pool": {"the pool's": held},
            "pool before rows": {"the pool's": held},
            "policy": {"the policy's for e1": held},
            "a part by the policy": {"the pool's": 2, "the policy's for e1": held - 2},
        }[source]
    )
    assert written == {"policy": [held], "a part by the policy": [held - 2]}.get(source, [])
    assert not any("does not compare" in text for text in said)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch, rounds: Rounds) -> dict[str, list[str]]:
    """The samples that each round learns from, where its references are asked for as they are in earnest."""
    found: dict[str, list[str]] = {}
    own_run = rounds.run

    def run(config: RunConfig, folder: RunFolder, **more: Any) -> None:
        ctx: Any = SimpleNamespace(config=config, folder=folder, **more)
        samples = manifest_samples(config, print)
        found[folder.root.name] = [
            one.id for one in reference_pool(ctx, samples).covered(samples, more["say"])
        ]
        own_run(config, folder, **more)

    def written(ctx: object, path: Path, writer: str, samples: Sequence[Sample]) -> None:
        write_pool(path, writer, samples)

    def prepared(config: RunConfig, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(samples=manifest_samples(config, print), world=None, ctx=None)

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "_references_by", references_by)
    monkeypatch.setattr(module, "prepare", prepared)
    monkeypatch.setattr(module, "drawing", nullcontext)
    monkeypatch.setattr(module, "checkpoint_source", lambda path: SimpleNamespace(path=path, step=1))
    monkeypatch.setattr(module, "configured_writer", lambda *_, name: name)
    monkeypatch.setattr(module, "write_shared_pool", written)
    return found


@pytest.mark.parametrize("source", ["pool", "rows and policy", "policy", "all"])
def test_all_rounds_learn_from_the_samples_of_e1(
    tmp_path: Path,
    rounds: Rounds,
    learned: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
) -> None:
    """Later rounds had references for what e1 had left out, so that e1 and e2 differed in more than their pools."""
    rows = [{"id": str(n), "image": f"{n}.png"} for n in range(8)]
    for n in (0, 5) if source == "rows and policy" else ():
        rows[n]["references"] = ["its row's"]
    manifest, pool = tmp_path / "manifest.jsonl", tmp_path / "given.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RunConfig(data=DataConfig(manifest=str(manifest)))
    samples = manifest_samples(config, print)
    some = samples if source == "all" else samples[1:6]
    if source in ("pool", "all"):
        write_pool(pool, "the pool's", some)
        config = replace(config, data=replace(config.data, references=str(pool)))

    def by_policy(ctx: Any, path: Path, samples: Sequence[Sample]) -> ReferencePool:
        write_pool(path, "the policy's", [one for one in samples if one in some])
        return ReferencePool.read(path)

    monkeypatch.setattr(references, "references_by_policy", by_policy)
    folder, said = opened(tmp_path), []
    module.self_improve(config, folder, rounds=2, say=said.append)
    expected = ["0"] * (source == "rows and policy") + [one.id for one in some]
    module.self_improve(config, folder, rounds=3, say=said.append)
    assert learned == dict.fromkeys(("e1", "e2", "e3"), expected)
    assert any("have no reference and are left out, the first: " in text for text in said) is (
        source != "all"
    )


def test_which_samples_e1_had_is_not_guessed_from_another_pool(
    tmp_path: Path, rounds: Rounds, learned: dict[str, list[str]]
) -> None:
    config = of_a_pool(holding_out(tmp_path, own=True), tmp_path, heldout=0)
    assert config.data.references is not None
    module.self_improve(config, opened(tmp_path), rounds=1, say=print)
    write_pool(Path(config.data.references), "others", manifest_samples(config, print)[:2])
    with pytest.raises(PoolError, match=r"e1 began with the captions of .*Give it the pool it began with"):
        module.self_improve(config, opened(tmp_path), rounds=2, say=print)
    assert list(learned) == ["e1"]


@pytest.mark.parametrize("change", ["a row more", "held-out rows in it"])
def test_a_manifest_that_has_changed_since_the_first_round_is_refused(
    tmp_path: Path, rounds: Rounds, change: str
) -> None:
    """Each round noted what it found: a later one could be trained on what all are measured on."""
    rows = [
        json.dumps({"id": str(n), "image": f"{n}.png", "references": [f"by hand, {n}"]}) for n in range(20)
    ]
    manifest, apart = tmp_path / "m.jsonl", tmp_path / "heldout.jsonl"
    manifest.write_text("\n".join(rows[:10]))
    apart.write_text("\n".join(rows[10:15]))
    config = RunConfig(data=DataConfig(manifest=str(manifest), heldout=str(apart)))
    folder = opened(tmp_path)
    module.self_improve(config, folder, rounds=1, say=lambda _: None)
    module.self_improve(config, folder, rounds=2, say=lambda _: None)
    manifest.write_text("\n".join(rows[:11] if change == "a row more" else rows[10:15]))
    with pytest.raises(
        ConfigError, match=r"m\.jsonl is not what the run in .*e1 began with: to train on it has"
    ):
        module.self_improve(config, folder, rounds=3, say=lambda _: None)
    assert [name for name, _, _ in rounds.trained] == ["e1", "e2"]


def test_references_that_e1_was_not_compared_with_are_not_handed_on(
    tmp_path: Path, rounds: Rounds, written: list[int]
) -> None:
    config = of_a_pool(holding_out(tmp_path, own=True), tmp_path, heldout=4)
    module.self_improve(config, opened(tmp_path), rounds=1, say=print)
    of_a_pool(config, tmp_path, heldout=5)
    with pytest.raises(PoolError, match=r"e1 began with the captions of .*Give it the pool it began with"):
        module.self_improve(config, opened(tmp_path), rounds=2, say=print)


def test_a_round_without_references_of_the_held_out_scenes_has_no_row_of_them(
    tmp_path: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rounds.run

    def bare(config: RunConfig, folder: RunFolder, **more: Any) -> None:
        run(config, folder, **more)
        if folder.root.name == "e1":
            summary = json.loads(folder.summary.read_text())
            del summary["references"]
            folder.summary.write_text(json.dumps(summary))

    monkeypatch.setattr(module, "run", bare)
    summary = module.self_improve(RunConfig(), opened(tmp_path), rounds=2, say=print)
    assert list(summary["rows"]) == ["base", "e1", "references of e2", "e2"]
