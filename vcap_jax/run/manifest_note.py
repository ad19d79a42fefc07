"""What a run folder notes of the manifest's samples that the run uses: ``manifest.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import read_record

MANIFEST_NOTE = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class ManifestNote:
    """Of the samples that are trained on and of those held out, how many there are and a digest of them."""

    training: int
    training_digest: str
    heldout: int
    heldout_digest: str


def remember_samples(
    folder: RunFolder, source: str | None, training: Sequence[Sample], heldout: Sequence[Sample]
) -> None:
    """Notes the samples that a run begins with. Raises ConfigError where it is resumed with others: what it learns, and
    a comparison with its start, would be of two different things.

    source: the manifest; None for the embedded world, whose scenes the configuration tells.
    """
    if source is None:
        return
    now = ManifestNote(
        training=len(training),
        training_digest=digest(training),
        heldout=len(heldout),
        heldout_digest=digest(heldout),
    )
    path = folder.root / MANIFEST_NOTE
    if not path.exists():
        write_json(path, asdict(now))
        return
    before = read_record(ManifestNote, path)
    kinds = {"to train on": "training", "held out": "heldout"}
    for what, kind in kinds.items():
        if getattr(before, f"{kind}_digest") == getattr(now, f"{kind}_digest"):
            continue
        had, has = getattr(before, kind), getattr(now, kind)
        told = (
            f"{has} samples, and had {had}"
            if had != has
            else f"other rows, or the same {had} in another order"
        )
        raise ConfigError(
            f"{source} is not what the run in {folder.root} began with: {what} it has {told} (id, prompt and names of "
            "files are compared). Put it back as it was, or start a new run"
        )


def digest(samples: Sequence[Sample]) -> str:
    """Of ids, prompts and names of files in their order. Where files lie may change; what is in them is not read."""
    rows = ((s.id, s.modality, s.prompt, [file.name for file in s.files]) for s in samples)
    return hashlib.blake2b("\n".join(map(json.dumps, rows)).encode(), digest_size=16).hexdigest()
