"""A lock that one process has at a time."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from vcap_jax.system.errors import VCapError
from vcap_jax.system.file_locks import alone, free, only_one

OTHER = "import sys; from vcap_jax.system.file_locks import alone; print(alone(open(sys.argv[1], 'a')))"


HOLDS = """
import sys
from pathlib import Path
from vcap_jax.system.errors import VCapError
from vcap_jax.system.file_locks import only_one
with only_one(Path(sys.argv[1]), VCapError, "go away"):
    print("held", flush=True)
    sys.stdin.read()
"""


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


def test_a_folder_is_one_processs_at_a_time_and_the_other_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "capmas"
    command = [sys.executable, "-c", HOLDS, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(
                VCapError,
                match=rf"another process \({other.pid} on .*\) is at work in .*/capmas: wait .*or go",
            ),
            only_one(folder, VCapError, "go away"),
        ):
            pass
        other.kill()
    with only_one(folder, VCapError, "go away"):
        pass
    with only_one(folder, VCapError, "go away"):  # this process's own, one after the other
        pass


def test_a_folder_that_cannot_be_written_to_may_be_read_by_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", refused)
    with only_one(tmp_path, VCapError, "go away"):
        pass


def test_who_looks_whether_a_file_is_free_sees_its_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not free(path), "nobody knows of a file that is not there"
    with path.open("a") as file:
        assert free(path)
        assert alone(file)
        assert not free(path)
    assert free(path)


def test_where_there_are_no_locks_nobody_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".lock").touch()
    monkeypatch.setattr(fcntl, "flock", refused)
    assert not free(tmp_path / ".lock")
