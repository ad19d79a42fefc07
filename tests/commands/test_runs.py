"""``launch/runs.py``: the table, the page, and a folder without runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.test_arms import write_run
from vcap_jax.commands.runs import main


def test_runs_are_laid_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "a", 0, 0.3)
    write_run(tmp_path / "runs" / "b", 1, 0.4, judge={"urls": ["http://other:1/v1"]})
    page = tmp_path / "runs" / "index.html"
    assert main([str(tmp_path / "runs"), "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert "0.35 (0.3 to 0.4)" in said  # where the judge is decides nothing
    assert said.endswith(f"{page}\n")
    assert "Runs side by side" in page.read_text()


def test_a_folder_without_runs_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no run there or below" in capsys.readouterr().err
