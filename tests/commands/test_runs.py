"""``launch/runs.py``: the table, the page, and a folder without runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.test_arms import write_run
from vcap_jax.commands.runs import main
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.judge_record import note_judge


def test_runs_are_laid_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "a", 0, 0.3)
    write_run(tmp_path / "runs" / "b", 1, 0.4, judge={"urls": ["http://other:1/v1"]})
    page = tmp_path / "runs" / "index.html"
    assert main([str(tmp_path / "runs"), "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert "0.35 (0.3 to 0.4)" in said  # where the judge is decides nothing
    assert said.endswith(f"{page}\n")
    assert "Runs side by side" in page.read_text()


def test_runs_of_two_judges_are_two_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, judge in enumerate(("judge-8b", "judge-32b")):
        run = write_run(tmp_path / f"s{seed}", seed, 0.3 + seed / 10)
        note_judge(RunFolder(run), judge, {})
    assert main([str(tmp_path)]) == 0
    assert "judge.model=judge-32b" in capsys.readouterr().out


def test_a_folder_without_runs_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no run there or below" in capsys.readouterr().err
