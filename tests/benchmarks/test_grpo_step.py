"""benchmarks/grpo_step.py without TRL: who runs when, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import grpo_step


def test_sides_take_turns_and_the_least_of_each_is_reported(capsys):
    calls: list[tuple[str, int]] = []
    seconds = {"TRL": [[9.0, 8.0, 30.0], [7.0, 7.5, 1.0]], "this package": [[1.0, 2.0, 1.5], [3.0, 3.0, 3.0]]}

    def side(name: str) -> Any:
        def measure(number: int) -> dict[str, Any]:
            calls.append((name, number))
            return {"step_seconds": seconds[name][number], "caption_tokens": 192.0}

        return measure

    found = grpo_step.in_turns({name: side(name) for name in seconds}, 2, 192, "1,024 visual tokens, G 8")
    assert calls == [("TRL", 0), ("this package", 0), ("TRL", 1), ("this package", 1)]
    assert grpo_step.least(found["TRL"])["step_seconds"] == [7.0, 7.5, 1.0]
    assert grpo_step.least(found["this package"])["step_seconds"] == [1.0, 2.0, 1.5]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 4
    assert told[2].startswith("1,024 visual tokens, G 8, round 2 of 2: TRL 7.00 s a step")


def test_captions_of_another_length_are_refused():
    short = {"TRL": lambda _: {"step_seconds": [1.0], "caption_tokens": 100.0}}
    with pytest.raises(SystemExit, match=r"captions of 100\.0 tokens, not 192"):
        grpo_step.in_turns(short, 1, 192, "here")
