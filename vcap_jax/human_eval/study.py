"""A study's folder: what is asked, of whom, and where the answers are.

    STUDY/
      study.json           who annotates and how much twice (written with defaults if it is not there)
      items.jsonl          pictures or videos with their captions
      propositions.jsonl   what is to be decided about them
      answers.sqlite       the answers, with every change
      links.json           the annotators' tokens; for this user alone

Paths of media are relative to the folder.
"""

from __future__ import annotations

import filecmp
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import av
from pydantic import Field, StringConstraints, ValidationError, model_validator

from vcap_jax.data.pyav import opened
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.records import Item, Name, Proposition, Row, first_problem, read_rows
from vcap_jax.system.files import write_json

SETTINGS = "study.json"
ITEMS = "items.jsonl"
PROPOSITIONS = "propositions.jsonl"
ANSWERS = "answers.sqlite"
LINKS = "links.json"

IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm"}
"""What browsers show, by suffix. No SVG, which may hold scripts."""
CODECS = ("h264", "hevc", "vp8", "vp9", "av1")
"""Of videos that browsers play, by FFmpeg's names; HEVC by some alone."""

Person = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
"""The name of an annotator."""


class Settings(Row):
    """What study.json says.

    overlap: share of the items that ``overlap_size`` annotators decide each; the rest is for one. adjudicator: may
    decide what they dispute. seed: of assignments and of the order of captions.
    """

    name: Name = "Caption study"
    annotators: Annotated[tuple[Person, ...], Field(min_length=1, max_length=100)] = ("anna", "ben")
    adjudicator: Person | None = None
    overlap: float = Field(default=0.2, ge=0, le=1)
    overlap_size: int = Field(default=2, ge=2)
    seed: int = 0

    @model_validator(mode="after")
    def _possible(self) -> Settings:
        if len(set(self.annotators)) < len(self.annotators):
            raise ValueError("two annotators have the same name")
        # One person alone decides all.
        if self.overlap and self.overlap_size > len(self.annotators) > 1:
            raise ValueError(
                f"{self.overlap_size} people are to decide some items (overlap_size), and "
                f"{', '.join(self.annotators)} alone are named: name more (--annotators), or give --overlap 0"
            )
        if self.adjudicator in self.annotators:
            raise ValueError(
                f'"{self.adjudicator}" annotates and cannot adjudicate as well: name a third person'
            )
        return self


@dataclass(frozen=True, kw_only=True)
class Study:
    """A folder that was read and checked. propositions: by item, in the order of the file."""

    folder: Path
    settings: Settings
    items: Mapping[str, Item]
    propositions: Mapping[str, tuple[Proposition, ...]]

    def media_path(self, item_id: str) -> Path:
        return self.folder / self.items[item_id].media


def read_settings(folder: Path) -> Settings:
    """What study.json says; the defaults if there is none. Raises StudyError."""
    path = folder / SETTINGS
    if not path.exists():
        return Settings()
    try:
        return Settings.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise StudyError(f"{path}: {first_problem(error)}") from error
    except ValueError as error:
        raise StudyError(
            f"{path}: not valid JSON ({error}): correct it, or remove it for the defaults"
        ) from error


def write_settings(folder: Path, settings: Settings) -> None:
    """Writes study.json, complete or not at all."""
    write_json(folder / SETTINGS, settings.model_dump(mode="json"))


def read_study(folder: Path, settings: Settings | None = None) -> Study:
    """Reads and checks a folder. settings: in place of those of study.json.

    Raises StudyError and ManifestError for anything that would not work later: files, rows, spans, media.
    """
    if not folder.is_dir():
        raise StudyError(f"the study {folder} is no folder: make it, with {ITEMS} and {PROPOSITIONS}")
    items = read_items(folder / ITEMS)
    asked = read_rows(Proposition, folder / PROPOSITIONS, "file of propositions")
    propositions = grouped(asked, items, str(folder / PROPOSITIONS))
    for item in items.values():
        check_media(folder, item)
    return Study(
        folder=folder,
        settings=read_settings(folder) if settings is None else settings,
        items=items,
        propositions=propositions,
    )


