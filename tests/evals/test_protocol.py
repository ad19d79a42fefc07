"""A value is a number or a failure: failures are counted and enter no metric."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from vcap_jax.evals.protocol import Captions, Evaluation, Item, mean_of, measured, ratio_of, read_items

GIVEN = [
    Captions(id="a", texts=("one two", "one"), tokens=(2, 1)),
    Captions(id="b", failure="cut.png: truncated"),
    Captions(id="c", texts=("one two three", "")),
]


def test_a_sample_without_captions_is_an_item_that_enters_no_metric() -> None:
    items = measured(GIVEN, lambda c: {"words": sum(len(text.split()) for text in c.texts), "texts": 2})
    evaluation = Evaluation(
        metrics={"words": mean_of(items, "words"), "each": ratio_of(items, "words", "texts")}, items=items
    )
    assert evaluation.failed == 1
    assert [item.failure for item in items] == [None, "cut.png: truncated", None]
    assert (evaluation.metrics["words"].value, evaluation.metrics["words"].n) == (3.0, 2)
    assert evaluation.metrics["each"].value == 1.5
    assert evaluation.metrics["words"].low == 3.0 == evaluation.metrics["words"].high


def test_a_metric_over_failures_alone_is_nothing() -> None:
    items = measured(GIVEN[1:2], lambda c: {"words": 1.0})
    value = mean_of(items, "words")
    assert math.isnan(value.value)
    assert value.n == 0
    assert str(value) == "nothing measured"


def test_a_failure_has_no_value_and_a_value_is_finite() -> None:
    with pytest.raises(ValueError, match="has failed"):
        Item(id="a", captions=(), values={"words": 0.0}, failure="no answer")
    with pytest.raises(ValueError, match="words is nan"):
        Item(id="a", captions=("x",), values={"words": math.nan})
    with pytest.raises(ValueError, match="give captions, or why there are none"):
        Captions(id="a")
    with pytest.raises(ValueError, match="give captions, or why there are none"):
        Captions(id="a", texts=("x",), failure="no answer")


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x1c", "\r\n", "\x00", "\\u2028"])
def test_a_caption_with_any_line_mark_comes_back_from_a_file(mark: str, tmp_path: Path) -> None:
    items = [Item(id=name, captions=(f"Two{mark}lines.", mark), values={"n": 1.0}) for name in ("a", "b")]
    (tmp_path / "items.jsonl").write_text("".join(item.line() for item in items), encoding="utf-8")
    assert read_items(tmp_path / "items.jsonl") == items
