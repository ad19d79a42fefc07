"""VLMEvalKit tables as they are published: pictures inside, references to other rows, options that are not there."""

import base64
import csv
import io
from pathlib import Path

import pytest
from PIL import Image

from vcap_jax.data.errors import ManifestError
from vcap_jax.evals.benchmarks.choice_tables import read_table


def picture(colour: str, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (24, 24), colour).save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


def table(path: Path, rows: list[dict[str, str]], columns: list[str] | None = None) -> Path:
    columns = columns or ["index", "image", "question", "A", "B", "C", "answer", "category"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t", restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_questions_pictures_and_references(tmp_path: Path) -> None:
    red = picture("red")
    assert len(red) > 64
    path = table(
        tmp_path / "t.tsv",
        [
            # The row that holds the picture may come later, and a question may have line ends and tabs.
            {
                "index": "7",
                "image": "8",
                "question": 'Which "one"\n\tis it?',
                "A": "x",
                "B": "y",
                "answer": "b",
            },
            {"index": "8", "image": red, "question": "Q", "A": "x", "B": "y", "C": "z", "answer": "C"},
            {
                "index": "9",
                "image": picture("blue", "JPEG"),
                "question": "Q",
                "A": "x",
                "B": "y",
                "C": "nan",
                "answer": "A",
                "category": "maths",
            },
        ],
    )
    first, second, third = read_table(path, tmp_path / "pictures", print)
    assert first.question == 'Which "one"\n\tis it?'
    assert (first.index, first.answer, dict(first.options)) == ("7", "B", {"A": "x", "B": "y"})
    assert first.image == second.image
    assert second.options["C"] == "z"
    assert dict(third.options) == {"A": "x", "B": "y"}
    assert third.category == "maths"
    assert third.image.suffix == ".jpg"
    assert Image.open(first.image).getpixel((3, 3)) == (255, 0, 0)
    # Read again, nothing is written again.
    stamp = first.image.stat().st_mtime_ns
    assert read_table(path, tmp_path / "pictures", print)[0].image.stat().st_mtime_ns == stamp
    assert csv.field_size_limit() < 2**31 - 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"image": "99"}, "that of row '99', which holds none"),
        ({"answer": "cat"}, "2 options and the answer 'CAT'"),
        ({"B": ""}, "1 options"),
        ({"image": "!" * 80}, "no base64"),
        ({"image": base64.b64encode(b"text" * 30).decode()}, "no PNG"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, str], words: str) -> None:
    good = {"index": "5", "image": picture("red"), "question": "Q", "A": "x", "B": "y", "answer": "A"}
    path = table(tmp_path / "t.tsv", [{**good, **row}])
    with pytest.raises(ManifestError, match=r"row 5.*" + words):
        read_table(path, tmp_path / "p", print)


def test_a_question_without_its_right_option_is_left_out(tmp_path: Path) -> None:
    """As in MMStar, where "None" has become an empty cell (issue 14 of its repository)."""
    good = {"index": "5", "image": picture("red"), "question": "Q", "A": "x", "B": "y", "answer": "A"}
    lost = {"index": "268", "image": picture("blue"), "question": "Q", "B": "two", "C": "one", "answer": "A"}
    said: list[str] = []
    (row,) = read_table(table(tmp_path / "t.tsv", [lost, good]), tmp_path / "p", said.append)
    assert row.index == "5"
    assert said == [
        f"{tmp_path / 't.tsv'}: of 1 questions the right option is an empty cell, and they are left out: row 268"
    ]


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a,b\n1,2\n")
    with pytest.raises(ManifestError, match=r"no column .*this is no VLMEvalKit table"):
        read_table(tmp_path / "t.tsv", tmp_path, print)
    with pytest.raises(ManifestError, match="not readable"):
        read_table(tmp_path / "none.tsv", tmp_path, print)
    row = {"index": "5", "image": picture("red"), "question": "Q", "A": "x", "B": "y", "answer": "A"}
    with pytest.raises(ManifestError, match="index 5 is there twice"):
        read_table(table(tmp_path / "t.tsv", [row, row]), tmp_path / "p", print)
