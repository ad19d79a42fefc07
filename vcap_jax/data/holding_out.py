"""Which rows of a manifest a run takes, and which of them it holds out: by a hash of their ids, whatever else the
manifest holds."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.manifest import Sample
from vcap_jax.system.digests import number_of


def a_part(samples: Sequence[Sample], most: int) -> list[Sample]:
    """``most`` of the samples, in their order; all where there are no more. Those of a smaller part are in every larger
    one."""
    if len(samples) <= most:
        return list(samples)
    taken = {
        sample.id for sample in sorted(samples, key=lambda sample: number_of(f"part/{sample.id}"))[:most]
    }
    return [sample for sample in samples if sample.id in taken]


def is_held_out(identity: str, share: float, seed: int) -> bool:
    """Whether the sample of that id is among the ``share`` (0 to 1) that is held out; the same on every machine."""
    return number_of(f"held out/{seed}/{identity}") < share * 2.0**64


def divided(samples: Sequence[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """The samples to train on and those held out, each in their order. Neither are those that show a file of a held-out
    sample and are not held out themselves."""
    trained: list[Sample] = []
    held: list[Sample] = []
    for sample in samples:
        (held if is_held_out(sample.id, share, seed) else trained).append(sample)
    if not held:
        return trained, held
    name = _namer()
    shown = {name(file) for sample in held for file in sample.files}
    return [sample for sample in trained if not any(name(file) in shown for file in sample.files)], held


def check_apart(trained: Sequence[Sample], heldout: Sequence[Sample]) -> None:
    """Raises ManifestError if a held-out sample is trained on: by its id, which names its references too, or by a
    file."""
    if not heldout:
        return
    name = _namer()
    ids = {sample.id: sample for sample in trained}
    files = {name(file): sample for sample in trained for file in sample.files}
    for sample in heldout:
        shared = [ids[sample.id]] if sample.id in ids else []
        shared += [files[name(file)] for file in sample.files if name(file) in files]
        if shared:
            what = "the id" if shared[0].id == sample.id else "a file"
            raise ManifestError(
                f"{sample.origin}: {what} of the held-out sample {sample.id!r} is that of {shared[0].origin}, which is "
                "trained on: name other samples in data.heldout, or take the row out of one of the two manifests "
                "(data.heldout_share in its place holds out rows of data.manifest)"
            )


def shown_together(samples: Sequence[Sample]) -> dict[str, str]:
    """What samples that show a file of another one are of, by their ids: the id of the first that shows it, or that
    shows another one with it. Not those whose files are theirs alone."""
    name = _namer()
    files = [[name(file) for file in sample.files] for sample in samples]
    leads: dict[str, str] = {}

    def first_of(file: str) -> str:
        while (nearer := leads.setdefault(file, file)) != file:
            leads[file] = file = leads[nearer]
        return file

    for own in files:
        for file in own[1:]:
            leads[first_of(file)] = first_of(own[0])
    rows: dict[str, list[str]] = {}
    for sample, own in zip(samples, files, strict=True):
        rows.setdefault(first_of(own[0]), []).append(sample.id)
    return {identity: of[0] for of in rows.values() if len(of) > 1 for identity in of}


def _namer() -> Callable[[Path], str]:
    """What a file is called where links are followed: a link shows what it leads to. Each folder is looked at once, for
    on network storage every part of a path costs a round trip."""
    folder = functools.cache(lambda path: os.path.realpath(path).rstrip("/"))

    def name(file: Path) -> str:
        linked = os.path.islink(file)  # noqa: PTH114 - is_symlink raises where a folder may not be looked into
        return os.path.realpath(file) if linked else f"{folder(file.parent)}/{file.name}"

    return name
