"""What a run folder notes of the pool that the run uses: ``references.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from vcap_jax.data.references import ReferencePool
from vcap_jax.report.step_log import replace_file
from vcap_jax.system.json_values import as_object, as_text, as_whole, read_json_object

POOL_NOTE = "references.json"


@dataclass(frozen=True, kw_only=True)
class PoolNote:
    """source: the pool's file, or whose captions they are, in words. digest: of its lines. entries: samples.

    writer: who wrote it, None for a pool without a header.
    """

    source: str
    digest: str
    entries: int
    writer: str | None


def write_note(path: Path, pool: ReferencePool, source: str) -> None:
    """Notes a pool in a file."""
    header = None if pool.header is None else asdict(pool.header)
    row = {"source": source, "digest": pool.digest(), "entries": len(pool), "header": header}
    replace_file(path, (json.dumps(row, indent=2, ensure_ascii=False) + "\n").encode())


def read_note(path: Path) -> PoolNote | None:
    """What ``write_note`` wrote; None if there is no file. Raises JsonError for a file of another kind."""
    if not path.exists():
        return None
    row = read_json_object(path)
    header = row.get("header")
    writer = None
    if header is not None:
        provenance = as_object(as_object(header, f"{path}: header").get("provenance"), f"{path}: provenance")
        writer = as_text(provenance.get("writer"), f"{path}: writer")
    return PoolNote(
        source=as_text(row.get("source"), f"{path}: source"),
        digest=as_text(row.get("digest"), f"{path}: digest"),
        entries=as_whole(row.get("entries"), f"{path}: entries"),
        writer=writer,
    )
