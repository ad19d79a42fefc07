"""``vcap self-improve``: what is refused before there is a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.commands.self_improve import main


def test_no_rounds_are_refused_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", "0", "--dir", str(tmp_path / "rounds")])
    assert "--rounds 0: give at least 1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
