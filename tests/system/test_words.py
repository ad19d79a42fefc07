"""Words with spaces between them, and characters of texts that have none."""

from __future__ import annotations

import pytest

from vcap_jax.system.words import word_count


@pytest.mark.parametrize(
    "text",
    ["", "  ", "A state-of-the-art car isn't red -- 3.5 m (10%).\n- ok", "빨간 자동차가 있다", "été naïve"],
)
def test_words_with_spaces_between_them_are_counted_by_these(text: str) -> None:
    assert word_count(text) == len(text.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("一只 red 圆, 2 of them", 7),
        ("红色的汽车，停在“路边”。", 9),
        ("赤い車", 3),
        ("red,圆", 2),
    ],
)
def test_characters_of_chinese_and_japanese_count_as_words(text: str, words: int) -> None:
    assert word_count(text) == words
