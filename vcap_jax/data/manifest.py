"""The manifest: one JSON object per line, one sample each.

    {"id": "a", "image": "pictures/a.png"}
    {"id": "b", "images": ["b1.jpg", "b2.jpg"], "prompt": "What changed?", "references": ["..."]}
    {"id": "c", "video": "clips/c.mp4"}

Paths are relative to the manifest's folder (absolute ones stay). A key whose value is null counts as absent. Other keys
are kept in ``Sample.extra``; one that is nearly a key of this list, or another word for it, and stands in its place is
refused. A folder of pictures and clips is taken as a manifest too: a sample is a file, its id the file's path in the
folder.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.folders import VIDEO_SUFFIXES, media_files
from vcap_jax.data.jsonl import (
    address_remedy,
    is_address,
    other_keys,
    read_objects,
    row_id,
    string_list,
    without_nulls,
)
from vcap_jax.system.json_values import JsonObject

_MEDIA = ("image", "images", "video")
_LONGEST_PATH = 4096
"""Characters of a path, the most that Linux takes."""
_KEYS = {
    "id": ("uid", "key", "name", "image_id", "video_id", "sample_id"),
    "image": (
        "img",
        "picture",
        "photo",
        "path",
        "file",
        "filename",
        "file_name",
        "image_path",
        "image_file",
        "url",
    ),
    "images": ("pictures", "photos", "files", "paths", "image_paths", "image_files"),
    "video": ("clip", "movie", "video_path", "video_file"),
    "prompt": ("question", "instruction"),
    "references": ("caption", "captions", "ref", "refs", "reference_captions"),
}
"""The keys of a row, each with what other projects call it."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row.

    images: files of its images, empty for a video; video: its file, None for images.
    prompt: its own question, or None for the configured one; references: reference captions of the row
        itself.
    extra: every other key of the row; origin: ``"file:line"``, or the file of a folder, for messages.
    """

    id: str
    images: tuple[Path, ...] = ()
    video: Path | None = None
    prompt: str | None = None
    references: tuple[str, ...] = ()
    extra: JsonObject = field(default_factory=dict)
    origin: str = ""

    def __post_init__(self) -> None:
        if bool(self.images) == (self.video is not None):
            raise ValueError(f"sample {self.id}: give either images or a video")

    @property
    def modality(self) -> Literal["image", "video"]:
        return "image" if self.video is None else "video"

    @property
    def files(self) -> tuple[Path, ...]:
        return self.images if self.video is None else (self.video,)


def read_manifest(path: str | Path) -> list[Sample]:
    """All samples of a manifest or of a folder, in its order. Files are not looked at (``missing_files``).

    Raises ManifestError: missing or empty file or folder, a line that is not a JSON object, a missing, misspelt or
    ill-typed key, an id that occurs twice; the message names file, line and remedy.
    """
    source = Path(path)
    samples: list[Sample] = []
    seen: dict[str, int] = {}
    for number, sample in stream_manifest(source):
        if sample.id in seen:
            raise ManifestError(
                f'{source}:{number}: id "{sample.id}" is already that of line {seen[sample.id]}: '
                "give every row its own id"
            )
        seen[sample.id] = number
        samples.append(sample)
    if not samples and source.is_dir():
        raise ManifestError(f"the folder {source} has no picture and no clip, by their names: name another")
    if not samples:
        raise ManifestError(f"the manifest {source} is empty: write one JSON object per line")
    return samples


def stream_manifest(path: str | Path) -> Iterator[tuple[int, Sample]]:
    """(line, sample) for every row, or (which, sample) for every file of a folder, one at a time: for manifests of any
    length. An id may occur twice.

    Raises ManifestError: missing file, a line that is no sample; the message names file, line and remedy.
    """
    source = Path(path)
    if source.is_dir():
        for number, (file, seen) in enumerate(media_files(source), 1):
            if seen:
                yield number, file_sample(file, file.relative_to(source).as_posix())
        return
    for number, row in read_objects(source, "manifest"):
        yield number, _sample(without_nulls(row), source, number)


def file_sample(path: Path, identity: str) -> Sample:
    """One picture or clip; which of them is told by its name."""
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return Sample(id=identity, video=path, origin=str(path))
    return Sample(id=identity, images=(path,), origin=str(path))


def missing_files(samples: Sequence[Sample]) -> list[tuple[Sample, Path]]:
    """The samples of which a file does not exist, with the first such file. Many are looked for at a time: on network
    storage each costs a round trip."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        found = pool.map(lambda s: next((file for file in s.files if not _may_be_file(file)), None), samples)
        return [(sample, file) for sample, file in zip(samples, found, strict=True) if file is not None]


def _may_be_file(path: Path) -> bool:
    """Whether there is a file, or something that this user may not see, of which reading it tells."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        if error.errno in (errno.EACCES, errno.EPERM):
            return True
        raise


def _sample(row: JsonObject, source: Path, number: int) -> Sample:
    where = f"{source}:{number}"
    extra = other_keys(row, where, _KEYS, instead=_MEDIA)
    identity = row_id(row, where)
    media = [key for key in _MEDIA if key in row]
    if len(media) != 1:
        found = " and ".join(media) or "none of them"
        raise ManifestError(f'{where}: a row has exactly one of "image", "images" and "video", got {found}')
    key = media[0]
    if key != "images" and isinstance(row[key], list):
        remedy = 'several pictures are "images"' if key == "image" else "give each clip a row"
        raise ManifestError(f'{where}: "{key}" is a list, and names one file: {remedy}')
    named = row[key]
    if key != "images" and not (isinstance(named, str) and named.strip()):
        raise ManifestError(f'{where}: "{key}" must be the path of a file, got {named!r}')
    names = string_list([named] if key != "images" else named, where, key)
    if not names:
        raise ManifestError(f'{where}: "images" is empty: name at least one file')
    for name in names:
        if name.startswith("data:") or len(name) > _LONGEST_PATH:
            raise ManifestError(
                f'{where}: "{key}" is no path but the file itself, {name[:32]!r}...: write it into a file and '
                "give its path"
            )
        if "\0" in name:
            raise ManifestError(
                f'{where}: "{key}" is {name!r}, and no file\'s path has a NUL: correct the path'
            )
        if is_address(name):
            raise ManifestError(
                f"{where}: {name} is an address, and files must be local: {address_remedy(name)}"
            )
    paths = tuple(source.parent / name for name in names)
    prompt = row.get("prompt")
    if prompt is not None and (not isinstance(prompt, str) or not prompt.strip()):
        raise ManifestError(f'{where}: "prompt" must be a text that is not empty, got {prompt!r}')
    return Sample(
        id=identity,
        images=() if key == "video" else paths,
        video=paths[0] if key == "video" else None,
        prompt=prompt,
        references=string_list(row.get("references", []), where, "references"),
        extra=extra,
        origin=where,
    )
