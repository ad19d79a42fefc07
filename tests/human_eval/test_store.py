"""The store of answers: rules, versions, undo, and that what was acknowledged is there."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace

import pytest

from tests.human_eval.small_study import change_row, small_study
from vcap_jax.human_eval import answers
from vcap_jax.human_eval.answers import Held, StoredAnswers
from vcap_jax.human_eval.errors import Conflict, RuleBroken, StudyError
from vcap_jax.human_eval.exchange import records_of
from vcap_jax.human_eval.protocol import Ranking, Step1, Step2, Verdict, verdict_of
from vcap_jax.human_eval.store import AnswerStore, GivenElsewhere
from vcap_jax.human_eval.study import read_settings, read_study

CONSISTENT = Verdict(step1=Step1.CONSISTENT)
HOLDING = Verdict(step1=Step1.CONSISTENT, step2=Step2.HOLDING)
FALSE = Verdict(step1=Step1.INCONSISTENT)
ORDERS = dict.fromkeys(Ranking, ("tuned", "base"))


@pytest.fixture
def times():
    return (f"2026-01-01T00:00:{second:02d}.000Z" for second in itertools.count())


@pytest.fixture
def store(tmp_path, times):
    with AnswerStore(tmp_path / "answers.sqlite", now=lambda: next(times)) as store:
        store.open_study(small_study(tmp_path))
        yield store


def decide_all(store, annotator="anna", item="a"):
    for number in range(3):
        store.answer(
            annotator, item, f"{item}/{number}", FALSE, version=0, request=f"{annotator} {item} {number}"
        )


def test_an_answer_is_read_again_with_its_version_and_times(store, tmp_path):
    first = store.answer("anna", "a", "a/0", CONSISTENT, version=0, request="1")
    second = store.answer("anna", "a", "a/0", HOLDING, version=1, request="2")
    assert (first.version, second.version) == (1, 2)
    assert first.first_at == second.first_at < second.last_at
    with StoredAnswers(tmp_path / "answers.sqlite") as other:
        assert other.state("anna", "a").verdicts == {"a/0": second}
        assert [one.held for one in other.verdicts()] == [second]


def test_a_request_that_is_sent_again_is_done_once(store):
    first = store.answer("anna", "a", "a/0", HOLDING, version=0, request="1")
    assert store.answer("anna", "a", "a/0", HOLDING, version=0, request="1") == first
    with pytest.raises(Conflict):
        store.answer("ben", "a", "a/0", HOLDING, version=0, request="1")


def test_a_second_tab_does_not_overwrite_the_first(store):
    store.answer("anna", "a", "a/0", HOLDING, version=0, request="1")
    with pytest.raises(Conflict, match="another tab"):
        store.answer("anna", "a", "a/0", FALSE, version=0, request="2")
    assert store.state("anna", "a").verdicts["a/0"].verdict == HOLDING


def test_undo_goes_back_change_by_change(store):
    store.answer("anna", "a", "a/0", CONSISTENT, version=0, request="1")
    store.answer("anna", "a", "a/0", HOLDING, version=1, request="2")
    store.answer("anna", "a", "a/1", FALSE, version=0, request="3")
    with pytest.raises(Conflict, match="last change"):
        store.undo("anna", "a", "a/0", version=2, request="4")
    assert store.undo("anna", "a", "a/1", version=1, request="5").verdict == Verdict()
    assert store.undo("anna", "a", "a/1", version=1, request="5").version == 2  # sent again: done once
    assert store.undo("anna", "a", "a/0", version=2, request="6").verdict == CONSISTENT
    assert store.state("anna", "a").changes == (("a/0", Verdict()),)
    assert store.undo("anna", "a", "a/0", version=3, request="7").verdict == Verdict()
    with pytest.raises(Conflict):
        store.undo("anna", "a", "a/0", version=4, request="8")


def test_rankings_come_last_and_are_final(store):
    decide_all(store)
    store.undo("anna", "a", "a/2", version=1, request="u")
    with pytest.raises(RuleBroken, match="after all propositions"):
        store.finish("anna", "a", ORDERS, request="f1")
    store.answer("anna", "a", "a/2", HOLDING, version=2, request="again")
    store.finish("anna", "a", ORDERS, request="f2")
    store.finish("anna", "a", ORDERS, request="f2")  # sent again
    with pytest.raises(RuleBroken, match="once"):
        store.finish("anna", "a", ORDERS, request="f3")
    with pytest.raises(RuleBroken, match="final"):
        store.answer("anna", "a", "a/0", HOLDING, version=1, request="late")
    with pytest.raises(RuleBroken, match="final"):
        store.undo("anna", "a", "a/2", version=3, request="late undo")
    assert [one.models for one in store.rankings()] == [("tuned", "base")] * 3
    assert store.state("anna", "a").finished
    assert not store.state("ben", "a").finished


def test_nobody_answers_what_is_not_theirs(tmp_path):
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        store.open_study(small_study(tmp_path, overlap=0))
        other = next(one.item for one in store.assigned("ben"))
        with pytest.raises(RuleBroken):
            store.answer("anna", other, f"{other}/0", HOLDING, version=0, request="1")


def test_the_file_itself_refuses_what_the_protocol_does_not_allow(store, tmp_path):
    decide_all(store)
    store.finish("anna", "a", ORDERS, request="f")
    store.answer("ben", "a", "a/0", FALSE, version=0, request="b")
    raw = sqlite3.connect(tmp_path / "answers.sqlite")
    raw.execute("PRAGMA foreign_keys = ON")
    row = "('anna', 'b', 'b/0', {}, {}, {}, 1, '', '')"
    for statement in (
        "INSERT INTO verdicts VALUES " + row.format("'2. inconsistent'", "'2. holding'", "''"),
        "INSERT INTO verdicts VALUES " + row.format("NULL", "'2. holding'", "''"),
        "INSERT INTO verdicts VALUES " + row.format("'1. consistent'", "NULL", "' Subjective '"),
        "INSERT INTO verdicts VALUES " + row.format("NULL", "NULL", "'subjective'"),
        "INSERT INTO verdicts VALUES " + row.format("'yes'", "NULL", "''"),
        "INSERT INTO verdicts VALUES ('ben', 'a', 'a/0', '2. inconsistent', NULL, '', 1, '', '')",
        "INSERT INTO verdicts VALUES ('ben', 'a', 'b/0', '2. inconsistent', NULL, '', 1, '', '')",
        "UPDATE verdicts SET note = 'x' WHERE annotator = 'anna' AND item = 'a'",
        "DELETE FROM verdicts",
        "INSERT INTO rankings VALUES ('ben', 'a', 'accuracy', '[\"base\", \"tuned\"]', '')",
        "UPDATE rankings SET models = '[]'",
        "DELETE FROM rankings",
        "INSERT INTO finished VALUES ('ben', 'a', '')",
        "DELETE FROM finished",
        "UPDATE events SET action = 'undo'",
        "DELETE FROM events",
    ):
        with pytest.raises(sqlite3.IntegrityError), raw:
            raw.execute(statement)
    for number in (1, 2):
        store.answer("ben", "a", f"a/{number}", FALSE, version=0, request=f"b{number}")
    for bad in ('["base", "base"]', '["base"]', '["base", "tuned", "x"]'):
        with pytest.raises(sqlite3.IntegrityError, match="exactly once"), raw:
            raw.execute("INSERT INTO rankings VALUES ('ben', 'a', 'accuracy', ?, '')", (bad,))
    raw.close()


def test_a_refused_change_leaves_no_event(store):
    decide_all(store)
    store.finish("anna", "a", ORDERS, request="f")
    before = store.answer_times("anna")
    with pytest.raises(RuleBroken):
        store.answer("anna", "a", "a/0", HOLDING, version=1, request="late")
    assert store.answer_times("anna") == before


def test_assignments_stay_and_new_items_are_added(tmp_path):
    folder = tmp_path
    small_study(folder)
    lines = (folder / "items.jsonl").read_text(), (folder / "propositions.jsonl").read_text()
    one_item = [text.splitlines(keepends=True) for text in lines]
    (folder / "items.jsonl").write_text(one_item[0][0])
    (folder / "propositions.jsonl").write_text("".join(one_item[1][:3]))
    with AnswerStore(folder / "answers.sqlite") as store:
        store.open_study(read_study(folder))
        before = store.assigned("anna")
    (folder / "items.jsonl").write_text(lines[0])
    (folder / "propositions.jsonl").write_text(lines[1])
    with AnswerStore(folder / "answers.sqlite") as store:
        store.open_study(read_study(folder))
        after = store.assigned("anna")
    assert [one.item for one in before] == ["a"]
    assert [one.item for one in after] == ["a", "b"]


def test_who_is_named_later_gets_what_nobody_has_begun(tmp_path):
    """A first start, with --export too, names the defaults; all items were theirs for good, and nobody was told."""

    def items(store, *named):
        settings = read_settings(tmp_path).model_copy(update={"annotators": named, "overlap": 0.0})
        store.open_study(read_study(tmp_path, settings))
        return {name: {one.item for one in store.assigned(name)} for name in ("anna", "ben", "maria", "zoe")}

    small_study(tmp_path)
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        first = items(store, "anna", "ben")
        assert first["anna"] | first["ben"] == {"a", "b"}
        assert items(store, "anna", "ben") == first
        later = items(store, "maria", "zoe")
        assert (later["maria"] | later["zoe"], later["anna"], later["ben"]) == ({"a", "b"}, set(), set())
        (begun,) = later["maria"]
        store.answer("maria", begun, f"{begun}/0", FALSE, version=0, request="1")
        assert items(store, "anna") == {
            "anna": {"a", "b"} - {begun},
            "ben": set(),
            "maria": {begun},
            "zoe": set(),
        }


def items_of(store, folder, *named):
    """Those of anna, ben and carl, each in order, once these are the study's annotators."""
    settings = read_settings(folder).model_copy(update={"annotators": named})
    store.open_study(read_study(folder, settings))
    return {name: [one.item for one in store.assigned(name)] for name in ("anna", "ben", "carl")}


