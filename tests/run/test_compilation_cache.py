"""Compiled programs are kept where all processes of a run find them, or not at all."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from tests.processes_in_threads import in_threads
from vcap_jax.parallel.processes import ALONE
from vcap_jax.run.compilation_cache import check_shared_cache, seen_by_all
from vcap_jax.run.config import RunConfig


def test_one_folder_is_seen_by_all_and_clones_of_their_own_are_not(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    assert in_threads(3, lambda processes: seen_by_all(shared, processes)) == [True] * 3
    own = in_threads(3, lambda processes: seen_by_all(tmp_path / str(min(processes.index, 1)), processes))
    assert own == [False] * 3
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_cache_that_is_not_shared_is_turned_off_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[tuple[str, object]] = []
    monkeypatch.setattr(jax.config, "update", lambda name, value: changed.append((name, value)))
    told: list[str] = []

    def check(processes, folder: str) -> None:
        check_shared_cache(RunConfig(compilation_cache=folder), processes, told.append)

    in_threads(2, lambda processes: check(processes, str(tmp_path)))
    check(ALONE, "anything")
    assert (changed, told) == ([], [])
    in_threads(2, lambda processes: check(processes, str(tmp_path / str(processes.index))))
    assert changed == [("jax_compilation_cache_dir", None)] * 2
    assert len(told) == 1
    assert "is not one folder for all 2 processes" in told[0]
