"""What a study asks about and what it gets: items, propositions, answers; as JSON Lines.

An item, with one caption of each model (``reward``: of the caption, if one is to be compared with the people):

    {"id": "a", "image": "images/a.png", "captions": [{"model": "base", "text": "A red car.", "reward": 0.41}, ...]}

A proposition about the caption of ``model``, found by comparing it with that of ``ref_model``. ``span`` is what it
rests on in the first, ``ref_span`` in the second; both may be null. Offsets count code points; ``text`` repeats what
lies between them.

    {"image_id": "a", "prop_id": "a/base/e1/0", "model": "base", "ref_model": "e1", "kind": "missing",
     "text": "The car has a dented door.", "span": null, "ref_span": {"start": 0, "end": 17, "text": "..."}}

An answer is the proposition without its spans and with ``step1``, ``step2``, ``note``, ``annotator`` and
``timestamps``; an annotator's rankings of an item are one row of three mappings from model to rank, 1 the best.
Videos have ``"video"`` for ``"image"`` and are otherwise the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from vcap_jax.data.jsonl import read_objects
from vcap_jax.human_eval.errors import RuleBroken, StudyError
from vcap_jax.human_eval.protocol import Kind, Ranking, Step1, Step2, Verdict, check_permutation
from vcap_jax.system.files import replace_file

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"\S")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=50_000, pattern=r"\S")]
PropId = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"\S")]
"""Holds the names of an item and of two models, and a number."""
MOST_CAPTIONS = 8
"""Of an item."""


class Row(BaseModel):
    """One line of a file: frozen, checked, without keys that are not known."""

    # Labels are read by their text: strict mode would ask JSON for members of an enumeration.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def line(self) -> str:
        """As JSON Lines has it, with its line end."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False) + "\n"


class Span(Row):
    """A stretch of a caption in code points, from ``start`` to before ``end``, and what stands there."""

    start: int = Field(ge=0)
    end: int = Field(ge=1)
    text: Text

    @model_validator(mode="after")
    def _long_as_its_text(self) -> Self:
        if self.end - self.start != len(self.text):
            raise ValueError(
                f"a span from {self.start} to {self.end} does not hold {len(self.text)} characters"
            )
        return self


class Caption(Row):
    """What one model says. reward: of the caption, None where there is none; annotators never see it."""

    model: Name
    text: Text
    reward: float | None = None


class Item(Row):
    """One picture or video with its captions, each of another model."""

    id: Name
    image: Name | None = None
    video: Name | None = None
    captions: Annotated[tuple[Caption, ...], Field(min_length=2, max_length=MOST_CAPTIONS)]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if (self.image is None) == (self.video is None):
            raise ValueError('give either "image" or "video"')
        if len(set(self.models)) < len(self.captions):
            raise ValueError("two captions have the same model")
        return self

    @property
    def media(self) -> str:
        """The path of the picture or video, as it stands in the file."""
        return self.image or self.video or ""

    @property
    def models(self) -> tuple[str, ...]:
        """In the order of the captions."""
        return tuple(caption.model for caption in self.captions)

    def caption(self, model: str) -> str:
        """The text by a model. Raises StudyError if there is none."""
        for caption in self.captions:
            if caption.model == model:
                return caption.text
        raise StudyError(f'item "{self.id}" has no caption of "{model}"; it has {", ".join(self.models)}')

    def line(self) -> str:
        return json.dumps(self.model_dump(mode="json", exclude_none=True), ensure_ascii=False) + "\n"


class Proposition(Row):
    """A statement about the caption of ``model`` that is to be decided."""

    image_id: Name
    prop_id: PropId
    model: Name
    ref_model: Name
    kind: Kind
    text: Text
    span: Span | None = None
    ref_span: Span | None = None


class Timestamps(Row):
    """ISO 8601, UTC. first: when the answer was first given. last: when it was last changed. Files of other tools
    may not have them."""

    first: Name
    last: Name


class Answer(Row):
    """A proposition as one annotator decided it; always complete."""

    image_id: Name
    model: Name
    ref_model: Name
    prop_id: PropId
    kind: Kind
    text: Text
    step1: Step1
    step2: Step2 | None
    note: str
    annotator: Name
    timestamps: Timestamps | None = None

    @model_validator(mode="after")
    def _by_the_rules(self) -> Self:
        try:
            complete = self.verdict.complete
        except RuleBroken as error:
            raise ValueError(str(error)) from error
        if not complete:
            raise ValueError(f'"{Step1.CONSISTENT}" needs a step 2')
        return self

    @property
    def verdict(self) -> Verdict:
        return Verdict(step1=self.step1, step2=self.step2, note=self.note)


