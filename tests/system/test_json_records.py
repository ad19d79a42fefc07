"""Records read from JSON: what comes back, and what a refusal names."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from typing_extensions import TypedDict

from vcap_jax.system.json_records import as_record, parse_record, read_record
from vcap_jax.system.json_values import JsonError, JsonObject


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Whole:
    path: Path
    parts: tuple[Part, ...]
    settings: JsonObject
    step: int | None = None


class Row(TypedDict):
    scenes: int


WHOLE = Whole(
    path=Path("a/b"),
    parts=(Part(name="x", share=0.5), Part(name="y", share=1.0)),
    settings={"flat": True, "deep": {"list": [1, 2.5, None, {"a": "b"}]}},
)


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "whole.json").write_text(json.dumps(asdict(WHOLE) | {"path": "a/b"}))
    assert read_record(Whole, tmp_path / "whole.json") == WHOLE
    assert as_record(Row, {"scenes": 3}, "a row") == {"scenes": 3}


def test_keys_that_a_record_does_not_know_are_passed_over() -> None:
    assert parse_record(Part, '{"name": "x", "share": 1, "younger": []}', "a part") == Part(
        name="x", share=1.0
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": 7, "share": 1.0}, "the part: name: 7, input should be a valid string"),
        ({"name": "x", "share": "1"}, "the part: share: '1', input should be a valid number"),
        ({"name": "x", "share": True}, "the part: share: True, input should be a valid number"),
        ({"name": "x"}, "the part: share: field required"),
        ([], r"the part: \[\], input should be an object"),
    ],
)
def test_another_type_and_a_missing_key_are_named(row: object, message: str) -> None:
    with pytest.raises(JsonError, match=message):
        as_record(Part, row, "the part")


def test_a_problem_inside_is_named_with_its_way() -> None:
    row = {"path": "a", "parts": [{"name": "x", "share": 1}, {"name": "y", "share": None}], "settings": {}}
    with pytest.raises(JsonError, match=r"f\.json: parts: 1: share: None"):
        as_record(Whole, row, "f.json")


def test_what_is_no_json_is_a_json_error() -> None:
    with pytest.raises(JsonError, match=r"f\.json:3: "):
        parse_record(Part, "{", "f.json:3")
