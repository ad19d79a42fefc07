"""What is read of processes and of their logs."""

from __future__ import annotations

from pathlib import Path

from gpu_judge.vllm_server.processes import read_stat, tail


def test_reads_the_state_of_a_process_with_an_odd_name() -> None:
    assert read_stat("17 (a) Z) S 1 99 17 0") == ("S", 99)


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log, 3) == ""
    log.write_text("".join(f"line {k}\n" for k in range(1000)))
    assert tail(log, 2) == "line 998\nline 999"
    assert tail(log, 5, offset=len(log.read_text()) - 9) == "line 999"
