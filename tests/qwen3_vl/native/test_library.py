"""How the C++ kernels come to be."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from tests.qwen3_vl.native.compiler import needs_compiler
from vcap_jax.qwen3_vl.native import library


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


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    """It answers what it predefines, and then cannot compile."""
    compiler = tmp_path / "broken"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *-dM*) exit 0;; esac\necho "error: no vectors" >&2\nexit 1\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(library.NoLibrary, match=r"in CXX.*error: no vectors"):
        library.compiled(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@needs_compiler
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(library.NoLibrary, match=r"file/cache, which cannot be used.*XDG_CACHE_HOME"):
        library.compiled(tmp_path / "file" / "cache")
