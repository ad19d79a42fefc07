"""Makes the items of a study from what captioners wrote: a manifest, and a file of captions for each model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vcap_jax.data.jsonl import read_objects
from vcap_jax.data.manifest import Sample, missing_files, read_manifest
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.captions_file import read_captions
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.records import Caption, Item, write_rows
from vcap_jax.human_eval.study import ITEMS

MEDIA = "media"


def gather(
    folder: Path, manifest: Path, captions: Mapping[str, Path], *, count: int | None = None, seed: int = 0
) -> tuple[Item, ...]:
    """Writes ``items.jsonl``: the manifest's samples that every model has a caption of, the first one of each model.

    captions: files by model, as ``launch/caption.py``, ``launch/evaluate.py`` and the evaluations of a run leave them,
    or pools of references. count: of items, drawn with ``seed``; None takes all. Media are linked into the folder,
    or copied where links cannot be made. Raises StudyError, ManifestError, EvaluatorError.
    """
    if (folder / ITEMS).exists():
        raise StudyError(f"{folder / ITEMS} is there already: leave --captions out, or name a new folder")
    if len(captions) < 2:
        raise StudyError("captions are compared with each other: give --captions of two models at least")
    samples = read_manifest(manifest)
    told = {model: _first_captions(path) for model, path in captions.items()}
    shared = [sample for sample in samples if all(sample.id in texts for texts in told.values())]
    if not shared:
        have = "; ".join(
            f"{model} has {sum(s.id in texts for s in samples)} of them" for model, texts in told.items()
        )
        raise StudyError(
            f"no sample of {manifest} has a caption of every model ({have}): give files of one manifest"
        )
    if count is not None and count < len(shared):
        drawn = np.random.default_rng(seed).permutation(len(shared))[:count]
        shared = [shared[place] for place in sorted(drawn)]
    for sample, file in missing_files(shared):
        raise StudyError(f"{sample.origin}: {file} does not exist: check the path")
    (folder / MEDIA).mkdir(parents=True, exist_ok=True)
    items = tuple(
        _item(folder, sample, number, {model: texts[sample.id] for model, texts in told.items()})
        for number, sample in enumerate(shared)
    )
    write_rows(folder / ITEMS, items)
    return items


def _first_captions(path: Path) -> dict[str, str]:
    """The first caption of each sample; what has none, or an empty one, is left out."""
    _, first = next(read_objects(path, "file of captions"), (0, {}))
    if "captions" in first or "failure" in first:
        found = {name: entry.texts for name, entry in read_captions(path).items() if entry.failure is None}
    else:
        found = {entry.id: entry.references for entry in ReferencePool.read(path).entries()}
    return {name: texts[0] for name, texts in found.items() if texts and texts[0].strip()}


def _item(folder: Path, sample: Sample, number: int, texts: Mapping[str, str]) -> Item:
    if len(sample.files) > 1:
        raise StudyError(
            f"{sample.origin}: {len(sample.files)} images; a study shows one picture or video an item"
        )
    (source,) = sample.files
    media = f"{MEDIA}/{number:05d}{source.suffix.lower()}"
    target = folder / media
    target.unlink(missing_ok=True)  # of a start that was killed
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
    return Item(
        id=sample.id,
        image=media if sample.modality == "image" else None,
        video=media if sample.modality == "video" else None,
        captions=tuple(Caption(model=model, text=text) for model, text in texts.items()),
    )
