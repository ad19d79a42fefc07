"""Captions that somebody wrote, in the forms that public scripts take; pictures and videos, wherever they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.data.manifest import Sample
from vcap_jax.evals.benchmarks.files import DataMissing, Folder, MediaFiles, read_predictions
from vcap_jax.evals.captioners import PredictionsCaptioner
from vcap_jax.evals.protocol import EvaluatorError

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
        '{"id": "a.jpg", "captions": ["A cat."]}\n{"id": "b.jpg", "captions": ["A dog."]}\n{"id": "c", "error": "x"}',
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
        ('[{"id": "x", "caption": ""}]', "or an empty one: .* or say with failure why"),
        (
            '[{"id": "x", "caption": "A red car.", "prediction": "A car."}]',
            "two texts, caption and prediction",
        ),
        ('{"x": "A car \\ud83d."}', r"the caption of 'x' holds '\\ud83d', half of a character"),
        ('{"id": "x", "caption": "y"}\nnonsense', ":2: not valid JSON"),
        ('{"x": "A car.", "x": "A red car."}', "'x' stands twice in one object: leave one out"),
    ],
)
def test_what_is_no_file_of_captions_is_told_by_entry(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "captions"
    path.write_text(text)
    with pytest.raises(EvaluatorError, match=message):
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
    with pytest.raises(EvaluatorError, match="entry 4 has another caption of 'a' than an earlier one"):
        read_predictions(path)


def test_names_meet_with_or_without_folder_and_ending() -> None:
    samples = [Sample(id=name, images=(Path(name),)) for name in ("a", "b.png", "v1.2", "c")]
    captioner = PredictionsCaptioner({"x/a.jpg": "A cat.", "b": "A dog.", "v1.2": "A car.", "c": " "})
    found = captioner.captions(samples)
    assert [one.texts for one in found] == [("A cat.",), ("A dog.",), ("A car.",), ()]
    assert found[3].failure == "the predictions have no caption of it"


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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (
        "images/a.jpg",
        "elsewhere/a.jpg",
        "other/b.PNG",
        "deep/er/c.webp",
        "images/v1.5.jpg",
        "images/notes.txt",
        "clip.mp4",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a.jpg", "images/a.jpg"),
        ("a", "images/a.jpg"),
        ("b", "other/b.PNG"),
        ("b.PNG", "other/b.PNG"),
        ("c.jpg", "deep/er/c.webp"),  # the table knows another ending
        ("v1.5", "images/v1.5.jpg"),
        ("elsewhere/a.jpg", "elsewhere/a.jpg"),  # a table may name the folder
        ("deep/er/c", "deep/er/c.webp"),
    ],
)
def test_a_picture_is_found_with_or_without_folder_and_ending(root: Path, name: str, path: str) -> None:
    assert MediaFiles(root, "image", "images", "other", "").expected(name) == root / path


@pytest.mark.parametrize("name", ["v1.6", "notes", "clip", "clip.mp4.jpg", "d"])
def test_what_is_not_there_is_not_taken_for_another(root: Path, name: str) -> None:
    files = MediaFiles(root, "image", "images", "other")
    assert files.found(name) is None
    assert files.expected(name) == root / "images" / name


def test_of_several_of_one_name_that_of_the_tables_folder_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder, content in (("copy/a", "one"), ("copy/b", "other one")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.jpg").write_text(content)
    files = MediaFiles(tmp_path, "image", "images")
    assert files.found("b/1.jpg") == files.found("b/1") == tmp_path / "copy" / "b" / "1.jpg"
    assert caplog.text == ""
    assert files.found("1.jpg") == tmp_path / "copy" / "a" / "1.jpg"
    assert "1.jpg is taken, and there is also" in caplog.text


@pytest.mark.parametrize("content", [b"\xff\xfe{\x00", b"\x1f\x8b\x08\x00"])
def test_a_table_that_is_no_text_is_named_with_its_source(tmp_path: Path, content: bytes) -> None:
    folder = Folder(tmp_path, "bench", "From there.")
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DataMissing, match=r"bench: .*rows\.jsonl: cannot be read .*From there\."):
        list(folder.objects(tmp_path / "rows.jsonl"))


def test_of_several_of_one_name_the_usual_folders_go_first(root: Path) -> None:
    assert MediaFiles(root, "image", "elsewhere", "images").found("a") == root / "elsewhere" / "a.jpg"
    assert MediaFiles(root, "image", "nowhere").found("a") == root / "elsewhere" / "a.jpg", "then by path"
