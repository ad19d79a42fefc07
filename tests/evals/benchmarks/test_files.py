"""Pictures and videos of benchmarks, wherever they are; what is wrong with a benchmark's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.evals.benchmarks.files import DataMissing, Folder, MediaFiles


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
