"""Answers to records and to Label Studio, and back."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.human_eval.small_study import change_row, small_study, write_small_study
from vcap_jax.human_eval.errors import Conflict, RuleBroken, StudyError
from vcap_jax.human_eval.exchange import (
    Records,
    check_fit,
    export_records,
    read_records,
    records_of,
    take_in,
)
from vcap_jax.human_eval.label_studio import from_tasks, labelling_config, to_tasks
from vcap_jax.human_eval.protocol import Ranking, Step1, Step2, Verdict
from vcap_jax.human_eval.records import Timestamps
from vcap_jax.human_eval.store import AnswerStore
from vcap_jax.human_eval.study import read_study
from vcap_jax.system.errors import VCapError


@pytest.fixture
def answered(tmp_path):
    """Anna has finished "a" and begun "b"."""
    study = small_study(tmp_path / "study")
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        store.open_study(study)
        verdicts = [
            Verdict(step1=Step1.CONSISTENT, step2=Step2.HOLDING),
            Verdict(step1=Step1.UNDECIDABLE, note="subjective"),
            Verdict(step1=Step1.INCONSISTENT, note="«new» 🚗"),
        ]
        for number, verdict in enumerate(verdicts):
            store.answer("anna", "a", f"a/{number}", verdict, version=0, request=f"{number}")
        store.finish("anna", "a", dict.fromkeys(Ranking, ("tuned", "base")), request="f")
        store.answer("anna", "b", "b/0", Verdict(step1=Step1.CONSISTENT), version=0, request="partial")
        store.answer("anna", "b", "b/1", verdicts[0], version=0, request="whole")
        yield study, store


@pytest.fixture
def disputed(answered):
    """Ben disagrees with her about "a/0", and a third person has decided it."""
    study, store = answered
    store.answer("ben", "a", "a/0", Verdict(step1=Step1.UNDECIDABLE), version=0, request="ben")
    store.adjudicate("carla", "a/0", Verdict(step1=Step1.INCONSISTENT), version=0)
    return study, store


def without_times(rows):
    return [row.model_copy(update={"timestamps": None}) for row in rows]


def by_id(rows):
    return sorted(rows, key=lambda row: row.prop_id)


def test_records_are_read_as_they_were_written(disputed, tmp_path):
    study, store = disputed
    records = records_of(study, store)
    assert [row.prop_id for row in records.answers] == ["a/0", "a/0", "a/1", "a/2", "b/1"]
    assert records.rankings[0].accuracy == {"base": 2, "tuned": 1}
    assert [row.annotator for row in records.adjudicated] == ["carla"]
    export_records(study, records, tmp_path / "out")
    assert read_records(tmp_path / "out", study) == records
    row = json.loads((tmp_path / "out" / "annotations.jsonl").read_text().splitlines()[0])
    assert list(row) == [
        *("image_id", "model", "ref_model", "prop_id", "kind", "text"),
        *("step1", "step2", "note", "annotator", "timestamps"),
    ]


def test_label_studio_and_back_is_the_same(answered, tmp_path):
    study, store = answered
    records = records_of(study, store)
    export_records(study, records, tmp_path / "out")
    tasks = tmp_path / "out" / "label_studio.json"
    found = from_tasks(json.loads(tasks.read_text()), "tasks", study)
    assert found.items == study.items
    asked = [one for rows in study.propositions.values() for one in rows]
    assert by_id(found.propositions) == asked
    assert by_id(without_times(found.answers)) == without_times(records.answers)
    assert without_times(found.rankings) == without_times(records.rankings)
    assert found.skipped == 2  # of "b", decided in part
    assert read_records(tasks, study).answers == found.answers


def test_tasks_tell_nobody_whose_captions_they_are(tmp_path):
    """Their ids, their order and what lies beside them say no more than our own pages."""
    folder = write_small_study(tmp_path)
    models = ("base", "tuned")
    for number in range(6):
        change_row(folder / "propositions.jsonl", number, prop_id=f"{models[number % 3 == 2]}/{number}")
    study = read_study(folder)
    asked = study.items["a"]
    rewarded = tuple(one.model_copy(update={"reward": 0.4321}) for one in asked.captions)
    rewarded_study = replace(
        study, items=study.items | {"a": asked.model_copy(update={"captions": rewarded})}
    )
    told = json.dumps(to_tasks(rewarded_study))
    assert [word for word in (*models, "ref_", "0.4321") if word in told] == []
    items = {f"i{number}": asked.model_copy(update={"id": f"i{number}"}) for number in range(30)}
    many = replace(study, items=items, propositions=dict.fromkeys(items, study.propositions["a"]))
    first = [task["data"]["captions"][0]["body"] for task in to_tasks(many)]
    assert 5 < sum(text == asked.caption("base") for text in first) < 25
    assert first == [task["data"]["captions"][0]["body"] for task in to_tasks(many)]


def test_tasks_are_read_by_the_study_that_they_are_of_alone(answered, tmp_path):
    study, store = answered
    records = records_of(study, store)
    tasks = to_tasks(study, records.answers, records.rankings)
    with pytest.raises(StudyError, match=r"file, task 1: it names no models.*with --import"):
        from_tasks(tasks, "file")
    other_seed = replace(study, settings=study.settings.model_copy(update={"seed": 1}))
    with pytest.raises(StudyError, match=r"task 1: it is of no item of .*study.*the seed"):
        from_tasks(tasks, "file", other_seed)
    for number, changes in ((0, {"text": "Something else."}), (1, {"prop_id": "a/new"})):
        before = (study.folder / "propositions.jsonl").read_text()
        change_row(study.folder / "propositions.jsonl", number, **changes)
        with pytest.raises(StudyError, match='of "a" are not what they were when it was exported: put them'):
            from_tasks(tasks, "file", read_study(study.folder))
        (study.folder / "propositions.jsonl").write_text(before)
    tasks[0]["data"]["captions"][0]["body"] = "Something else."
    with pytest.raises(StudyError, match='of "a" are not what they were'):
        from_tasks(tasks, "file", study)


def test_tasks_of_before_name_the_models_and_are_taken_in_as_they_are(answered, tmp_path):
    study, store = answered
    records = records_of(study, store)
    tasks = to_tasks(study, records.answers, records.rankings)
    letters = {
        task["data"]["key"]: {one["body"]: one["id"] for one in task["data"]["captions"]} for task in tasks
    }
    for task, item in zip(tasks, study.items.values(), strict=True):
        data, asked = task["data"], {one.text: one for one in study.propositions[item.id]}
        models = {letters[data["key"]][caption.text]: caption.model for caption in item.captions}
        data["image_id"] = item.id
        data["captions"] = [
            {"id": caption.model, "title": f"Caption {place}", "body": caption.text, "reward": caption.reward}
            for place, caption in enumerate(item.captions, 1)
        ]
        data["propositions"] = [
            asked[row["text"]].model_dump(mode="json") | {"caption": row["caption"]}
            for row in data["propositions"]
        ]
        del data["key"]
        for annotation in task["annotations"]:
            for result in annotation["result"]:
                if result["type"] == "ranker":
                    ((ranking, order),) = result["value"]["ranker"].items()
                    result["value"]["ranker"] = {ranking: [models[letter] for letter in order]}
    for known in (study, None):
        found = from_tasks(tasks, "file", known)
        assert found.items == study.items
        assert by_id(without_times(found.answers)) == without_times(records.answers)
        assert without_times(found.rankings) == without_times(records.rankings)
    with AnswerStore(tmp_path / "second.sqlite") as second:
        second.open_study(study)
        assert take_in(study, second, Records(answers=found.answers, rankings=found.rankings)) == 4


def test_tasks_that_name_models_are_of_the_studys_captions(tmp_path):
    """Answers about other captions of the same models were taken in."""
    task, folder = exported(), write_small_study(tmp_path)
    for name in ("items.jsonl", "propositions.jsonl"):
        (folder / name).write_text((folder / name).read_text().splitlines()[0] + "\n")
    captions = [{"model": one["id"], "text": one["body"]} for one in task["data"]["captions"]]
    change_row(folder / "items.jsonl", 0, captions=captions)
    change_row(folder / "propositions.jsonl", 0, prop_id="p", text="The car is dented.")
    assert len(from_tasks([task], "file", read_study(folder)).answers) == 1
    captions[1]["text"] = "A red car, dented. It is old."
    change_row(folder / "items.jsonl", 0, captions=captions)
    with pytest.raises(
        StudyError, match='task 1: the captions or propositions of "a" are not what they were'
    ):
        from_tasks([task], "file", read_study(folder))


def test_rankings_without_answers_go_to_label_studio_and_come_back(tmp_path):
    folder = write_small_study(tmp_path / "study")
    rows = (folder / "propositions.jsonl").read_text().splitlines(keepends=True)
    (folder / "propositions.jsonl").write_text("".join(row for row in rows if '"image_id": "b"' not in row))
    study = read_study(folder)
    with AnswerStore(tmp_path / "answers.sqlite") as store:
        store.open_study(study)
        for annotator in ("anna", "ben"):
            store.finish(annotator, "b", dict.fromkeys(Ranking, ("tuned", "base")), request=f"of {annotator}")
        store.answer("anna", "a", "a/1", Verdict(step1=Step1.INCONSISTENT), version=0, request="0")
        records = records_of(study, store)
        export_records(study, records, tmp_path / "out")
    found = from_tasks(json.loads((tmp_path / "out" / "label_studio.json").read_text()), "tasks", study)
    assert [(one.image_id, one.annotator) for one in found.rankings] == [("b", "anna"), ("b", "ben")]
    assert found.rankings == records.rankings  # with their times
    assert without_times(found.answers) == without_times(records.answers)


def test_the_configuration_names_what_the_results_name(answered):
    study, store = answered
    records = records_of(study, store)
    tree = ElementTree.fromstring(labelling_config())
    controls = {element.get("name"): element for element in tree.iter() if element.get("name")}
    assert "Video" not in {element.tag for element in tree.iter()}
    for task in to_tasks(study, records.answers, records.rankings):
        for results in (*task["annotations"], *task["predictions"]):
            for result in results["result"]:
                pattern = "_".join(
                    "{{idx}}" if part.isdecimal() else part for part in result["from_name"].split("_")
                )
                target = "_".join(
                    "{{idx}}" if part.isdecimal() else part for part in result["to_name"].split("_")
                )
                assert controls[pattern].get("toName") == target
                assert controls[pattern].tag.lower() == result["type"]
    step2 = controls["s2_{{idx}}"]
    assert (step2.get("whenTagName"), step2.get("whenChoiceValue")) == ("s1_{{idx}}", "1. consistent")


def test_a_file_of_any_name_is_found_by_label_studio_and_here(tmp_path):
    folder, media = write_small_study(tmp_path), "50% #3 & a+b.png"
    (folder / "a.png").rename(folder / media)
    change_row(folder / "items.jsonl", 0, image=media)
    address = to_tasks(read_study(folder))[0]["data"]["image"]
    assert parse_qs(urlsplit(address).query) == {"d": [media]}  # as its server reads it
    task = exported()
    task["data"]["image"] = address
    assert from_tasks([task], "x").items["a"].image == media


def exported(**changes):
    """A task as a server exports it, by hand from the documentation of its formats."""
    choice = {"to_name": "p_0", "type": "choices", "origin": "manual"}
    task = {
        "id": 7,
        "data": {
            "image_id": "a",
            "image": "/data/local-files/?d=pics/a.png",
            "captions": [
                {"id": "base", "title": "Caption 1", "body": "🚗 A red car."},
                {"id": "tuned", "title": "Caption 2", "body": "A red car, dented."},
            ],
            "propositions": [
                {
                    "image_id": "a",
                    "prop_id": "p",
                    "model": "base",
                    "ref_model": "tuned",
                    "kind": "missing",
                    "text": "The car is dented.",
                    "span": None,
                    "caption": "🚗 A red car.",
                }
            ],
        },
        "annotations": [
            {
                "id": 1001,
                "completed_by": {"id": 3, "email": "anna@example.org"},
                "was_cancelled": False,
                "ground_truth": False,
                "created_at": "2026-01-01T10:00:00.000000Z",
                "updated_at": "2026-01-01T10:05:00.000000Z",
                "lead_time": 30.5,
                "result": [
                    {"id": "x1", "from_name": "s1_0", "value": {"choices": ["1. consistent"]}, **choice},
                    {"id": "x2", "from_name": "s2_0", "value": {"choices": ["2. holding"]}, **choice},
                    *(
                        {
                            "id": f"r{ranking}",
                            "from_name": str(ranking),
                            "to_name": f"captions_{ranking}",
                            "type": "ranker",
                            "value": {"ranker": ["tuned", "base"]},
                        }
                        for ranking in Ranking
                    ),
                ],
            }
        ],
        # Offsets in UTF-16 units: the car is two of them.
        "predictions": [
            {
                "model_version": "x",
                "result": [
                    {
                        "id": "e",
                        "from_name": "e_0",
                        "to_name": "c_0",
                        "type": "labels",
                        "value": {"start": 3, "end": 12, "text": "A red car", "labels": ["evidence"]},
                    }
                ],
            }
        ],
    }
    task["annotations"][0] |= changes
    return task


def test_an_export_of_a_server_is_read_with_bare_rankings_and_utf16_spans():
    found = from_tasks([exported()], "file")
    assert found.items["a"].image == "pics/a.png"
    assert found.propositions[0].span.model_dump() == {"start": 2, "end": 11, "text": "A red car"}
    (answer,) = found.answers
    assert (answer.annotator, answer.step1, answer.step2) == (
        "anna@example.org",
        "1. consistent",
        "2. holding",
    )
    assert answer.timestamps.last == "2026-01-01T10:05:00.000000Z"
    assert found.rankings[0].granularity == {"tuned": 1, "base": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completed_by": None}, "completed_by"),
        (
            {"result": [{"from_name": "s1_0", "value": {"choices": ["1. consistent", "2. inconsistent"]}}]},
            "2 values",
        ),
        ({"result": [{"from_name": "s1_0", "value": {"choices": ["1. consistent"]}}]}, "needs a step 2"),
        (
            {
                "result": [
                    {"from_name": "s1_0", "value": {"choices": ["2. inconsistent"]}},
                    {"from_name": "s2_0", "value": {"choices": ["2. holding"]}},
                ]
            },
            "step 2 is open only after",
        ),
        (
            {"result": [{"from_name": "s2_0", "value": {"choices": ["2. holding"]}}]},
            "proposition 0: a step 2 without step 1",
        ),
        (
            {"result": [{"from_name": "s1_0", "value": {"choices": [str(label)]}} for label in Step1]},
            "two results of s1_0",
        ),
        (
            {
                "result": [
                    {"from_name": str(r), "value": {"ranker": {str(r): ["base", "base"]}}} for r in Ranking
                ]
            },
            "exactly once",
        ),
        ({"result": "x"}, "a list is wanted"),
    ],
)
def test_what_another_tool_lets_through_is_refused_by_task(changes, message):
    with pytest.raises(VCapError, match=message) as caught:
        from_tasks([exported(**changes)], "file")
    assert "file, task 1" in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("  anna ", "anna"),
        ("anna@example.org", "anna@example.org"),
        (" ", "ben@example.org"),
        ("Anna K.", None),
        ("a" * 41, None),
    ],
)
def test_a_name_that_was_typed_is_one_that_an_annotator_may_have(typed, name):
    task = exported(completed_by={"id": 3, "email": "ben@example.org"})
    task["annotations"][0]["result"].append({"from_name": "annotator", "value": {"text": [typed]}})
    if name is not None:
        assert {one.annotator for one in from_tasks([task], "file").answers} == {name}
        return
    with pytest.raises(StudyError, match=r"file, task 1, annotator '.*': .* may have letters a to z"):
        from_tasks([task], "file")


def test_cancelled_annotations_are_counted_and_left_out():
    found = from_tasks([exported(was_cancelled=True)], "file")
    assert (found.answers, found.skipped) == ((), 1)


def test_what_somebody_says_twice_is_refused_and_not_chosen_from(disputed, tmp_path):
    """Label Studio lets one person annotate a task again: the last of them silently went before the others."""
    study, store = disputed
    records = records_of(study, store)
    tasks = to_tasks(study, records.answers, records.rankings)
    tasks[0]["annotations"] *= 2
    found = from_tasks(tasks, "file", study)
    for twice, message in (
        (
            Records(answers=found.answers, rankings=()),
            'anna answers "a/[0-2]" 2 times: leave all but one out',
        ),
        (Records(answers=(), rankings=found.rankings), 'anna ranks the captions of "a" 2 times'),
        (replace(records, adjudicated=records.adjudicated * 2), 'somebody adjudicates "a/0" 2 times'),
    ):
        with AnswerStore(tmp_path / "second.sqlite") as second:
            second.open_study(study)
            with pytest.raises(StudyError, match=message):
                take_in(study, second, twice)
            assert second.verdicts() == ()


def test_rankings_that_are_not_all_three_are_counted(answered):
    study, store = answered
    records = records_of(study, store)
    tasks = to_tasks(study, records.answers, records.rankings)
    before = from_tasks(tasks, "file", study)
    results = tasks[0]["annotations"][0]["result"]
    results.remove(next(one for one in results if one["type"] == "ranker"))
    after = from_tasks(tasks, "file", study)
    assert (len(before.rankings), len(after.rankings)) == (1, 0)
    assert after.skipped == before.skipped + 1


def test_half_of_a_character_and_an_empty_time_are_met_by_task(answered):
    study, store = answered
    records = records_of(study, store)
    tasks = json.loads(json.dumps(to_tasks(study, records.answers, records.rankings)))
    (annotation,) = tasks[0]["annotations"]
    annotation["created_at"] = ""
    found = from_tasks(tasks, "tasks", study)
    assert without_times(found.rankings) == without_times(records.rankings)
    assert found.rankings[0].timestamps is None
    note = next(row for row in annotation["result"] if row["from_name"].startswith("n_"))
    note["value"]["text"] = ["half \ud83d"]
    with pytest.raises(StudyError, match=r"tasks, task 1, proposition \d: a note has half of a character"):
        from_tasks(tasks, "tasks", study)


def test_answers_given_elsewhere_are_taken_into_a_study_once(disputed, tmp_path):
    study, store = disputed
    records = records_of(study, store)
    with AnswerStore(tmp_path / "second.sqlite") as second:
        second.open_study(study)
        assert take_in(study, second, records) == 5
        again = records_of(study, second)
        assert again.answers == records.answers
        assert without_times(again.rankings) == without_times(records.rankings)
        assert without_times(again.adjudicated) == without_times(records.adjudicated)
        with pytest.raises(Conflict, match="already"):
            take_in(study, second, records)
        stranger = records.answers[0].model_copy(update={"prop_id": "other"})
        with pytest.raises(StudyError, match="no proposition of this study"):
            take_in(study, second, type(records)(answers=(stranger,), rankings=()))


def test_adjudications_are_a_third_persons_and_of_a_dispute(disputed, tmp_path):
    study, store = disputed
    records = records_of(study, store)
    (decided,) = records.adjudicated
    of_another = {"prop_id": "a/1", "text": study.propositions["a"][1].text}
    alone = Records(answers=(), rankings=(), adjudicated=records.adjudicated)
    with AnswerStore(tmp_path / "second.sqlite") as second:
        second.open_study(study)
        for changes, message in (
            ({"annotator": "ben"}, 'ben adjudicates "a/0" and has answered it: a third person decides'),
            (of_another, 'carla adjudicates "a/1", about which nobody disagrees: leave it out'),
        ):
            wrong = replace(records, adjudicated=(decided.model_copy(update=changes),))
            for take in (check_fit, lambda study, records: take_in(study, second, records)):
                with pytest.raises(RuleBroken, match=message):
                    take(study, wrong)
        with pytest.raises(RuleBroken, match="about which nobody disagrees"):
            take_in(study, second, alone)
        assert second.verdicts() == ()
        take_in(study, second, replace(records, adjudicated=()))
        take_in(study, second, alone)  # the dispute is here
        assert records_of(study, second).adjudicated == records.adjudicated
    given = store.state("ben", "a").verdicts["a/0"]
    held = next(one.held for one in store.verdicts() if (one.annotator, one.prop) == ("anna", "a/0"))
    store.answer("ben", "a", "a/0", held.verdict, version=given.version, request="ben agrees")
    assert records_of(study, store).adjudicated == ()


def test_times_of_what_was_given_elsewhere_are_kept(answered, tmp_path):
    study, store = answered
    before = Timestamps(first="2026-01-01T10:00:00.000Z", last="2026-01-01T10:05:00.000Z")

    def earlier(rows):
        return tuple(row.model_copy(update={"timestamps": before}) for row in rows)

    records = records_of(study, store)
    given = Records(answers=earlier(records.answers), rankings=earlier(records.rankings))
    with AnswerStore(tmp_path / "second.sqlite") as second:
        second.open_study(study)
        take_in(study, second, given)
        found = records_of(study, second)
    assert {row.timestamps for row in found.answers} == {before}
    # Three rankings are given at once.
    assert {row.timestamps for row in found.rankings} == {Timestamps(first=before.last, last=before.last)}


def test_what_does_not_fit_takes_nothing_in(answered, tmp_path):
    study, store = answered
    records = records_of(study, store)
    (ranked,) = records.rankings
    unranked = Records(answers=records.answers[:3], rankings=())
    with AnswerStore(tmp_path / "second.sqlite") as second:
        second.open_study(study)
        take_in(study, second, Records(answers=records.answers[3:], rankings=()))
        with pytest.raises(Conflict, match='anna has answers to "b" here already'):
            take_in(study, second, records)  # "a" comes before it
        ranks = {"base": 1, "else": 2}
        other = ranked.model_copy(update=dict.fromkeys(map(str, Ranking), ranks))
        away = ranked.model_copy(update={"image_id": "z"})
        for strange in (other, away):
            with pytest.raises(StudyError, match=r'"[az]" that this study does not have'):
                take_in(study, second, replace(unranked, rankings=(strange,)))
        with pytest.raises(RuleBroken, match="before all its propositions"):
            take_in(study, second, replace(unranked, answers=unranked.answers[:2], rankings=(ranked,)))
        assert [one.prop for one in second.verdicts()] == ["b/1"]
        take_in(study, second, replace(unranked, rankings=(ranked,)))
        assert second.state("anna", "a").finished


def test_rankings_of_an_item_without_propositions_are_taken_in(tmp_path):
    folder = write_small_study(tmp_path / "study")
    rows = (folder / "propositions.jsonl").read_text().splitlines(keepends=True)
    (folder / "propositions.jsonl").write_text("".join(rows[3:]))
    study = read_study(folder)
    with AnswerStore(tmp_path / "one.sqlite") as one, AnswerStore(tmp_path / "two.sqlite") as two:
        for store in (one, two):
            store.open_study(study)
        one.finish("anna", "a", dict.fromkeys(Ranking, ("tuned", "base")), request="f")
        records = records_of(study, one)
        take_in(study, two, records)
        assert without_times(records_of(study, two).rankings) == without_times(records.rankings) != []


@pytest.mark.parametrize("change", ["text", "item"])
def test_a_study_that_is_not_what_was_answered_has_no_records(answered, change):
    study, store = answered
    if change == "text":
        change_row(study.folder / "propositions.jsonl", 0, text="Something else.")
        message = 'item "a" or its propositions changed'
    else:
        for name in ("items.jsonl", "propositions.jsonl"):
            lines = (study.folder / name).read_text().splitlines(keepends=True)
            (study.folder / name).write_text("".join(lines[len(lines) // 2 :]))
        message = 'item "a" was assigned and is no longer in the study'
    with pytest.raises(StudyError, match=message):
        records_of(read_study(study.folder), store)
