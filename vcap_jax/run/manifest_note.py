"""What a run folder notes of the manifest's samples that the run uses: ``manifest.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.system.digests import digest_of
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import read_record

MANIFEST_NOTE = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class SampleRows:
    """How many samples there are, and a digest of them."""

    count: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class ManifestNote:
    """What a run is trained on, and what it holds out."""

    training: SampleRows
    heldout: SampleRows


def remember_samples(
    folder: RunFolder, source: str | None, training: Sequence[Sample], heldout: Sequence[Sample]
) -> None:
    """Notes the samples that a run begins with. Raises ConfigError where it is resumed with others: what it learns, and
    a comparison with its start, would be of two different things.

    source: the manifest; None for the embedded world, whose scenes the configuration tells.
    """
    if source is None:
        return
    now = ManifestNote(training=_rows_of(training), heldout=_rows_of(heldout))
    path = folder.root / MANIFEST_NOTE
    if not path.exists():
        write_json(path, asdict(now))
        return
    before = read_record(ManifestNote, path)
    for what, had, has in (
        ("to train on", before.training, now.training),
        ("held out", before.heldout, now.heldout),
    ):
        if had == has:
            continue
        told = f"other rows, or the same {had.count} in another order"
        if had.count != has.count:
            told = f"{has.count} samples, and had {had.count}"
        raise ConfigError(
            f"{source} is not what the run in {folder.root} began with: {what} it has {told} (id, prompt and names of "
            "files are compared). Put it back as it was, or start a new run"
        )


def same_heldout(one: RunFolder, other: RunFolder) -> bool:
    """Whether two runs have noted that they hold out the same samples."""
    notes = [folder.root / MANIFEST_NOTE for folder in (one, other)]
    if not all(note.exists() for note in notes):
        return False
    first, second = (read_record(ManifestNote, note).heldout for note in notes)
    return first == second


def _rows_of(samples: Sequence[Sample]) -> SampleRows:
    """By ids, prompts and names of files in their order. Where files lie may change; what is in them is not read."""
    rows = ((s.id, s.modality, s.prompt, [file.name for file in s.files]) for s in samples)
    return SampleRows(count=len(samples), digest=digest_of("\n".join(map(json.dumps, rows))))
