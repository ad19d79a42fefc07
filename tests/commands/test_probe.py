"""``vcap probe``: whose figures stand under which name."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.commands.probe import main


def test_no_scenes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["embedded", "--scenes", "0"])
    assert "--scenes 0: give at least 1" in capsys.readouterr().err


def test_a_folder_that_holds_no_policy_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--pictures", str(tmp_path / "pictures")]) != 0
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["runs/none", "--pictures", str(tmp_path / "pictures")]) != 0
    assert "the policy runs/none is no folder on this machine" in capsys.readouterr().err


def test_no_policy_takes_the_name_of_what_was_taught(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["taught=embedded"]) != 0
    assert "give embedded another name, NAME=embedded" in capsys.readouterr().err
