"""Captions that somebody wrote, in the forms that public scripts take and in our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.data.manifest import Sample
from vcap_jax.evals.captions_file import WrongCaptions
from vcap_jax.evals.written_captions import (
    PredictionsCaptioner,
    Rewarded,
    captions_in,
    form_of,
    read_predictions,
    read_rewards,
)

SAMPLES = [Sample(id=name, images=(Path(f"{name}.png"),)) for name in ("a", "b")]
BOTH = {"a.jpg": "A cat.", "b.jpg": "A dog."}


@pytest.mark.parametrize(
    "text",
    [
        '{"a.jpg": "A cat.", "b.jpg": "A dog."}',
        '{"a.jpg": ["A cat."], "b.jpg": "A dog."}',
        '[{"image_name": "a.jpg", "caption": "A cat."}, {"image_name": "b.jpg", "caption": "A dog."}]',
        '[{"image_id": "a.jpg", "caption": "A cat."}, {"file_name": "b.jpg", "caption": "A dog."}]',
        '[{"index": "a.jpg", "prediction": "A cat.", "answer": "B"}, {"id": "b.jpg", "caption": "A dog."}]',
        '{"id": "a.jpg", "captions": ["A cat.", "Other."]}\n\n{"id": "b.jpg", "captions": ["A dog."]}\n',
        '{"file_id": "a.jpg", "pred": "A cat."}\n{"id": "b.jpg", "response": "A dog."}\n{"id": "c", "failure": "x"}',
        '{"id": "a.jpg", "captions": ["A cat."]}\n{"id": "b.jpg", "captions": ["A dog."]}\n{"id": "c", "failure": "x"}',
    ],
)
def test_the_forms_of_public_scripts_are_understood(text: str, tmp_path: Path) -> None:
    path = tmp_path / "captions"
    path.write_text(text)
    assert read_predictions(path) == BOTH


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', r"entry 1 \(a\) has no caption"),
        ('[{"caption": "x"}]', "entry 1 names no sample"),
        ('[{"id": "x"}]', r"entry 1 \(x\) has no caption"),
        ('[{"id": "x", "caption": null}]', "or say with failure why"),
        (
            '[{"id": "x", "caption": "A red car.", "prediction": "A car."}]',
            "several texts, caption and prediction",
        ),
        (
            '[{"id": "x", "captions": ["A red car."], "prediction": "A car."}]',
            "several texts, captions and prediction",
        ),
        ('[{"id": "x", "caption": "A red car.", "answer": "A car."}]', "several texts, caption and answer"),
        ('[{"id": "x", "text": "Describe it.", "answer": "A car."}]', "several texts, text and answer"),
        ('{"x": "A car \\ud83d."}', r"the caption of 'x' holds '\\ud83d', half of a character"),
        ('{"id": "x", "caption": "y"}\nnonsense', ":2: not valid JSON"),
        ('{"x": "A car.", "x": "A red car."}', "the key 'x' is given twice"),
    ],
)
def test_what_is_no_file_of_captions_is_told_by_entry(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "captions"
    path.write_text(text)
    with pytest.raises(WrongCaptions, match=message):
        read_predictions(path)


def test_two_captions_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    rows = [
        {"id": "a", "caption": "A cat."},
        {"id": "a", "failure": "none"},
        {"id": "a", "caption": "A cat."},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_predictions(path) == {"a": "A cat."}
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"id": "a", "caption": "A dog."}]))
    with pytest.raises(WrongCaptions, match="entry 4 has another caption of 'a' than an earlier one"):
        read_predictions(path)


def test_names_meet_with_or_without_folder_and_ending() -> None:
    samples = [Sample(id=name, images=(Path(name),)) for name in ("a", "b.png", "v1.2", "c")]
    captioner = PredictionsCaptioner({"x/a.jpg": "A cat.", "b": "A dog.", "v1.2": "A car."})
    found = captioner.captions(samples)
    assert [one.texts for one in found] == [("A cat.",), ("A dog.",), ("A car.",), ()]
    assert found[3].failure == "the predictions have no caption of it"


@pytest.mark.parametrize("ending", [".bmp", ".tif", ".avif", ".JPG", ".m4v", ".mpg", ".flv"])
def test_every_ending_of_a_folders_pictures_and_clips_may_be_left_out(ending: str) -> None:
    for name, written in ((f"a{ending}", "a"), ("a", f"x/a{ending}")):
        (found,) = PredictionsCaptioner({written: "A cat."}).captions([Sample(id=name, images=(Path(name),))])
        assert found.texts == ("A cat.",)


def test_of_captions_whose_names_differ_in_the_folder_alone_none_is_taken_for_another() -> None:
    captioner = PredictionsCaptioner(
        {"x/a.jpg": "A cat.", "y/a.jpg": "A dog.", "x/b.jpg": "A car.", "b": "A car."}
    )
    found = captioner.captions([Sample(id=name, images=(Path(name),)) for name in ("y/a.jpg", "a", "b.png")])
    assert [one.texts for one in found] == [("A dog.",), (), ("A car.",)]
    assert found[1].failure == (
        "the predictions have several captions of that name, such as 'x/a.jpg' and 'y/a.jpg'"
    )


def test_marks_that_json_leaves_as_they_are_divide_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "captions"
    path.write_text(
        '{"id": "a.jpg", "caption": "Two\u2028lines."}\n{"id": "b.jpg", "caption": "A\x85dog."}\n'
    )
    assert read_predictions(path) == {"a.jpg": "Two\u2028lines.", "b.jpg": "A\x85dog."}


@pytest.mark.parametrize(
    "text", ['{"a": " "}', '[{"id": "a", "caption": ""}]', '{"id": "a", "captions": [""]}']
)
def test_an_empty_caption_is_a_caption(text: str, tmp_path: Path) -> None:
    """As a failure it would be left out of all figures, where it covers nothing."""
    path = tmp_path / "captions"
    path.write_text(text)
    (found,) = PredictionsCaptioner(read_predictions(path)).captions([SAMPLES[0]])
    assert found.failure is None
    assert [text.strip() for text in found.texts] == [""]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.jsonl", '{"id": "a", "captions": ["A cat."]}\n{"id": "z", "captions": ["A dog."]}\n'),
        ("pool.jsonl", '{"id": "a", "references": ["A cat."]}\n{"id": "z", "references": ["A dog."]}\n'),
        ("theirs.jsonl", '{"id": "a", "caption": "A cat."}\n{"id": "z", "caption": "A dog."}\n'),
        ("theirs.json", '{\n "a.jpg": "A cat.",\n "z": "A dog."\n}'),
        ("theirs", '[{"image": "a.jpg", "caption": "A cat."},\n {"image": "z", "caption": "A dog."}]'),
    ],
)
def test_all_forms_are_understood(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = captions_in(path, SAMPLES)
    assert {identity: one.texts for identity, one in found.items()} == {"a": ("A cat.",), "z": ("A dog.",)}


def test_what_is_wrong_with_ones_own_file_is_not_to_be_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text('{"id": "a", "captions": ["A cat."]}\n{"id": "b", "captions": "A dog."}\n')
    with pytest.raises(WrongCaptions, match=r':2: not an entry of captions .*: write {"id"') as wrong:
        captions_in(path, SAMPLES)
    assert not wrong.value.resumable


def samples_of(*names: str) -> list[Sample]:
    return [Sample(id=name, images=(Path(name),)) for name in names]


def test_of_samples_whose_names_differ_in_the_folder_alone_none_gets_another_ones_caption() -> None:
    captioner = PredictionsCaptioner({"x/a": "one", "imgs/b.png": "two"})
    found = captioner.captions(samples_of("x/a.png", "y/a.png", "z/b"))
    assert [one.texts for one in found] == [("one",), (), ("two",)]
    assert found[1].failure == (
        "several samples differ in their folders alone, and the predictions' 'x/a' may be another"
    )


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        ([{"id": "a", "failure": "x"}, {"id": "b", "caption": "B."}], "predictions"),
        ([{"id": "a", "failure": "x"}, {"id": "b", "captions": ["B."]}], "entries"),
        ([{"id": "a", "failure": "x"}], "entries"),
        ([{"id": "a", "prediction": "A.", "error": None}], "predictions"),
        ([{"id": "a", "prediction": "A.", "references": ["R."]}], "predictions"),
        ([{"image_name": "a.jpg", "captions": ["A."]}], "predictions"),
        ([{"id": "a", "captions": "A."}], "predictions"),
        ([{"id": "a", "captions": ["A."], "prediction": "A."}], "predictions"),
        ([{"id": "a", "prediction": "A.", "answer": "yes"}], "predictions"),
        ([{"id": "a", "references": ["R."]}], "pool"),
        ([{"id": "a", "place": 0, "caption": "A.", "reward": None, "failure": "x"}], "rewards"),
        ([{"id": "a", "caption": "A.", "reward": 0.5}], "predictions"),
    ],
)
def test_a_files_form_does_not_depend_on_the_order_of_its_rows_or_on_keys_beside_the_caption(
    rows: list[dict[str, object]], form: str, tmp_path: Path
) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert form_of(path) == form
    assert captions_in(path, SAMPLES)  # and it can be read as that


def test_a_key_whose_value_is_null_is_absent_and_no_empty_caption(tmp_path: Path) -> None:
    """As pandas writes a table of them, in either order."""
    empty = dict.fromkeys(("captions", "tokens", "truncated", "failure", "error", "text"))
    rows = [
        json.dumps({**empty, "id": "a", "captions": ["A cat.", "Other."]}),
        json.dumps({**empty, "id": "b", "failure": "torn"}),
    ]
    (tmp_path / "file").write_text("\n".join(rows))
    (tmp_path / "turned").write_text("\n".join(rows[::-1]))
    assert form_of(tmp_path / "file") == form_of(tmp_path / "turned") == "entries"
    found = captions_in(tmp_path / "file", SAMPLES)
    assert found == captions_in(tmp_path / "turned", SAMPLES)
    assert (found["a"].texts, found["b"].failure) == (("A cat.", "Other."), "torn")
    (tmp_path / "file").write_text(rows[0] + "\n" + json.dumps({**empty, "id": "b"}))
    with pytest.raises(WrongCaptions, match=":2: not an entry of captions"):
        captions_in(tmp_path / "file", SAMPLES)


def test_an_empty_text_with_a_reason_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text('{"id": "a", "response": "", "error": "timeout"}\n{"id": "b", "response": ""}\n')
    found = PredictionsCaptioner(read_predictions(path)).captions(SAMPLES)
    assert [one.texts for one in found] == [(), ("",)]


def test_captions_of_which_none_can_be_chosen_are_told(tmp_path: Path) -> None:
    path = tmp_path / "captions.json"
    path.write_text('{"x/a.jpg": "A cat.", "y/a.jpg": "A dog."}')
    found = captions_in(path, SAMPLES)
    assert "several captions of that name" in (found["a"].failure or "")


def test_rewards_are_of_their_captions_by_place(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": "a", "place": 1, "caption": "Other.", "reward": 0.5, "components": {"correctness": 9}},
        {"id": "a", "place": 0, "caption": "A cat.", "reward": None, "failure": "timeout"},
        {"id": "b", "place": 0, "caption": "A dog."},
    ]
    path = tmp_path / "rewards.jsonl"

    def write(*more: dict[str, object]) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))

    write(rows[0])
    assert read_rewards(path) == {
        "a": (Rewarded(text="A cat.", reward=None), Rewarded(text="Other.", reward=0.5)),
        "b": (Rewarded(text="A dog.", reward=None),),
    }
    assert {name: one.texts for name, one in captions_in(path, SAMPLES).items()} == {
        "a": ("A cat.", "Other."),
        "b": ("A dog.",),
    }
    write({"id": "c", "place": 0, "caption": "A.", "reward": "0.5"})
    with pytest.raises(WrongCaptions, match=r":4: not a row of rewards \(reward: '0.5', where a number"):
        read_rewards(path)
    write({"id": "c", "failure": "x"})
    with pytest.raises(WrongCaptions, match=":4: not a row of rewards"):
        read_rewards(path)
    write({"id": "b", "place": 0, "caption": "A dog.", "reward": 0.5})
    with pytest.raises(
        WrongCaptions, match=":4: another caption or reward of 'b' at place 0 stands in an earlier"
    ):
        read_rewards(path)
