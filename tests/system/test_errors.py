"""What the system refuses comes out in one line, whoever wrapped it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from vcap_jax.system.errors import system_message


def caused(outer: Exception, inner: BaseException) -> Exception:
    try:
        raise outer from inner
    except Exception as error:
        return error


def test_the_file_and_the_remedy_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        (tmp_path / "absent").read_text()
    assert system_message(raised.value) == f"{tmp_path / 'absent'}: no such file or directory"
    full = OSError(errno.ENOSPC, "No space left on device", "runs/x/metrics.jsonl")
    assert system_message(full) == "runs/x/metrics.jsonl: no space left on device; free some space"
    denied = PermissionError(errno.EACCES, "Permission denied", b"runs/x")
    assert (
        system_message(denied)
        == "runs/x: permission denied; give this user the right to it, or choose another"
    )


def test_a_message_of_our_own_stays() -> None:
    assert (
        system_message(FileExistsError("x is not empty: give a new folder"))
        == "x is not empty: give a new folder"
    )


def test_causes_and_groups_are_followed() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "a")
    assert system_message(caused(RuntimeError("a save failed"), full)) == system_message(full)
    group = ExceptionGroup("several", [ValueError("x"), caused(ValueError("y"), full)])
    assert system_message(caused(RuntimeError("in a thread"), group)) == system_message(full)


def test_libraries_that_keep_the_text_alone_are_understood() -> None:
    tensorstore = ValueError(
        'RESOURCE_EXHAUSTED: Error writing "a": Failed to write 10 bytes: No space left on device'
    )
    assert system_message(tensorstore) == "no space left on device; free some space"


def test_what_the_system_had_no_part_in_is_left_alone() -> None:
    assert system_message(caused(ValueError("a defect"), KeyError("x"))) is None
