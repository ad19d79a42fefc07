"""How far a study is."""

from __future__ import annotations

from tests.human_eval.small_study import small_study
from vcap_jax.human_eval.answers import Assigned, Held
from vcap_jax.human_eval.progress import ESTIMATE_FROM, progress_of, spent_seconds
from vcap_jax.human_eval.protocol import Ranking, verdict_of
from vcap_jax.human_eval.store import AnswerStore, GivenElsewhere


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


def test_a_pause_counts_as_five_minutes_and_a_clock_that_was_put_back_as_nothing():
    assert spent_seconds([at(0), at(10), at(3000), at(2000), at(2020)]) == 10 + 300 + 0 + 20


def test_a_study_of_few_decisions_has_an_estimate_at_its_end():
    row = Assigned(item="a", decided=2, total=2, finished=True)
    assert progress_of("anna", [row], [at(0), at(10)]).left_s == 0


def test_what_was_decided_elsewhere_says_nothing_of_the_time_that_is_left(tmp_path):
    study, seconds = small_study(tmp_path), [0]
    wrong = verdict_of("2. inconsistent", None, "")
    with AnswerStore(tmp_path / "answers.sqlite", now=lambda: at(seconds[0])) as store:
        store.open_study(study)
        verdicts = {one.prop_id: Held(verdict=wrong) for one in study.propositions["a"]}
        rankings = dict.fromkeys(Ranking, study.items["a"].models)
        given = GivenElsewhere(annotator="anna", item="a", verdicts=verdicts, rankings=rankings)
        store.take_in([given], {})

        def progress():
            assigned, times = store.assigned("anna"), store.answer_times("anna")
            return progress_of("anna", assigned, times, taken_in=store.taken_in("anna"))

        assert (progress().decided, progress().spent_s, progress().left_s) == (4, 0, None)
        seconds[0] = 600
        store.opened("anna", "b")
        for one in study.propositions["b"]:
            seconds[0] += 60
            store.answer("anna", "b", one.prop_id, wrong, version=0, request=one.prop_id)
        assert (progress().decided, progress().spent_s, progress().left_s) == (7, 180, None)
        seconds[0] += 20
        store.finish("anna", "b", rankings, request="f")
        assert (progress().decided, progress().spent_s, progress().left_s) == (8, 200, 0)
    twelve = Assigned(item="a", decided=12, total=60, finished=False)
    times = [at(10 * number) for number in range(11)]
    assert progress_of("anna", [twelve], times, taken_in=2).left_s == 10 * 49
