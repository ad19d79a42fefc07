"""The order of rounds: who starts from what, whose references it learns from, and what is skipped."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from vcap_jax.configuration import ConfigError
from vcap_jax.recipes import self_improve as module
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.summary import FactRow
from vcap_jax.reward.config import RewardConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.system.shutdown import TrainingStopped


def shares(coverage: float) -> FactRow:
    return {
        "coverage": coverage,
        "hallucination": 0.1,
        "coverage_interval": [coverage, coverage],
        "hallucination_interval": [0.1, 0.1],
        "claims_per_caption": 3.0,
        "scenes": 8,
    }


class Rounds:
    """Stands in for the runs: notes what each was given and leaves what a run leaves."""

    def __init__(self) -> None:
        self.trained: list[tuple[str, str, str | None]] = []
        self.pools: list[tuple[str, str]] = []
        self.stops_at: str | None = None

    def run(self, config, folder, *, say, processes):
        name = folder.root.name
        self.trained.append((name, config.model.path, config.data.references))
        if config.data.references is not None:
            assert Path(config.data.references).exists()
        assert (folder.data / "shared").exists()
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
        pool.write_text("")


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


def test_what_is_complete_is_not_done_again(tmp_path, rounds) -> None:
    rounds.stops_at = "e2"
    with pytest.raises(TrainingStopped):
        module.self_improve(RunConfig(), opened(tmp_path), rounds=2, say=lambda _: None)
    rounds.stops_at = None
    module.self_improve(RunConfig(), opened(tmp_path), rounds=2, say=lambda _: None)
    assert [name for name, *_ in rounds.trained] == ["e1", "e2", "e2"]
    module.self_improve(RunConfig(), opened(tmp_path), rounds=3, say=lambda _: None)
    assert [name for name, *_ in rounds.trained] == ["e1", "e2", "e2", "e3"]


def test_no_round_is_refused(tmp_path, rounds) -> None:
    with pytest.raises(ValueError, match="0 rounds"):
        module.self_improve(RunConfig(), opened(tmp_path), rounds=0)


def test_a_reward_without_references_has_nothing_to_improve_by(tmp_path, rounds) -> None:
    config = RunConfig(reward=RewardConfig(use_reference=False))
    with pytest.raises(ConfigError, match="uses no references"):
        module.self_improve(config, opened(tmp_path), say=lambda _: None)
    assert rounds.trained == []