def test_second_opinions_of_somebody_who_has_gone_are_anothers(tmp_path):
    """They stayed with whoever was gone where the first opinion was begun: nobody ever gave them."""

    small_study(tmp_path)
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        first = items_of(store, tmp_path, "anna", "ben")
        assert sorted(first["anna"]) == sorted(first["ben"]) == ["a", "b"]
        for item in ("a", "b"):
            store.opened("anna", item)
        store.answer("ben", "b", "b/0", FALSE, version=0, request="1")
        expected = {"anna": first["anna"], "ben": ["b"], "carl": ["a"]}
        assert items_of(store, tmp_path, "anna", "carl") == expected
        assert items_of(store, tmp_path, "anna", "carl") == expected


def test_a_second_opinion_is_of_somebody_who_has_not_given_the_first(tmp_path):
    """Though that one has no more to do than the other who is left."""

    small_study(tmp_path)
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        first = items_of(store, tmp_path, "anna", "ben", "carl")
        (gone,) = (name for name, own in first.items() if len(own) == 2)
        left = {own[0]: name for name, own in first.items() if name != gone}
        for item, name in left.items():
            store.opened(name, item)
        assert items_of(store, tmp_path, left["a"], left["b"]) == {
            gone: [],
            left["a"]: ["a", "b"],
            left["b"]: ["b", "a"],
        }


