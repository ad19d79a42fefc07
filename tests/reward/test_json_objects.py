"""How much reading an answer takes, however broken it is. What it gives: ``test_scores.py``."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from vcap_jax.reward import scores
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.json_objects import one_object
from vcap_jax.reward.scores import parse_scores
from vcap_jax.reward.templates import ANALYSIS_KEY, QUALITY_KEYS

BROKEN: dict[str, Callable[[int], str]] = {
    "commas after the last entry": lambda n: '{"a": 1,} ' * n,
    "the same, one inside the other": lambda n: '{"a": {"b": 1,},} ' * n,
    "good ones before a broken one": lambda n: '{"a": 1} ' * n + '{"a": x}',
    "never closed": lambda n: '{"a": ' * n,
    "openings": lambda n: '{"' * n,
    "braces": lambda n: "{" * n,
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_errors_look_back_over_each_character_a_few_times_at_most(
    text: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder's error counts the lines before it: from the beginning of the answer that was quadratic."""
    looked_over = 0

    class Counted(json.JSONDecodeError):
        def __init__(self, message: str, document: str, position: int) -> None:
            nonlocal looked_over
            looked_over += position
            super().__init__(message, document, position)

    monkeypatch.setattr("json.decoder.JSONDecodeError", Counted)
    written = text(500)
    one_object(written, "stop", ["a"])
    assert looked_over <= 3 * len(written)


def test_each_key_of_an_object_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Key(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    count = 500
    keys = [ANALYSIS_KEY, *QUALITY_KEYS, *(f"k{k}" for k in range(count))]
    row = {Key(key): 1 for key in keys}
    monkeypatch.setattr(scores, "one_object", lambda *_: row)
    compared = 0
    verdict = parse_scores("{}", QUALITY_KEYS, "stop")
    assert isinstance(verdict, Failure)
    assert verdict.reason == "unexpected_key"
    assert compared <= 20 * count