class Rankings(Row):
    """One annotator's three strict rankings of an item's captions: model to rank, 1 the best."""

    image_id: Name
    annotator: Name
    accuracy: Mapping[str, int]
    completeness: Mapping[str, int]
    granularity: Mapping[str, int]
    timestamps: Timestamps | None = None

    @model_validator(mode="after")
    def _permutations(self) -> Self:
        models = set(self.accuracy)
        for ranking in Ranking:
            ranks = self.ranks(ranking)
            if set(ranks) != models:
                raise ValueError("the three rankings are of different models")
            if sorted(ranks.values()) != list(range(1, len(ranks) + 1)):
                raise ValueError(f"{ranking} is not a permutation of 1 to {len(ranks)}: {dict(ranks)}")
        return self

    def ranks(self, ranking: Ranking) -> Mapping[str, int]:
        """Model to rank."""
        ranks: Mapping[str, int] = getattr(self, ranking)
        return ranks

    def best_first(self, ranking: Ranking) -> list[str]:
        """The models in the order of their ranks."""
        ranks = self.ranks(ranking)
        return sorted(ranks, key=lambda model: ranks[model])


@dataclass(frozen=True, kw_only=True)
class Records:
    """answers: one for each annotator and proposition that is decided. rankings: one for each finished item of an
    annotator. adjudicated: answers of a third person to what two disputed. skipped: what a file of another tool holds
    beside them: annotations that were cancelled, propositions left undecided, rankings without all three."""

    answers: tuple[Answer, ...]
    rankings: tuple[Rankings, ...]
    adjudicated: tuple[Answer, ...] = ()
    skipped: int = 0


RowKind = TypeVar("RowKind", bound=Row)


def ranks_of(order: Sequence[str], models: Sequence[str]) -> dict[str, int]:
    """An order, the best first, as ranks. Raises RuleBroken unless each model occurs once."""
    check_permutation(order, models)
    return {model: place for place, model in enumerate(order, 1)}


def find_span(caption: str, start: int, end: int, text: str) -> Span:
    """The stretch of a caption whose offsets are code points or, as some tools write them, UTF-16 units.

    Raises StudyError if ``text`` stands at neither place, or is no stretch.
    """
    if not (0 <= start < end and text):
        raise StudyError(f'"{text}" at {start} to {end} is no stretch of a caption')
    if caption[start:end] == text:
        return Span(start=start, end=end, text=text)
    units = caption.encode("utf-16-le")
    # The offsets must not cut a character in two, so what lies before is decoded strictly.
    try:
        before = units[: 2 * start].decode("utf-16-le")
        if units[2 * start : 2 * end].decode("utf-16-le") == text:
            return Span(start=len(before), end=len(before) + len(text), text=text)
    except UnicodeDecodeError:
        pass
    raise StudyError(
        f'"{text}" does not stand at {start} to {end} of the caption, neither in code points nor in UTF-16 units'
    )


def parse_row(kind: type[RowKind], row: Mapping[str, object], where: str) -> RowKind:
    """A row of JSON, checked. Raises StudyError in one line; ``where`` is "file:line"."""
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        raise StudyError(f"{where}: {first_problem(error)}") from error


def first_problem(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, in one line."""
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        text = "is a key that is not known here: drop it"
    elif problem["type"] == "string_pattern_mismatch":
        blank = not str(problem["input"]).strip()
        rule = (
            "has no text: fill it in"
            if blank
            else "may have letters a to z, digits, dots, - and _, 40 at most"
        )
        text = f"{problem['input']!r} {rule}"
    elif problem["type"] == "missing":
        text = "is missing: add it"
    return f'"{place}": {text}' if place else text


def read_rows(kind: type[RowKind], path: Path, what: str) -> tuple[RowKind, ...]:
    """All rows of a file. Raises StudyError and ManifestError, with file and line."""
    return tuple(parse_row(kind, row, f"{path}:{number}") for number, row in read_objects(path, what))


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes rows; the file appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(row.line() for row in rows).encode())
