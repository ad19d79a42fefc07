from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.data.jsonl import last_row, one_edit_apart


@pytest.mark.parametrize(
    ("content", "row", "left"),
    [
        ("", None, ""),
        ('{"place": 1', None, ""),
        ('{"place": 1}\n', {"place": 1}, '{"place": 1}\n'),
        (
            '{"place": 1}\n{"place": 2, "t": "ü"}\n{"pla',
            {"place": 2, "t": "ü"},
            '{"place": 1}\n{"place": 2, "t": "ü"}\n',
        ),
    ],
)
def test_what_a_kill_tore_off_is_cut_away(tmp_path: Path, content: str, row, left: str) -> None:
    path = tmp_path / "rows.jsonl"
    assert last_row(path) is None
    path.write_text(content)
    assert last_row(path) == row
    assert path.read_text() == left


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        *[
            ("image", other, True)
            for other in ("image", "imgae", "imag", "images", "imbge", "mage", "iimage")
        ],
        *[("image", other, False) for other in ("iamgee", "img", "picture", "", "egami")],
    ],
)
def test_one_edit(a: str, b: str, apart: bool) -> None:
    assert one_edit_apart(a, b) == one_edit_apart(b, a) == apart
