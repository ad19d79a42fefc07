"""What a run folder notes of the pool that the run uses: ``references.json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from vcap_jax.data.references import PoolHeader, ReferencePool
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import read_record

POOL_NOTE = "references.json"


@dataclass(frozen=True, kw_only=True)
class PoolNote:
    """source: the pool's file, or whose captions they are, in words. digest: of its lines. entries: samples. header:
    of the pool, None for one without."""

    source: str
    digest: str
    entries: int
    header: PoolHeader | None

    @property
    def writer(self) -> str | None:
        """Who wrote it, None for a pool without a header."""
        return None if self.header is None else self.header.provenance.writer


def write_note(path: Path, pool: ReferencePool, source: str) -> None:
    """Notes a pool in a file."""
    note = PoolNote(source=source, digest=pool.digest(), entries=len(pool), header=pool.header)
    write_json(path, asdict(note))


def read_note(path: Path) -> PoolNote | None:
    """What ``write_note`` wrote; None if there is no file. Raises JsonError for a file of another kind."""
    if not path.exists():
        return None
    return read_record(
        PoolNote,
        path,
        remedy="put the file back, or remove it: whether the captions are those that the run began with is then not "
        "looked at",
    )
