from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.data.jsonl import last_row


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
