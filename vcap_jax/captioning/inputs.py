"""What is to be captioned: picture files, clips, folders of both, manifests, in any mixture and of any number.

Inputs are named once, in order, and read as a stream: of a folder only the names of one directory are ever held, of a
manifest one row. The index of an input in that stream is what its draws depend on.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.data.folders import VIDEO_SUFFIXES, ending, image_suffixes, left_out, media_files, not_utf8
from vcap_jax.data.jsonl import address_remedy, is_address, other_format
from vcap_jax.data.manifest import Sample, file_sample, stream_manifest
from vcap_jax.system.errors import ProblemsError
from vcap_jax.system.files import where_sought

MANIFEST_SUFFIXES = frozenset({".jsonl", ".ndjson"})


def is_bytes(value: object) -> bool:
    """Whether it is a file's content, of which Python would give the single numbers."""
    return isinstance(value, bytes | bytearray | memoryview)


def is_several(value: object) -> bool:
    """Whether it can be gone through, input by input."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return not is_bytes(value)


class InputsError(ProblemsError):
    """Inputs that cannot be captioned; the message names each and what to do."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """How many inputs there are, by kind. digest: of which they are; files: of what their files are called, as two
    folders may hold the same names. others: files of folders that are neither picture nor clip by their names.
    left_out: what is said of these."""

    images: int
    videos: int
    others: int
    left_out: str
    digest: str
    files: str

    @property
    def total(self) -> int:
        return self.images + self.videos

    def __str__(self) -> str:
        kinds = [(self.images, "image"), (self.videos, "video")]
        return " and ".join(f"{n:,} {kind}{'s' * (n != 1)}" for n, kind in kinds if n) or "nothing"


class Inputs:
    """Files, folders and manifests as a stream of samples, the same each time as long as nothing changes on disk.

    Of a folder all pictures and clips are taken (``data.folders``), of a manifest (.jsonl) every row
    (``data.manifest``). An id is the row's own, or the path as it is named here; of a folder that is named alone it is
    the path in it, as where the folder is a run's ``data.manifest``. It may occur twice.
    """

    def __init__(self, named: str | Path | Sequence[str | Path]) -> None:
        """One name or several. Raises InputsError unless every name is a picture, a clip, a folder or a manifest that
        is there, TypeError for what is no name and no list of names."""
        if not (isinstance(named, str | Path) or is_several(named)):
            raise TypeError(f"named is of type {type(named).__name__}: give a path, or a list of paths")
        self._named = [Path(name) for name in ([named] if isinstance(named, str | Path) else named)]
        problems = [problem for path in self._named if (problem := _problem(path)) is not None]
        if not self._named:
            problems = ["nothing is named: give pictures, clips, folders of them, or a manifest (.jsonl)"]
        if problems:
            raise InputsError(*problems)

    def __iter__(self) -> Iterator[Sample]:
        """Raises ManifestError for a row that is no sample or a file's name that is not UTF-8."""
        for sample in self._all():
            if isinstance(sample, Sample):
                yield sample

    def counted(self) -> Counted:
        """Goes through all names once; opens no picture. Raises ManifestError, and InputsError if there is nothing."""
        counts = {"image": 0, "video": 0}
        others: Counter[str] = Counter()
        digest, files = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        for sample in self._all():
            if isinstance(sample, Path):
                others[ending(sample)] += 1
                continue
            counts[sample.modality] += 1
            digest.update(identified(sample))
            files.update(json.dumps([str(file) for file in sample.files]).encode())
        found = Counted(
            images=counts["image"],
            videos=counts["video"],
            others=others.total(),
            left_out=left_out(others),
            digest=digest.hexdigest(),
            files=files.hexdigest(),
        )
        if not found.total:
            named = ", ".join(map(str, self._named))
            rest = f"; {left_out(others)}" if others else ""
            raise InputsError(f"{named}: no picture and no clip in there{rest}")
        return found

    def _all(self) -> Iterator[Sample | Path]:
        """A path is that of a file that is left out."""
        for path in self._named:
            if path.is_dir():
                for file, seen in media_files(path):
                    name = str(file) if len(self._named) > 1 else file.relative_to(path).as_posix()
                    yield file_sample(file, name) if seen else file
            elif path.suffix.lower() in MANIFEST_SUFFIXES:
                for _, sample in stream_manifest(path):
                    yield sample
            else:
                yield file_sample(path, str(path))


def identified(sample: Sample) -> bytes:
    """What ``Counted.digest`` is made of."""
    return json.dumps([sample.id, sample.modality, sample.prompt]).encode()


def _problem(path: Path) -> str | None:
    if is_address(str(path)):
        return f"{path} is an address: {address_remedy(str(path))}"
    if not path.exists():
        return f"{path} does not exist{where_sought(path)}"
    if (unwritable := not_utf8(path)) is not None:
        return unwritable
    if path.is_dir() or path.suffix.lower() in (VIDEO_SUFFIXES | MANIFEST_SUFFIXES | image_suffixes()):
        return None
    if path.suffix.lower() in (".heic", ".heif"):
        return f"{path} is HEIC, which nothing here opens: convert it, for example to JPEG"
    if path.is_file() and (other := other_format(path, "manifest")) is not None:
        return other
    return f"{path} is neither picture, clip, folder nor manifest (.jsonl) by its name: rename it, or leave it out"
