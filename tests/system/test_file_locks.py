"""A lock that one process has at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vcap_jax.system.errors import VCapError
from vcap_jax.system.file_locks import LOCK, alone, free, only_one, taken, waited_for

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


STARTS = """
import subprocess, sys
from pathlib import Path
from vcap_jax.system.errors import VCapError
from vcap_jax.system.file_locks import only_one
with only_one(Path(sys.argv[1]), VCapError, "go away", inherited=sys.argv[2] == "True"):
    child = subprocess.Popen(["cat"], close_fds=False)
    print(child.pid, flush=True)
"""


@pytest.mark.parametrize("inherited", [True, False])
def test_a_folder_may_be_held_by_the_processes_of_one_that_has_ended(tmp_path: Path, inherited: bool) -> None:
    command = [sys.executable, "-c", STARTS, tmp_path, str(inherited)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert int(other.stdout.readline()) > 0
        other.wait()
        assert taken(tmp_path / LOCK) == inherited
        other.stdin.close()  # which ends the child
        with waited_for(tmp_path / LOCK):
            pass
    assert not taken(tmp_path / LOCK)


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


def test_a_folder_may_be_taken_and_a_link_to_it_tells_nothing(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    file = os.open(folder, os.O_RDONLY)
    assert not taken(folder)
    fcntl.flock(file, fcntl.LOCK_EX)
    assert taken(folder)
    assert not taken(link)
    os.close(file)
    assert not taken(folder)


def test_where_there_are_no_locks_nobody_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".lock").touch()
    monkeypatch.setattr(fcntl, "flock", refused)
    assert not free(tmp_path / ".lock")
