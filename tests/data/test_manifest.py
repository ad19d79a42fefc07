from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.manifest import read_manifest


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
        (["[1]"], r":1: a list, not a JSON object"),
        ([{"image": "a.png"}], r':1: "id" must be'),
        ([{"id": "a"}], r":1: .*exactly one .*none of them"),
        ([{"id": "a", "image": "a.png", "video": "a.mp4"}], r"image and video"),
        ([{"id": "a", "images": []}], r'"images" is empty'),
        ([{"id": "a", "image": 3}], r'"image" must be'),
        ([{"id": "a", "image": "a.png", "prompt": ""}], r'"prompt" must be'),
        ([{"id": "a", "image": "a.png", "references": "text"}], r'"references" must be'),
        (
            [{"id": "a", "image": "a.png"}, {"id": "a", "image": "b.png"}],
            r':2: id "a" is already that of line 1',
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path: Path, rows: list, message: str) -> None:
    with pytest.raises(ManifestError, match=rf"m\.jsonl.*{message}"):
        read_manifest(write(tmp_path, *rows))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"nowhere\.jsonl does not exist"):
        read_manifest(tmp_path / "nowhere.jsonl")
    path = write(tmp_path, {"id": "a", "image": "gone.png"})
    assert len(read_manifest(path)) == 1
    with pytest.raises(ManifestError, match=r":1: .*gone\.png does not exist"):
        read_manifest(path, check_files=True)


def test_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes('{"id": "ü", "image": "a.png"}'.encode("latin-1"))
    with pytest.raises(ManifestError, match="not UTF-8"):
        read_manifest(path)
