"""Run folders: new, resumed, refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from vcap_jax.configuration import load_config
from vcap_jax.report.run_folder import RunFolder, RunFolderError, differences


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    learning_rate: float = 5e-7
    clip: float = float("nan")


@dataclass(frozen=True, kw_only=True)
class Config:
    seed: int = 0
    log_every: int = 1
    sizes: tuple[int, ...] = (1, 2)
    optimizer: Optimizer = field(default_factory=Optimizer)


def test_a_new_folder_holds_the_resolved_configuration(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "runs" / "a", Config(seed=3))
    assert not folder.resumed
    read = load_config(Config, [folder.config])
    assert (read.seed, read.sizes, read.optimizer.learning_rate) == (3, (1, 2), 5e-7)


def test_a_used_folder_is_not_written_to_without_resume(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"is not empty\. Add --resume"):
        RunFolder.open(tmp_path, Config())
    with pytest.raises(RunFolderError, match="not a run"):
        RunFolder.open(tmp_path, Config(), resume=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.open(tmp_path / "notes.txt", Config())


def test_resuming_the_same_run(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, Config())
    assert RunFolder.open(tmp_path, Config(), resume=True).resumed


def test_resuming_nothing_starts_anew(tmp_path: Path) -> None:
    (tmp_path / ".config.123.yaml").write_text("se")  # a process killed while it wrote its first file
    assert not RunFolder.open(tmp_path, Config(), resume=True).resumed
    assert not RunFolder.open(tmp_path / "absent", Config(), resume=True).resumed


def test_resuming_with_another_configuration_names_the_keys(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, Config())
    changed = Config(seed=1, log_every=5, optimizer=Optimizer(learning_rate=1e-6))
    with pytest.raises(RunFolderError) as caught:
        RunFolder.open(tmp_path, changed, resume=True, may_differ=["log_every"])
    message = str(caught.value)
    assert "seed: 0 then, 1 now" in message
    assert "optimizer.learning_rate: 5e-07 then, 1e-06 now" in message
    assert "log_every" not in message
    assert "clip" not in message
    kept = load_config(Config, [tmp_path / "config.yaml"])
    assert kept.seed == 0

    RunFolder.open(tmp_path, replace(Config(), log_every=5), resume=True, may_differ=["log_every"])
    assert load_config(Config, [tmp_path / "config.yaml"]).log_every == 5


def test_differences_of_sections_and_absent_keys() -> None:
    then = {"a": {"b": 1, "c": 2}, "d": {}}
    now = {"a": {"b": 1}, "d": {}, "e": 0}
    assert differences(then, now) == ["a.c: 2 then, absent now", "e: absent then, 0 now"]
    assert differences(then, now, ["a", "e"]) == []


def test_a_setting_that_is_younger_than_the_run_and_not_set_is_no_difference() -> None:
    assert differences({"a": {"b": 1}}, {"a": {"b": 1, "c": None}}) == []
    assert differences({"a": {"b": 1, "c": None}}, {"a": {"b": 1}}) == ["a.c: None then, absent now"]


def test_a_run_is_only_gone_on_with_by_the_kind_that_began_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim("training")
    folder.claim("training")
    with pytest.raises(RunFolderError, match="is training, this command's is supervised"):
        folder.claim("supervised")
