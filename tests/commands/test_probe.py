"""``vcap probe``: whose figures stand under which name."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest

from vcap_jax.commands.probe import main
from vcap_jax.configuration import ConfigError
from vcap_jax.parallel.sharding import Placement
from vcap_jax.recipes.teaching import probing
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.training.checkpoint import Checkpointer


def test_no_scenes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["embedded", "--scenes", "0"])
    assert "--scenes 0: give at least 1" in capsys.readouterr().err


def test_a_folder_that_holds_no_policy_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--pictures", str(tmp_path / "pictures")]) != 0
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["runs/none", "--pictures", str(tmp_path / "pictures")]) != 0
    assert f"the policy runs/none is no folder in {Path.cwd()}" in capsys.readouterr().err


def test_no_policy_is_probed_before_all_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "load_captioner", lambda *_, **__: pytest.fail("a policy was loaded"))
    assert main(["embedded", "runs/none", "--pictures", str(tmp_path)]) != 0
    assert f"the policy runs/none is no folder in {Path.cwd()}" in capsys.readouterr().err
    assert main(["embedded", "--step", "2", "--pictures", str(tmp_path)]) != 0
    assert "embedded is a single checkpoint, not a run: leave the step out" in capsys.readouterr().err


def test_a_step_is_that_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.open(tmp_path / "run", RunConfig())
    with Checkpointer(run.checkpoints) as checkpoints:
        checkpoints.save(2, {"params": jnp.zeros(1)})
        checkpoints.save(4, {"params": jnp.zeros(1)})
    asked = []

    def loading(config: RunConfig, path: str, placement: Placement, *, step: int | None) -> None:
        asked.append((path, step))
        raise ConfigError("far enough")

    monkeypatch.setattr(probing, "load_captioner", loading)
    for policies in (["start=embedded", f"trained={run.root}"], [f"trained={run.root}", "start=embedded"]):
        assert main([*policies, "--step", "2", "--pictures", str(tmp_path / "pictures")]) != 0
    assert asked == [("embedded", None), (str(run.root), 2)]


def test_no_policy_takes_the_name_of_what_was_taught(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["taught=embedded"]) != 0
    assert "give embedded another name, NAME=embedded" in capsys.readouterr().err
