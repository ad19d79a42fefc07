"""JSON narrowed to types: what fits comes back as it is, what does not is told with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import (
    JsonError,
    as_list,
    as_number,
    as_object,
    as_text,
    as_whole,
    half_character,
    parse_json,
    read_json_object,
)

FITTING: list[tuple[Callable[[object, str], object], str]] = [
    (as_object, '{"a": 1}'),
    (as_list, "[1, 2]"),
    (as_text, '"word"'),
    (as_whole, "3"),
    (as_number, "2.5"),
    (as_number, "3"),
]
OTHERS: list[tuple[Callable[[object, str], object], list[str]]] = [
    (as_object, ["[]", '"{}"', "null"]),
    (as_list, ["{}", '"ab"', "1"]),
    (as_text, ["1", "null", "[]"]),
    (as_whole, ["2.0", "true", '"3"', "null"]),
    (as_number, ["true", '"2.5"', "null"]),
]


@pytest.mark.parametrize(("narrow", "text"), FITTING)
def test_what_fits_comes_back_as_it_is(narrow: Callable[[object, str], object], text: str) -> None:
    value = parse_json(text)
    assert narrow(value, "here") is value


@pytest.mark.parametrize(("narrow", "texts"), OTHERS)
def test_what_does_not_fit_is_told_with_its_place_and_value(
    narrow: Callable[[object, str], object], texts: list[str]
) -> None:
    for text in texts:
        value = parse_json(text)
        with pytest.raises(JsonError, match=r"summary\.json, seconds: .+, where an? .+ is wanted") as told:
            narrow(value, "summary.json, seconds")
        assert repr(value) in str(told.value)


def test_a_long_value_is_told_in_short() -> None:
    with pytest.raises(JsonError) as told:
        as_whole("a" * 1000, "here")
    assert len(str(told.value)) < 150


def test_a_file_of_one_object_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"caption": "caf\u00e9"}', encoding="utf-8")
    assert read_json_object(file) == {"caption": "caf\u00e9"}


@pytest.mark.parametrize("content", [b"", b'{"torn": ', b"[1]", b"\xff\xfe\x00"])
def test_a_file_that_holds_no_object_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(JsonError, match=r"a\.json(: \[1\], where an object is wanted| is not valid JSON)"):
        read_json_object(file)


def test_who_reads_a_file_may_say_what_is_raised_and_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for content in ("[1]", "{", "[" * 100_000):
        file.write_text(content)
        with pytest.raises(VCapError, match=r"a\.json.*: restore it$") as told:
            read_json_object(file, VCapError, "restore it")
        assert not isinstance(told.value, JsonError)


def test_half_of_a_character_is_found_wherever_it_is() -> None:
    for value in ("caf\udce9.png", {"a": ["caf\udce9"]}, {"caf\udce9": 1}):
        assert half_character(value) == r"'\udce9'"
    assert half_character({"a": ["caf\u00e9", "\U0001f600", 1, None]}) is None
