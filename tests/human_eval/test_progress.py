"""How far a study is."""

from __future__ import annotations

from vcap_jax.human_eval.answers import Assigned
from vcap_jax.human_eval.progress import ESTIMATE_FROM, progress_of


def at(seconds: int) -> str:
    return f"2026-01-01T00:{seconds // 60:02d}:{seconds % 60:02d}Z"


def after(decided: int, total: int):
    """Who read the rules for four minutes, and then decides something every ten seconds."""
    times = [at(0), *(at(240 + 10 * number) for number in range(decided))]
    return progress_of("anna", [Assigned(item="a", decided=decided, total=total, finished=False)], times)


def test_nothing_is_said_of_the_time_left_after_a_few_answers():
    assert after(1, 40).left_s is None
    assert after(ESTIMATE_FROM - 1, 40).left_s is None
    few = after(ESTIMATE_FROM, 40)
    assert few.left_s == few.spent_s / 10 * 31


def test_a_study_of_few_decisions_has_an_estimate_at_its_end():
    row = Assigned(item="a", decided=2, total=2, finished=True)
    assert progress_of("anna", [row], [at(0), at(10)]).left_s == 0