def test_what_somebody_who_has_gone_only_looked_at_is_anothers(tmp_path):
    """It stayed with whoever was gone: nobody ever decided it."""

    def items(store, *named):
        settings = read_settings(tmp_path).model_copy(update={"annotators": named})
        store.open_study(read_study(tmp_path, settings))
        return {name: sorted(one.item for one in store.assigned(name)) for name in ("anna", "ben", "carl")}

    small_study(tmp_path)
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        assert items(store, "anna", "ben") == {"anna": ["a", "b"], "ben": ["a", "b"], "carl": []}
        for item in ("a", "b"):
            store.opened("anna", item)
        store.opened("ben", "a")
        # Of a others are at work, of b nobody is.
        assert items(store, "ben", "carl") == {"anna": [], "ben": ["a", "b"], "carl": ["a", "b"]}
        decide_all(store, "carl", "a")
        store.finish("carl", "a", ORDERS, request="f")
        store.answer("carl", "b", "b/0", FALSE, version=0, request="1")
        store.undo("carl", "b", "b/0", version=1, request="2")
        assert items(store, "anna", "ben")["carl"] == ["a", "b"]


def test_another_overlap_holds_for_what_nobody_has_begun(tmp_path):
    """It was kept in study.json and did nothing, once somebody had looked at an item."""

    def items(overlap):
        settings = read_settings(tmp_path).model_copy(update={"overlap": overlap})
        store.open_study(read_study(tmp_path, settings))
        return [[one.item for one in store.assigned(name)] for name in ("anna", "ben")]

    small_study(tmp_path)
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        (begun,), (other,) = items(0.0)
        store.opened("anna", begun)
        assert items(1.0) == [[begun, other], [other]]
        assert items(1.0) == [[begun, other], [other]]
        assert items(0.0) == [[begun], [other]]


