"""metrics.jsonl through kills and resumptions."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vcap_jax.report.metrics import MetricsWriter, deterministic, read_metrics
from vcap_jax.report.step_log import LogError, StepLog, read_rows


def test_rows_come_back_as_plain_values(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "run" / "metrics.jsonl")
    writer.write({"step": np.int64(1), "kl": np.float32(0.5), "name": "é", "bad": math.nan, "big": math.inf})
    writer.write({"step": 2, "kl": np.array(3)})
    first, second = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (first["step"], first["kl"], first["name"], first["big"]) == (1, 0.5, "é", math.inf)
    assert math.isnan(first["bad"])
    assert second == {"step": 2, "kl": 3}


def test_a_row_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    script = (
        "import os, signal, sys\nfrom vcap_jax.report.metrics import MetricsWriter\n"
        "writer = MetricsWriter(sys.argv[1])\n"
        "for step in range(1, 4): writer.write({'step': step})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], env={**os.environ, "PYTHONPATH": "."})
    assert killed.returncode == -signal.SIGKILL
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


def test_the_last_row_gets_columns_once_and_no_other_row_does(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in (1, 2):
        writer.write({"step": step, "kl": 0.5})
    writer.complete(2, {"eval/own/said": np.float32(0.25), "kl": 9})
    after = path.read_bytes()
    writer.complete(2, {"eval/own/said": 0.75})
    assert path.read_bytes() == after
    with pytest.raises(ValueError, match="the last row is not that of step 1"):
        writer.complete(1, {"eval/own/said": 0.75})
    writer.write({"step": 3})
    assert read_metrics(path) == [
        {"step": 1, "kl": 0.5},
        {"step": 2, "kl": 0.5, "eval/own/said": 0.25},
        {"step": 3},
    ]
    with pytest.raises(ValueError, match="the last row is not that of step 1"):
        MetricsWriter(tmp_path / "empty.jsonl").complete(1, {"eval/own/said": 0.75})


@pytest.mark.parametrize("cut", [1, 3, 9, 13])
def test_a_torn_last_line_was_never_a_row(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in (1, 2, 3):
        writer.write({"step": step, "kl": step / 7})
    writer.close()
    path.write_bytes(path.read_bytes()[:-cut])
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    resumed = MetricsWriter(path)
    assert resumed.last_step == 2
    resumed.write({"step": 3, "kl": 3 / 7})
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


@pytest.mark.parametrize("checkpoint", [0, 1, 3, 5])
def test_a_resumed_run_has_one_row_per_step(tmp_path: Path, checkpoint: int) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in range(1, 6):
        writer.write({"step": step, "try": 1})
    writer.close()
    with path.open("a") as file:
        file.write('{"step": 6, "tr')
    resumed = MetricsWriter(path)
    assert resumed.truncate_after(checkpoint) == 5 - checkpoint
    assert resumed.last_step == (checkpoint or None)
    for step in range(checkpoint + 1, 8):
        resumed.write({"step": step, "try": 2})
    rows = read_metrics(path)
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert [row["try"] for row in rows] == [1] * checkpoint + [2] * (7 - checkpoint)
    assert list(tmp_path.iterdir()) == [path]


def test_steps_without_a_row_are_told_where_a_run_goes_on(tmp_path: Path) -> None:
    """The file was cut, or an older copy put back."""
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in (1, 2, 5, 6, 7):
        writer.write({"step": step})
    told = writer.go_on_after(6)
    assert told.startswith(f"{path} has no row of steps that are done: 3 to 4 (2 in all).")
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 5, 6]
    assert "are done: 3." in MetricsWriter(path).go_on_after(2 + 1)
    assert MetricsWriter(path).go_on_after(2) == ""


def test_a_step_is_written_once_and_never_goes_back(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write({"step": 2})
    with pytest.raises(ValueError, match="step 2 has a row already"):
        writer.write({"step": 2})
    with pytest.raises(ValueError, match="step 1 comes after step 2"):
        writer.write({"step": 1})
    with pytest.raises(TypeError, match="metric kl"):
        writer.write({"step": 3, "kl": [1]})
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_a_log_takes_several_rows_of_a_step(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "log.jsonl")
    log.append([{"step": 1, "n": 0}, {"step": 1, "n": 1}, {"step": 2, "n": 2}])
    assert log.truncate_after(1) == 1
    assert [row["n"] for row in read_rows(log.path)] == [0, 1]


def test_damage_inside_a_log_is_named_and_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(LogError, match="line 2"):
        read_rows(path)
    path.write_text('{"step": 1}\n{"kl": 1}\n')
    with pytest.raises(LogError, match="line 2: a row needs an integer `step`"):
        StepLog(path)
    assert read_rows(tmp_path / "absent.jsonl") == []


def test_deterministic_leaves_out_what_the_clock_decides() -> None:
    row = {
        "step": 1,
        "kl": 0.1,
        "seconds/step": 3.0,
        "tokens_per_s/update": 9.0,
        "compiles": 2,
        "judge/failed": 0.0,
        "judge/latency_mean": 0.2,
    }
    assert deterministic(row) == {"step": 1, "kl": 0.1, "judge/failed": 0.0}


def test_a_metric_that_is_neither_number_nor_text_is_told_with_its_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "kl": 0.5}\n{"step": 2, "kl": null}\n')
    with pytest.raises(LogError, match=r"kl of step 2 is None"):
        read_metrics(path)


def test_arrays_of_no_dimension_are_numbers_and_others_are_refused(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    assert writer.write({"step": 1, "kl": np.float32(0.5), "n": np.asarray(3)}) == {
        "step": 1,
        "kl": 0.5,
        "n": 3,
    }
    with pytest.raises(TypeError, match="metric kl must be a number or text"):
        writer.write({"step": 2, "kl": np.zeros(2)})
    writer.close()
