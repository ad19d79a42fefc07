"""Pictures and videos are found wherever they were unpacked, and never another one's."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.evals.benchmarks.media_files import MediaFiles


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


def test_of_several_of_one_name_the_usual_folders_go_first(root: Path) -> None:
    assert MediaFiles(root, "image", "elsewhere", "images").found("a") == root / "elsewhere" / "a.jpg"
    assert MediaFiles(root, "image", "nowhere").found("a") == root / "elsewhere" / "a.jpg", "then by path"
