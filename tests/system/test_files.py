"""Files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.system.files import drop_torn_end, replace_file, tail, where_sought, write_through


def test_replacing_a_file_leaves_the_old_one_if_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    with pytest.raises(TypeError):
        replace_file(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_a_file_do_not_meet_in_their_temporary_ones(tmp_path: Path) -> None:
    """Of one number, as the processes of two containers may have."""
    path = tmp_path / "a.json"

    def slowly(temporary: Path) -> None:
        temporary.write_bytes(b"sl")
        replace_file(path, b"quick")
        assert temporary.read_bytes() == b"sl"
        temporary.write_bytes(b"slow")

    write_through(path, slowly)
    assert path.read_bytes() == b"slow"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b"", b""),
        (b"a\nb\n", b"a\nb\n"),
        (b"a\nb\nto", b"a\nb\n"),
        (b"torn", b""),
        (b"a\n" + bytes(200_000), b"a\n"),
    ],
)
def test_a_torn_end_is_cut_off_and_no_whole_line_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, left: bytes
) -> None:
    """A file that was written again would be empty for a moment: a kill then would lose every line."""
    path = tmp_path / "lines.jsonl"
    drop_torn_end(path)
    assert not path.exists()
    path.write_bytes(content)
    same = path.stat().st_ino
    monkeypatch.setattr(Path, "write_bytes", None)
    drop_torn_end(path)
    assert path.read_bytes() == left
    assert path.stat().st_ino == same


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert tail(log, 3) == ""
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(5000)) + b"\xff the end")
    assert tail(log, 3) == "line 4998\nline 4999\n\ufffd the end"
    assert tail(log, 20_000).splitlines()[0] == "line 0"
    assert tail(log, 5, offset=log.stat().st_size - 19) == "line 4999\n\ufffd the end"


def test_for_a_torn_end_only_the_end_is_read(tmp_path: Path) -> None:
    """The file has a hole, and is larger than any memory."""
    path = tmp_path / "lines.jsonl"
    with path.open("wb") as file:
        file.seek(1 << 42)
        file.write(b"\ntorn")
    drop_torn_end(path)
    assert path.stat().st_size == (1 << 42) + 1


def test_where_a_relative_path_was_sought_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert where_sought("a/b") == where_sought(Path("b")) == f" in {here}"
    assert where_sought(here / "b") == ""
    here.rmdir()
    assert where_sought("b") == " in the working folder, which is gone"
