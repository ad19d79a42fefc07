"""Columns for tokens: enough of them, aligned, and few more than needed."""

from __future__ import annotations

import pytest

from vcap_jax.models.widths import BLOCK, columns_for


def test_columns_hold_the_tokens_are_aligned_and_add_at_most_a_quarter() -> None:
    for tokens in range(1, 9000):
        columns = columns_for(tokens)
        assert tokens <= columns < tokens + BLOCK
        assert columns <= tokens * 5 / 4
        if tokens >= 4 * BLOCK:
            assert columns % BLOCK == 0
        # Whatever is aligned stays as it is: rounding what was rounded changes nothing.
        assert columns_for(columns) == columns


def test_columns_never_become_fewer_with_more_tokens() -> None:
    widths = [columns_for(tokens) for tokens in range(1, 9000)]
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("tokens", "columns"), [(6300, 6336), (1584, 1600), (4096, 4096), (192, 192), (256, 256), (12, 12)]
)
def test_the_papers_and_the_embedded_worlds(tokens: int, columns: int) -> None:
    assert columns_for(tokens) == columns


def test_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        columns_for(0)
