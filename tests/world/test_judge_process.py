"""The embedded judge as a process of its own."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.patience import GUARD_S
from vcap_jax.world.judge_process import embedded_judge


@pytest.mark.slow
def test_a_judge_that_ends_early_is_told_at_once_with_its_log_and_one_that_is_ended_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    log, said, told = tmp_path / "judge.log", list[str](), threading.Event()

    def say(line: str) -> None:
        if "has ended" in line:
            said.append(line)
            told.set()

    with embedded_judge(log, timeout_s=GUARD_S, say=say):
        pass
    with embedded_judge(log, timeout_s=GUARD_S, say=say) as address:
        assert not said
        started[-1].kill()
        assert told.wait(GUARD_S)
    (line,) = said
    assert line.startswith("the embedded judge has ended with -9")
    assert str(log) in line
    assert f"judge ready at {address}" in line
    assert line.count("judge ready at") == 1, "earlier starts, in the same log, are not told"
