"""The manifest: one JSON object per line, one sample each.

    {"id": "a", "image": "pictures/a.png"}
    {"id": "b", "images": ["b1.jpg", "b2.jpg"], "prompt": "What changed?", "references": ["..."]}
    {"id": "c", "video": "clips/c.mp4"}

Paths are relative to the manifest's folder (absolute ones stay). Other keys are kept in ``Sample.extra``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.jsonl import read_objects, string_list

_KNOWN = {"id", "image", "images", "video", "prompt", "references"}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row.

    images: files of its images, empty for a video; video: its file, None for images.
    prompt: its own question, or None for the configured one; references: reference captions of the row
        itself.
    extra: every other key of the row; origin: "file:line", for messages.
    """

    id: str
    images: tuple[Path, ...] = ()
    video: Path | None = None
    prompt: str | None = None
    references: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
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


def read_manifest(path: str | Path, *, check_files: bool = False) -> list[Sample]:
    """All samples of a manifest, in its order.

    check_files: also refuse a row whose file does not exist (otherwise the pipeline meets and reports it).

    Raises:
        ManifestError: missing or empty file, a line that is not a JSON object, a missing or ill-typed key, an
            id that occurs twice; the message names file, line and remedy.
    """
    source = Path(path)
    samples: list[Sample] = []
    seen: dict[str, int] = {}
    for number, row in read_objects(source, "manifest"):
        sample = _sample(row, source, number)
        if sample.id in seen:
            raise ManifestError(
                f'{source}:{number}: id "{sample.id}" is already that of line {seen[sample.id]}: '
                "give every row its own id"
            )
        seen[sample.id] = number
        if check_files:
            for file in sample.files:
                if not file.is_file():
                    raise ManifestError(
                        f"{sample.origin}: {file} does not exist: correct the path or drop the row"
                    )
        samples.append(sample)
    if not samples:
        raise ManifestError(f"the manifest {source} is empty: write one JSON object per line")
    return samples


def _sample(row: dict[str, Any], source: Path, number: int) -> Sample:
    where = f"{source}:{number}"
    identity = row.get("id")
    if isinstance(identity, int) and not isinstance(identity, bool):
        identity = str(identity)
    if not isinstance(identity, str) or not identity:
        raise ManifestError(f'{where}: "id" must be a text that is not empty, got {identity!r}')
    media = [key for key in ("image", "images", "video") if key in row]
    if len(media) != 1:
        found = " and ".join(media) or "none of them"
        raise ManifestError(f'{where}: a row has exactly one of "image", "images" and "video", got {found}')
    key = media[0]
    names = string_list([row[key]] if key != "images" else row[key], where, key)
    if not names:
        raise ManifestError(f'{where}: "images" is empty: name at least one file')
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
        extra={name: value for name, value in row.items() if name not in _KNOWN},
        origin=where,
    )
