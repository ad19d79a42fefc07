"""Captions that somebody wrote, in files of all forms that are understood, by names that need not be the manifest's.

Understood are files of captions (``evals.captions_file``), pools of references, rewards as ``launch/score.py`` writes
them, and what public evaluation scripts take (``read_predictions``).
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from vcap_jax.data.folders import VIDEO_SUFFIXES, image_suffixes
from vcap_jax.data.jsonl import read_objects, row_id, without_nulls
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.captions_file import WrongCaptions, read_captions
from vcap_jax.evals.protocol import Captions
from vcap_jax.system.json_values import (
    JsonDict,
    JsonError,
    JsonValue,
    as_number,
    as_text,
    as_whole,
    half_character,
    parse_json,
    parse_json_unique,
)


def captions_in(path: Path, samples: Sequence[Sample]) -> dict[str, Captions]:
    """The captions of a file, by the samples' ids; those of no sample by the file's own names. What a file says of a
    sample that it has no caption of is a failure. Raises WrongCaptions and ManifestError."""
    form = form_of(path)
    if form == "pool":
        pool = ReferencePool.read(path)
        return {entry.id: Captions(id=entry.id, texts=entry.references) for entry in pool.entries()}
    if form == "entries":
        return read_captions(path)
    if form == "rewards":
        rewarded = read_rewards(path).items()
        return {name: Captions(id=name, texts=tuple(one.text for one in each)) for name, each in rewarded}
    texts = read_predictions(path)
    named = {_stem(name) for name in texts}
    found = PredictionsCaptioner(texts).captions(samples)
    others = {name: Captions(id=name, texts=(texts[name],)) for name in of_no_sample(texts, samples)}
    return {one.id: one for one in found if one.failure is None or _stem(one.id) in named} | others


def of_no_sample(names: Iterable[str], samples: Sequence[Sample]) -> list[str]:
    """Those of a file's names that are no sample's, whatever their folders and endings."""
    known = {_stem(sample.id) for sample in samples}
    return [name for name in names if _stem(name) not in known]


def form_of(path: Path) -> Literal["entries", "pool", "rewards", "predictions"]:
    """What a file is by its first row that says more than why there is no caption: entries of a file of captions, a
    pool of references, rewards of ``launch/score.py``, or what others write. Nothing is checked."""
    form: Literal["entries", "predictions"] = "predictions"
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for line in lines:
                row = parse_json(line) if line.strip() else {}
                if not isinstance(row, dict):
                    return "predictions"
                if {"id", "place", "caption", "reward"} <= row.keys():
                    return "rewards"
                row = without_nulls(row)
                others = row.keys() & set(_CAPTIONS) - {"captions"}
                if isinstance(row.get("captions"), list) and "id" in row and not others:
                    return "entries"
                if others or "captions" in row:
                    return "predictions"
                if row.keys() & {"pool", "references"}:
                    return "pool"
                if "failure" in row:
                    form = "entries"  # unless another row tells
    except (OSError, ValueError, RecursionError):  # JSON of one value may be written on many lines
        return "predictions"
    return form


@dataclass(frozen=True, kw_only=True)
class Rewarded:
    """A caption and its reward, None where it could not be scored."""

    text: str
    reward: float | None


def read_rewards(path: Path) -> dict[str, tuple[Rewarded, ...]]:
    """What ``launch/score.py`` wrote, by sample: its captions in the order of their places. Raises ManifestError and
    WrongCaptions."""
    found: dict[str, dict[int, Rewarded]] = {}
    for number, row in read_objects(path, "file of rewards"):
        where, reward = f"{path}:{number}", row.get("reward")
        try:
            place = as_whole(row.get("place"), "place")
            one = Rewarded(
                text=as_text(row.get("caption"), "caption"),
                reward=None if reward is None else as_number(reward, "reward"),
            )
        except JsonError as error:
            raise WrongCaptions(
                f'{where}: not a row of rewards ({error}): write {{"id": ..., "place": 0, "caption": ..., '
                '"reward": ...}, with null where there is no reward'
            ) from error
        name = row_id(row, where)
        if found.setdefault(name, {}).setdefault(place, one) != one:
            raise WrongCaptions(
                f"{where}: another caption or reward of {name!r} at place {place} stands in an earlier line: leave one "
                "out"
            )
    return {name: tuple(places[place] for place in sorted(places)) for name, places in found.items()}


class PredictionsCaptioner:
    """Captions that somebody wrote (implements ``Captioner``), whatever the seed.

    texts: by name of the picture or video, with or without its folder and ending. Where names of theirs, or of the
    samples, differ in folder or ending alone, a sample needs the whole name; of the ending it can do without.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)
        self._whole: dict[str, dict[str, str]] = {}
        self._plain: dict[str, dict[str, str]] = {}
        """By the name without its ending, and without its folder too: each text, and a name that it has."""
        for name, text in texts.items():
            self._whole.setdefault(_whole(name), {}).setdefault(text, name)
            self._plain.setdefault(_stem(name), {}).setdefault(text, name)

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``. A sample that is not there, or has one of several texts, is a failure."""
        times = Counter(_stem(name) for name in {_whole(sample.id) for sample in samples})
        return [self._of(sample.id, alone=times[_stem(sample.id)] == 1) for sample in samples]

    def _of(self, name: str, *, alone: bool) -> Captions:
        """alone: whether no other sample has that name in another folder."""
        if name in self._texts:
            return Captions(id=name, texts=(self._texts[name],))
        whole = self._whole.get(_whole(name), {})
        texts = whole or self._plain.get(_stem(name), {})
        if len(texts) > 1:
            first, second = list(texts.values())[:2]
            return Captions(
                id=name,
                failure=f"the predictions have several captions of that name, such as {first!r} and {second!r}",
            )
        if not texts:
            return Captions(id=name, failure="the predictions have no caption of it")
        if not (whole or alone):
            (other,) = texts.values()
            return Captions(
                id=name,
                failure=f"several samples differ in their folders alone, and the predictions' {other!r} may be another",
            )
        return Captions(id=name, texts=(next(iter(texts)),))


def _whole(name: str) -> str:
    path = PurePath(name)
    return str(path.with_suffix("") if path.suffix.lower() in _endings() else path)


def _stem(name: str) -> str:
    return PurePath(_whole(name)).name


@functools.cache
def _endings() -> frozenset[str]:
    return image_suffixes() | VIDEO_SUFFIXES | {".json"}


def read_predictions(path: Path) -> dict[str, str]:
    """Captions that somebody wrote, by name of the picture or video.

    Understood are what public evaluation scripts take (one JSON object from name to caption, a list of objects, JSON
    Lines with an object each) and a caption file of this project. An object names its sample and its caption by the
    words that these scripts use. Raises WrongCaptions, also for an object with two captions, of which one may be the
    reference, and for one with half of a character, which no file can hold.
    """
    captions = _predictions(path)
    for name, caption in captions.items():
        if half := half_character(caption):
            raise WrongCaptions(
                f"{path}: the caption of {name!r} holds {half}, half of a character: write the whole one, or "
                "leave it out"
            )
    return captions


def _predictions(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongCaptions(
            f"{path}: captions cannot be read ({error}): give a JSON or JSONL file"
        ) from error

    try:
        value = parse_json_unique(text)
    except json.JSONDecodeError:
        value = [
            # Not splitlines, see ``rows_of``; blank lines are numbered as well.
            _line(path, number, line)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    except ValueError as error:
        raise WrongCaptions(f"{path}: {error}") from error
    if isinstance(value, dict) and not (_named(value) and _caption(value) is not None):
        value = [{"id": name, "caption": caption} for name, caption in value.items()]
    rows = value if isinstance(value, list) else [value]
    captions: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        name = _named(row) if isinstance(row, dict) else None
        if not isinstance(row, dict) or name is None:
            raise WrongCaptions(
                f"{path}: entry {number} names no sample: give it one of the keys {', '.join(_NAMES)}"
            )
        caption = _caption(row)
        several = {key: one for key in _CAPTIONS if (one := _text(row.get(key)))}
        if len(set(several.values())) > 1 and several.keys() & set(_MAY_BE_OTHERS):
            raise WrongCaptions(
                f"{path}: entry {number} ({name}) has several texts, {' and '.join(several)}: leave out what is not "
                "the captioner's, such as a reference or the request"
            )
        if caption is not None and captions.get(name, caption) != caption:
            raise WrongCaptions(
                f"{path}: entry {number} has another caption of {name!r} than an earlier one: leave one out"
            )
        if caption is not None:
            captions[name] = caption
        elif not row.keys() & {"failure", "error"}:
            raise WrongCaptions(
                f"{path}: entry {number} ({name}) has no caption: give it one of the keys "
                f"{', '.join(_CAPTIONS)}, or say with failure why there is none"
            )
    return captions


_NAMES = (
    "id",
    "image",
    "image_name",
    "image_id",
    "video_id",
    "file_id",
    "video_name",
    "filename",
    "file_name",
    "vid",
    "idx",
    "index",
)
_CAPTIONS = ("caption", "captions", "prediction", "pred", "response", "output", "text", "answer")
_MAY_BE_OTHERS = ("caption", "captions", "text")
"""Beside another text: a reference, or what the captioner was asked."""


def _line(path: Path, number: int, line: str) -> JsonValue:
    try:
        return parse_json_unique(line)
    except ValueError as error:
        raise WrongCaptions(f"{path}:{number}: not valid JSON ({error})") from error


def _named(row: JsonDict) -> str | None:
    for key in _NAMES:
        value = row.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return None


def _caption(row: JsonDict) -> str | None:
    """The first that is a text, and not empty if one is not. With a reason for it an empty one is none."""
    empty = None
    for key in _CAPTIONS:
        found = _text(row.get(key))
        if found is not None and found.strip():
            return found
        empty = empty if found is None else ""
    return None if row.get("failure") or row.get("error") else empty


def _text(value: JsonValue) -> str | None:
    """A text, or the first of a list of them."""
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) else None
