"""What --help-config prints: every key with its meaning, which stands in the docstring of its class alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from vcap_jax.configuration import describe
from vcap_jax.configuration.docstrings import class_doc
from vcap_jax.configuration.schema import schema_fields, section_of
from vcap_jax.run.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Inner:
    """What is inside.

    size: in ``pixels``; None for any. depth, height: of :mod:`this`
        and that.
    """

    size: int | None = None
    depth: int = 1
    height: int = 1


@dataclass(frozen=True, kw_only=True)
class Outer:
    """All of it.

    inner: null for none.
    """

    seed: int
    inner: Inner | None = None
    last: tuple[str, ...] = ()


def sections(schema: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    yield prefix, schema
    for entry in schema_fields(schema).values():
        if (inside := section_of(entry.annotation)) is not None:
            yield from sections(inside, f"{prefix}{entry.name}.")


def test_keys_come_with_type_default_and_meaning_and_before_the_sections_inside() -> None:
    assert describe(Outer).partition("\n\n")[2] == (
        "All of it.\n\n"
        "seed: int (required)\n"
        "last: list[str] = []\n\n"
        "[inner]  (null by default)\nWhat is inside. Null for none.\n\n"
        "inner.size: int | null = null\n    in pixels; null for any.\n"
        "inner.depth: int = 1\ninner.height: int = 1\n    of this and that.\n"
    )


def test_every_setting_of_a_run_has_a_meaning_and_every_section_a_summary() -> None:
    for prefix, section in sections(RunConfig):
        doc = class_doc(section)  # raises for a docstring about fields that are not there
        assert doc.summary, prefix
        for entry in schema_fields(section).values():
            if section_of(entry.annotation) is None:
                assert len(doc.entries[entry.name].meaning) > 5, prefix + entry.name


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
    wanted = [
        prefix + entry.name
        for prefix, section in sections(RunConfig)
        for entry in schema_fields(section).values()
        if section_of(entry.annotation) is None
    ]
    assert sorted(listed) == sorted(wanted)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sise: of it.", "explains sise, no field of it"),
        ("size: of it. hight: up.", "explains hight, no field of it"),
        ("size: of it.\n    size: again.", "explains size twice"),
        ("size: of it.\n    Sizes are large.", "has 'Sizes are large.' where an entry"),
    ],
)
def test_a_docstring_that_does_not_fit_its_class_is_refused(body: str, message: str) -> None:
    @dataclass(frozen=True)
    class Section:
        size: int = 0
        other: tuple[int, ...] = field(default=())

    Section.__doc__ = f"A section.\n\n    {body}\n    "
    with pytest.raises(ValueError, match=message):
        class_doc(Section)


def test_a_class_without_a_docstring_says_nothing() -> None:
    @dataclass(frozen=True)
    class Bare:
        size: int = 0

    assert not class_doc(Bare).summary
    assert describe(Bare).endswith("\n\nsize: int = 0\n")
