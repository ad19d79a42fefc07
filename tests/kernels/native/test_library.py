"""How the C++ kernels come to be. Those of these tests are one function, which is compiled at once."""

from __future__ import annotations

import logging
import shlex
import stat
from pathlib import Path

import pytest

from tests.kernels.native.compiler import needs_compiler
from vcap_jax.kernels.native import library


@pytest.fixture(autouse=True)
def small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("cpp")
    (folder / library.MAIN).write_text('extern "C" int one() { return 1; }\n')
    monkeypatch.setattr(library, "SOURCES", folder)


@needs_compiler
def test_it_is_compiled_once_and_says_so(tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.INFO):
        digest, file = library.compiled(tmp_path)
    assert file.name == f"native-{digest}.so"
    assert "compiled the C++ kernels" in caplog.text
    made = file.stat().st_mtime_ns
    assert library.compiled(tmp_path) == (digest, file)
    assert file.stat().st_mtime_ns == made
    assert list(tmp_path.iterdir()) == [file]


@needs_compiler
def test_what_another_user_can_put_there_is_not_loaded(tmp_path: Path) -> None:
    """A file that others may write is compiled anew, a folder that they may write is refused."""
    _, file = library.compiled(tmp_path / "cache")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file)] == [0o700, 0o700]
    file.write_bytes(b"theirs")
    file.chmod(0o777)
    assert library.compiled(tmp_path / "cache")[1].read_bytes() != b"theirs"
    file.unlink()
    (tmp_path / "theirs.so").write_bytes(b"theirs")
    file.symlink_to(tmp_path / "theirs.so")
    assert library.compiled(tmp_path / "cache")[1].read_bytes() != b"theirs"
    assert not file.is_symlink()
    assert (tmp_path / "theirs.so").read_bytes() == b"theirs"
    file.parent.chmod(0o777)
    with pytest.raises(library.NoLibrary, match=r"every user can change .*cache.*XDG_CACHE_HOME"):
        library.compiled(tmp_path / "cache")


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    """It answers what it predefines, and then cannot compile."""
    compiler = tmp_path / "broken"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *-dM*) exit 0;; esac\necho "error: no vectors" >&2\nexit 1\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", shlex.quote(str(compiler)))
    with pytest.raises(library.NoLibrary, match=r"in CXX.*error: no vectors"):
        library.compiled(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@needs_compiler
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(library.NoLibrary, match=r"file/cache, which cannot be used.*XDG_CACHE_HOME"):
        library.compiled(tmp_path / "file" / "cache")