def read_items(path: Path) -> dict[str, Item]:
    """Items by id, in order. Raises StudyError and ManifestError."""
    items: dict[str, Item] = {}
    for item in read_rows(Item, path, "file of items"):
        if item.id in items:
            raise StudyError(f'{path}: the item "{item.id}" occurs twice: keep one of the rows')
        items[item.id] = item
    if not items:
        raise StudyError(f"{path} is empty: write one item a line")
    return items


def grouped(
    propositions: Sequence[Proposition], items: Mapping[str, Item], where: str
) -> dict[str, tuple[Proposition, ...]]:
    """Propositions by item. Raises StudyError for one of no item, of no caption, an id twice or a wrong span."""
    found: dict[str, list[Proposition]] = {item: [] for item in items}
    seen: set[str] = set()
    for one in propositions:
        place = f'{where}: proposition "{one.prop_id}"'
        if one.prop_id in seen:
            raise StudyError(f"{place} occurs twice: keep one of the rows")
        seen.add(one.prop_id)
        if one.image_id not in items:
            raise StudyError(f'{place} is of the item "{one.image_id}", which is not in {ITEMS}: add it')
        if one.model == one.ref_model:
            raise StudyError(f"{place} compares {one.model} with itself: name another ref_model")
        item = items[one.image_id]
        for model, span in ((one.model, one.span), (one.ref_model, one.ref_span)):
            caption = item.caption(model)
            if span is not None and (there := caption[span.start : span.end]) != span.text:
                raise StudyError(
                    f'{place}: the caption of {model} has "{there}" at {span.start} to {span.end}, not "{span.text}": '
                    "offsets count code points"
                )
        found[one.image_id].append(one)
    return {item: tuple(rows) for item, rows in found.items()}


def same_file(one: Path, other: Path) -> bool | None:
    """Whether two files are one, or have the same content; None where one of them is not there."""
    try:
        return one.samefile(other) or filecmp.cmp(one, other, shallow=False)
    except (OSError, ValueError):  # the last: of a name that no file can have
        return None


def check_kind(file: Path, where: str, *, video: bool) -> None:
    """Raises StudyError for a picture or video that browsers do not show, by its name. where: begins the message."""
    known = VIDEOS if video else IMAGES
    if file.suffix.lower() not in known:
        raise StudyError(
            f"{where} is of a kind that browsers do not show: convert it to one of {', '.join(known)}"
        )


def check_media(folder: Path, item: Item) -> None:
    """Raises StudyError unless an item's picture or video is there and can be shown."""
    relative = Path(item.media)
    where = f'item "{item.id}": {item.media}'
    if relative.is_absolute() or ".." in relative.parts:
        raise StudyError(f"{where} leaves the study's folder: copy or link it there and give a relative path")
    check_kind(relative, where, video=item.video is not None)
    if not (folder / relative).is_file():
        raise StudyError(f"{where} does not exist below {folder}: check the path")


def check_video(folder: Path, item: Item) -> None:
    """Raises StudyError for a video of an item that most browsers do not play; see ``check_playable``."""
    if item.video is not None:
        check_playable(folder / item.video, f'item "{item.id}": {item.video}')


def check_playable(file: Path, where: str) -> None:
    """Raises StudyError for a video that most browsers do not play, whatever its name: people would see nothing.
    where: begins the message."""
    try:
        with opened(file) as container:
            video = container.streams.video[0]
            codec = video.codec_context.codec.canonical_name
    except (av.FFmpegError, IndexError) as error:
        raise StudyError(f"{where} cannot be read as a video ({error}): put another file there") from error
    if codec not in CODECS:
        raise StudyError(
            f"{where} is coded as {codec}, which browsers do not play: convert it, as with ffmpeg -i IN -c:v libx264 "
            "-pix_fmt yuv420p OUT.mp4"
        )
