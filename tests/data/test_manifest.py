from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.manifest import missing_files, read_manifest


def write(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "m.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_rows_become_samples_with_paths_beside_the_manifest(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"id": "a", "image": "p/a.png", "scene": {"n": 3}},
        "",
        {"id": 7, "images": ["b.png", "/abs/c.png"], "prompt": "What changed?", "references": ["x"]},
        {"id": "v", "video": "v.mp4"},
    )
    one, two, three = read_manifest(path)
    assert one.images == (tmp_path / "p/a.png",)
    assert one.extra == {"scene": {"n": 3}}
    assert (two.id, two.images) == ("7", (tmp_path / "b.png", Path("/abs/c.png")))
    assert (two.prompt, two.references) == ("What changed?", ("x",))
    assert (three.modality, three.files) == ("video", (tmp_path / "v.mp4",))
    assert three.origin == f"{path}:4"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty"),
        (["{"], r":1: not valid JSON"),
        (["[" * 100_000], r":1: not valid JSON"),
        (["[1]"], r":1: a list, not a JSON object"),
        ([{"image": "a.png"}], r':1: "id" must be'),
        ([{"id": "a"}], r":1: .*exactly one .*none of them"),
        ([{"id": "a", "image": None}], r":1: .*exactly one .*none of them"),
        ([{"id": None, "image": "a.png"}], r':1: "id" must be'),
        ([{"id": "a", "image": "a.png", "video": "a.mp4"}], r"image and video"),
        ([{"id": "a", "images": []}], r'"images" is empty'),
        ([{"id": "a", "image": 3}], r'"image" must be'),
        ([{"id": "a", "image": ["a.png"]}], r':1: "image" is a list, .*several pictures are "images"'),
        ([{"id": "a", "video": ["a.mp4"]}], r':1: "video" is a list, .*give each clip a row'),
        (
            [{"id": "a", "image": "data:image/png;base64,iVBO"}],
            r":1: .*the file itself, 'data:image/png;base64,iVBO'",
        ),
        (
            [{"id": "a", "images": ["a.png", "iVBO" * 9999]}],
            r":1: .*the file itself, '(iVBO){8}'\.\.\.: write it",
        ),
        (
            [{"id": "a", "image": "a\0.png"}],
            r""":1: "image" is 'a\\x00\.png', and no file's path has a NUL: correct""",
        ),
        ([{"id": "a", "image": "a.png", "prompt": ""}], r'"prompt" must be'),
        ([{"id": "a", "image": "a.png", "references": "text"}], r'"references" must be'),
        ([{"id": "a", "imgae": "a.png"}], r':1: unknown key "imgae"; the nearest is "image"'),
        ([{"id": "a", "Image": "a.png"}], r'unknown key "Image"; the nearest is "image"'),
        ([{"id": "a", "file_name": "a.png"}], r'"file_name" is called "image" here'),
        ([{"id": "a", "image": "a.png", "caption": "x"}], r'"caption" is called "references" here'),
        (
            [{"id": "a", "image": "a.png", "references": None, "caption": "x"}],
            r'"caption" is called "references" here',
        ),
        ([{"id": "a", "image": "a.png", "reference": ["x"]}], r'"reference"; the nearest is "references"'),
        ([{"id": "a", "image": "a.png", "prompts": "x"}], r'"prompts"; the nearest is "prompt"'),
        ([{"id": "a", "image": "https://x.org/a.png"}], r":1: https://x\.org/a\.png is an address"),
        ([{"id": "a", "images": ["a.png", "s3://b/c.png"]}], r"s3://b/c\.png is an address"),
        (
            [{"id": "a", "image": "a.png"}, {"id": "a", "image": "b.png"}],
            r':2: id "a" is already that of line 1',
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path: Path, rows: list, message: str) -> None:
    with pytest.raises(ManifestError, match=rf"m\.jsonl.*{message}"):
        read_manifest(write(tmp_path, *rows))


def test_a_folder_is_a_manifest_of_its_pictures_and_clips(tmp_path: Path) -> None:
    for name in ("b.JPG", "a/c.png", "a/.hidden.png", "a/d.mp4", ".git/e.png", "notes.txt", "scan.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [(sample.id, sample.files, sample.modality) for sample in read_manifest(tmp_path)]
    assert found == [
        ("a/c.png", (tmp_path / "a/c.png",), "image"),
        ("a/d.mp4", (tmp_path / "a/d.mp4",), "video"),
        ("b.JPG", (tmp_path / "b.JPG",), "image"),
    ]
    (tmp_path / "a" / "empty").mkdir()
    with pytest.raises(ManifestError, match="empty has no picture and no clip"):
        read_manifest(tmp_path / "a" / "empty")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"nowhere\.jsonl does not exist"):
        read_manifest(tmp_path / "nowhere.jsonl")
    with pytest.raises(ManifestError, match=r"https:/.*is an address"):
        read_manifest("https://x.org/rows.jsonl")
    (tmp_path / "here.png").touch()
    path = write(tmp_path, {"id": "a", "images": ["here.png", "gone.png"]}, {"id": "b", "image": "here.png"})
    ((sample, file),) = missing_files(read_manifest(path))
    assert (sample.origin, file) == (f"{path}:1", tmp_path / "gone.png")


def test_a_name_that_is_too_long_for_a_file_is_missing(tmp_path: Path) -> None:
    """As a caption in the place of a path: one row must not keep a run from beginning."""
    (tmp_path / "here.png").touch()
    path = write(tmp_path, {"id": "a", "image": "here.png"}, {"id": "b", "image": "long " * 60})
    ((sample, _),) = missing_files(read_manifest(path))
    assert sample.id == "b"


def test_other_keys_are_kept_where_the_known_one_is_there_too(tmp_path: Path) -> None:
    row = {
        "id": 7,
        "image": "a.png",
        "references": ["x"],
        "caption": "y",
        "file_name": "b.png",
        "licence": "CC0",
    }
    (sample,) = read_manifest(write(tmp_path, row))
    assert sample.id == "7"
    assert sample.extra == {"caption": "y", "file_name": "b.png", "licence": "CC0"}


def test_a_key_whose_value_is_null_is_absent(tmp_path: Path) -> None:
    """As pandas and datasets write every cell that is empty."""
    empty = dict.fromkeys(("image", "images", "video", "prompt", "references", "caption", "licence"))
    rows = [{**empty, "id": "a", "image": "a.png"}, {**empty, "id": "b", "video": "b.mp4"}]
    one, two = read_manifest(write(tmp_path, *rows))
    assert (one.images, one.video, one.prompt, one.references) == ((tmp_path / "a.png",), None, None, ())
    assert (two.images, two.video, two.extra) == ((), tmp_path / "b.mp4", {})


@pytest.mark.parametrize("value", ["", 5, {"bytes": None, "path": "a.png"}])
def test_what_names_no_file_is_not_asked_to_be_a_list(value: object, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=':1: "image" must be the path of a file, got '):
        read_manifest(write(tmp_path, {"id": "a", "image": value}))


def test_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes('{"id": "ü", "image": "a.png"}'.encode("latin-1"))
    with pytest.raises(ManifestError, match="not UTF-8"):
        read_manifest(path)
