"""What --help-config and the documentation print: every key with its type and bounds, default and meaning."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, Field

from vcap_jax.configuration import describe, settings
from vcap_jax.configuration.describing import markdown
from vcap_jax.configuration.schema import fields_of, section_of, sections, type_text
from vcap_jax.run.config import RunConfig


@settings
class Inner:
    """What is
    inside."""

    size: int | None = Field(default=None, ge=1)
    """In pixels;
    null for any."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Of the whole."""


@settings
class Outer:
    """All of it.

    What a programmer wants to know as well.
    """

    seed: int
    inner: Inner | None = None
    """null for none."""
    last: tuple[str, ...] = ()


def test_keys_come_with_type_bounds_default_and_meaning_and_before_the_sections_inside() -> None:
    assert describe(Outer).partition("\n\n")[2] == (
        "All of it.\n\n"
        "seed: int (required)\n"
        "last: list[str] = []\n\n"
        "[inner]  (null by default)\nWhat is inside. null for none.\n\n"
        "inner.size: int >= 1 | null = null\n    In pixels; null for any.\n"
        "inner.share: float in (0, 1] = 0.5\n    Of the whole.\n"
    )


def test_the_same_as_markdown() -> None:
    assert markdown(Outer) == (
        "## At the top\n\nAll of it.\n\n"
        "- **`seed`**: `int`, required\n\n"
        "- **`last`**: `list[str]`, default `[]`\n\n"
        "## `inner` (null by default)\n\nWhat is inside. null for none.\n\n"
        "- **`inner.size`**: `int >= 1 | null`, default `null`\n\n  In pixels; null for any.\n\n"
        "- **`inner.share`**: `float in (0, 1]`, default `0.5`\n\n  Of the whole.\n"
    )


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Annotated[float, Field(ge=0, lt=1)], "float in [0, 1)"),
        (Annotated[float, Field(lt=3)], "float < 3"),
        (Annotated[int, Field(ge=1, le=95)], "int in [1, 95]"),
        (tuple[Annotated[int, Field(ge=1)], ...], "list[int >= 1]"),
        (Annotated[tuple[int, ...], AfterValidator(lambda value: value)], "list[int]"),
        (Literal[-1] | Annotated[int, Field(ge=1)], "-1 | int >= 1"),
        (Literal["a", "b"] | None, 'one of "a", "b" | null'),
        (tuple[float, float], "tuple[float, float]"),
        (dict[str, int | bool], "dict[str, int | bool]"),
    ],
)
def test_types_and_bounds_in_words(annotation: Any, text: str) -> None:
    assert type_text(annotation) == text


def test_every_setting_of_a_run_has_a_meaning_and_every_section_a_summary() -> None:
    for section in sections(RunConfig):
        assert section.about, section.path
        for key in section.keys:
            assert re.search(r"\w\w.*\.$", key.meaning, re.DOTALL), key.path
            assert "``" not in key.meaning, key.path
            assert not re.search(r"\b(None|True|False)\b", key.meaning), (
                f"{key.path}: YAML's words, not Python's"
            )


def keys(schema: type = RunConfig, prefix: str = "") -> list[str]:
    """Dotted names of all settings, read from the classes alone."""
    found = []
    for name, field in fields_of(schema).items():
        inside = section_of(field.annotation)
        found += [prefix + name] if inside is None else keys(inside, f"{prefix}{name}.")
    return found


def test_every_key_of_a_run_is_listed_once_under_its_own_section() -> None:
    lines = describe(RunConfig).splitlines()
    assert max(map(len, lines)) <= 100
    heading, listed = "", []
    for line in lines[5:]:
        if line.startswith("["):
            heading = line[1 : line.index("]")] + "."
        elif (key := line.partition(": ")[0]).startswith(heading) and " " not in key and ": " in line:
            listed.append(key)
            assert key.rpartition(".")[0] == heading.rstrip(".")
    assert sorted(listed) == sorted(keys())


def test_the_reference_has_every_key_of_a_run_with_its_type_its_default_and_its_meaning() -> None:
    entries = re.findall(
        r"^- \*\*`(\S+)`\*\*: `(.+)`, (?:default `(.+)`|required)\n\n  (.+)$", markdown(RunConfig), re.M
    )
    assert sorted(path for path, *_ in entries) == sorted(keys())
    by_path = {path: rest for path, *rest in entries}
    assert by_path["rollout.group_size"] == ["int >= 1", "8", "Captions per prompt, the paper's G."]
    assert by_path["sft.optimizer.learning_rate"][1] == "1.0e-05", (
        "of the section that holds it, not of the class"
    )


def test_a_class_without_a_docstring_says_nothing() -> None:
    @settings
    class Bare:
        size: int = 0

    assert describe(Bare).endswith("\n\nsize: int = 0\n")
    assert "  \n" not in markdown(Bare)
