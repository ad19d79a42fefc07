"""The captions of one input, as they are handed on and as they stand in a caption file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vcap_jax.data.manifest import Sample
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import JsonDict, JsonObject


@dataclass(frozen=True, kw_only=True)
class Caption:
    """An input and what was said of it.

    index: its number among the inputs, from 0. id: its path as it was named, or its manifest row's. files: its
    pictures, or its clip. texts: its captions, as many as were asked for. tokens: of each, the end token included;
    empty where they are not known. truncated: whether each was cut off by the token budget. failure: why it has
    failed, else None: there is no caption, or only some of those that were asked for.
    """

    index: int
    id: str
    modality: Literal["image", "video"]
    files: tuple[Path, ...]
    texts: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    truncated: tuple[bool, ...] = ()
    failure: str | None = None

    @property
    def text(self) -> str:
        """The first caption. Raises ValueError if the input has failed."""
        if self.failure is not None:
            raise ValueError(
                f"{self.id} has {'not all captions' if self.texts else 'no caption'}: {self.failure}"
            )
        return self.texts[0]

    @property
    def named_failure(self) -> str:
        """Why it has failed, with its id before it unless the reason begins with that, or with a path that ends in
        it; empty where it has not failed."""
        why = self.failure or ""
        named = why.partition(": ")[0].endswith(self.id) or why.startswith(f"{self.id} ")
        return why if named or not why else f"{self.id}: {why}"

    @classmethod
    def failed(cls, index: int, sample: Sample, reason: str) -> Caption:
        """Of an input that could not be captioned."""
        return cls(index=index, id=sample.id, modality=sample.modality, files=sample.files, failure=reason)

    def row(self) -> JsonDict:
        """As JSON: "id", "image", "images" or "video" with the files, and "captions" with "truncated" (and "tokens"),
        or "failure"; both where captions are lacking."""
        files: JsonDict
        if self.modality == "video":
            files = {"video": str(self.files[0])}
        elif len(self.files) == 1:
            files = {"image": str(self.files[0])}
        else:
            files = {"images": [str(file) for file in self.files]}
        failure: JsonDict = {} if self.failure is None else {"failure": self.failure}
        if failure and not self.texts:
            return {"id": self.id, **files, **failure}
        tokens: JsonDict = {"tokens": list(self.tokens)} if self.tokens else {}
        return {
            "id": self.id,
            **files,
            **failure,
            "captions": list(self.texts),
            "truncated": list(self.truncated),
            **tokens,
        }

    @classmethod
    def of_row(cls, row: JsonObject, index: int, where: str) -> Caption:
        """The inverse of ``row``. where: file and line. Raises JsonError for a row that is none."""
        found: JsonDict = {
            **row,
            "index": index,
            "modality": "video" if "video" in row else "image",
            "files": row["images"] if "images" in row else [row.get("video", row.get("image"))],
            "texts": row.get("captions", [] if "failure" in row else None),
        }
        return as_record(cls, found, where)