def test_an_annotators_items_are_listed_in_time_that_grows_with_their_number(tmp_path, monkeypatch):
    steps, connect = [0], answers.connect

    def counted(path):
        connection = connect(path)
        connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 100)
        return connection

    monkeypatch.setattr(answers, "connect", counted)

    def cost(count):
        study = small_study(tmp_path / str(count), annotators=["anna"], overlap=0)
        items = {f"{n}": study.items["a"].model_copy(update={"id": f"{n}"}) for n in range(count)}
        asked = {
            item: tuple(
                one.model_copy(update={"image_id": item, "prop_id": f"{item}/{place}"})
                for place, one in enumerate(study.propositions["a"])
            )
            for item in items
        }
        with AnswerStore(tmp_path / str(count) / "answers.sqlite") as store:
            store.open_study(replace(study, items=items, propositions=asked))
            given = [
                GivenElsewhere(
                    annotator="anna",
                    item=item,
                    verdicts={one.prop_id: Held(verdict=FALSE) for one in rows[1:]},
                    rankings=None,
                )
                for item, rows in asked.items()
            ]
            store.take_in(given, {})
            before = steps[0]
            listed = store.assigned("anna")
            assert {(one.decided, one.total, one.finished) for one in listed} == {(2, 3, False)}
            assert len(listed) == count
            return steps[0] - before

    assert cost(400) < 6 * cost(100)


def test_a_question_that_changed_after_it_was_asked_is_refused(store, tmp_path):
    before = (tmp_path / "propositions.jsonl").read_text()
    change_row(tmp_path / "propositions.jsonl", 0, text="Something else.")
    with pytest.raises(StudyError, match='item "a" or its propositions changed') as caught:
        store.open_study(read_study(tmp_path))
    assert "put it back, and add what is new as another item" in str(caught.value)
    # What the message says is possible.
    changed = (tmp_path / "propositions.jsonl").read_text().splitlines(keepends=True)[0]
    new = changed.replace('"a"', '"c"').replace('"a/0"', '"c/0"')
    (tmp_path / "propositions.jsonl").write_text(before + new)
    item = (
        (tmp_path / "items.jsonl").read_text().splitlines(keepends=True)[0].replace('"id": "a"', '"id": "c"')
    )
    with (tmp_path / "items.jsonl").open("a") as file:
        file.write(item)
    store.open_study(read_study(tmp_path))
    assert store.is_assigned("anna", "c")


def test_another_seed_is_refused(store, tmp_path):
    with pytest.raises(StudyError, match="seed"):
        store.open_study(small_study(tmp_path, seed=3))


def test_settings_are_kept_if_the_study_is_taken_in_and_only_then(store, tmp_path):
    before = (tmp_path / "study.json").read_bytes()
    more = read_settings(tmp_path).model_copy(update={"annotators": ("anna", "ben", "chris")})
    with pytest.raises(StudyError, match="seed"):
        store.open_study(read_study(tmp_path, more.model_copy(update={"seed": 3})))
    assert (tmp_path / "study.json").read_bytes() == before
    store.open_study(read_study(tmp_path, more))
    assert read_settings(tmp_path) == more


def test_adjudications_have_versions_and_are_complete(store):
    with pytest.raises(RuleBroken, match="both steps"):
        store.adjudicate("carla", "a/0", CONSISTENT, version=0)
    store.adjudicate("carla", "a/0", HOLDING, version=0)
    with pytest.raises(Conflict):
        store.adjudicate("carla", "a/0", FALSE, version=0)
    held = store.adjudicate("carla", "a/0", FALSE, version=1)
    assert store.adjudications() == {"a/0": ("carla", held)}


def test_a_file_that_is_no_store_is_refused_by_name(tmp_path):
    path = tmp_path / "answers.sqlite"
    with pytest.raises(StudyError, match="nobody has answered yet"):
        StoredAnswers(path)
    path.write_bytes(b"no database" * 100)
    with pytest.raises(StudyError, match=r"answers\.sqlite cannot be used"):
        AnswerStore(path)
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(StudyError, match="version 9"):
        AnswerStore(path)


def test_partial_answers_are_kept_and_not_handed_out(store):
    store.answer("anna", "a", "a/0", CONSISTENT, version=0, request="1")
    assert store.state("anna", "a").verdicts["a/0"].verdict == CONSISTENT
    assert store.verdicts() == ()
    assert [(one.item, one.decided, one.total) for one in store.assigned("anna") if one.item == "a"] == [
        ("a", 0, 3)
    ]
    assert verdict_of("1. consistent", None, "") == CONSISTENT


def test_a_damaged_file_is_named_where_it_is_read(store, tmp_path):
    study = read_study(tmp_path)
    for number in range(3):
        store.answer("anna", "a", f"a/{number}", FALSE, version=0, request=f"{number}")
    store.close()
    path = tmp_path / "answers.sqlite"
    with sqlite3.connect(path) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'verdicts'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"\x99" * size
    path.write_bytes(content)
    with StoredAnswers(path) as stored, pytest.raises(StudyError, match=r"malformed.*\.recover"):
        records_of(study, stored)
