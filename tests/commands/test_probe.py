"""``vcap probe``: whose figures stand under which name."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.commands.probe import labelled, main
from vcap_jax.configuration import ConfigError


def test_policies_are_named_or_take_the_last_part_of_their_path(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert labelled(["embedded", "mine=runs/x", "runs/y", str(odd)]) == {
        "embedded": "embedded", "mine": "runs/x", "y": "runs/y", "a=b": str(odd),
    }  # fmt: skip


def test_one_name_for_two_policies_is_refused() -> None:
    with pytest.raises(ConfigError, match="'x' stands for runs/x and other/x: name one NAME=POLICY"):
        labelled(["runs/x", "other/x"])


def test_a_folder_that_holds_no_policy_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--pictures", str(tmp_path / "pictures")]) != 0
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["runs/none", "--pictures", str(tmp_path / "pictures")]) != 0
    assert "the policy runs/none is no folder on this machine" in capsys.readouterr().err
