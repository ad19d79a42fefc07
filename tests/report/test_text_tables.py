"""Tables for a terminal."""

from __future__ import annotations

from vcap_jax.report.text_tables import text_table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [["", "start", "now"], ["F1", "0.5", "12.25"]]
    assert text_table(rows, numbers=False).splitlines() == ["    start  now", "F1  0.5    12.25"]
    assert text_table(rows, numbers=True).splitlines() == ["    start    now", "F1    0.5  12.25"]
