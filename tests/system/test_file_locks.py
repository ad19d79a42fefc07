"""A lock that one process has at a time."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from vcap_jax.system.file_locks import alone

OTHER = "import sys; from vcap_jax.system.file_locks import alone; print(alone(open(sys.argv[1], 'a')))"


def other_process(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", OTHER, path], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_another_process_has_it_until_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "part"
    with path.open("a") as file:
        assert alone(file)
        assert other_process(path) == "False"
    assert other_process(path) == "True"


def test_a_file_system_without_locks_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with (tmp_path / "part").open("a") as file:
        assert alone(file)
