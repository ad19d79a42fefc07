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


@pytest.mark.parametrize("config", ["", "seed: [0", "3"])
def test_a_broken_run_and_one_that_has_not_begun_are_named_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str
) -> None:
    write_run(tmp_path / "runs" / "good", 0, 0.3)
    broken = write_run(tmp_path / "runs" / "broken", 1, 0.4)
    (broken / "config.yaml").write_text(config)
    recipe = write_run(tmp_path / "runs" / "recipe" / "e1", 2, 0.5).parent
    inside = tmp_path / "runs" / "good" / "wandb" / "files"
    for folder in (tmp_path / "runs" / "waiting", recipe, recipe / "e2", inside):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text("seed: 0")
    assert main([str(tmp_path / "runs")]) == 1
    said, told = capsys.readouterr()
    assert "0.4 (0.3 to 0.5)" in said
    left_out, waiting = told.splitlines()
    assert left_out.startswith(f"{broken} is left out: {broken / 'config.yaml'} is damaged")
    assert waiting == f"not begun, without a step so far: {recipe / 'e2'}, {tmp_path / 'runs' / 'waiting'}"


def test_where_no_run_has_begun_that_is_all_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"not begun, without a step so far: {tmp_path}\n"


def test_a_folder_without_runs_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no run there or below" in capsys.readouterr().err
