"""What a run folder notes of its pool, written and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.data.references import PoolEntry, Provenance, ReferencePool
from vcap_jax.references.note import POOL_NOTE, read_note, write_note
from vcap_jax.system.json_values import JsonError

ENTRIES = [PoolEntry(id="a", references=("a cat",)), PoolEntry(id="b", references=("a dog", "a hound"))]


def test_a_pool_with_a_header_is_noted_with_its_writer(tmp_path: Path) -> None:
    provenance = Provenance(writer="base", weights=None, seed=3, settings={"segments": 0}, asked="x")
    ReferencePool(ENTRIES).write(tmp_path / "pool.jsonl", provenance, created="2026-01-01T00:00:00+00:00")
    pool = ReferencePool.read(tmp_path / "pool.jsonl")
    write_note(tmp_path / POOL_NOTE, pool, "pool.jsonl")
    note = read_note(tmp_path / POOL_NOTE)
    assert note is not None
    assert (note.source, note.writer, note.entries) == ("pool.jsonl", "base", 2)
    assert note.digest == pool.digest()
    assert json.loads((tmp_path / POOL_NOTE).read_text())["header"]["provenance"]["seed"] == 3


def test_a_pool_without_a_header_has_no_writer(tmp_path: Path) -> None:
    write_note(tmp_path / POOL_NOTE, ReferencePool(ENTRIES), "the manifest")
    note = read_note(tmp_path / POOL_NOTE)
    assert note is not None
    assert note.writer is None


def test_no_file_is_no_note_and_another_file_is_named(tmp_path: Path) -> None:
    assert read_note(tmp_path / POOL_NOTE) is None
    (tmp_path / POOL_NOTE).write_text('{"source": "x", "digest": 7, "entries": 1, "header": null}')
    with pytest.raises(JsonError, match=r"references\.json: digest: 7"):
        read_note(tmp_path / POOL_NOTE)
