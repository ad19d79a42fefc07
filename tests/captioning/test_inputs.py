"""What is named becomes a stream of samples, the same each time; what cannot be used is told before work."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.captioning.engine import write_pictures
from vcap_jax.captioning.inputs import Inputs, InputsError
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.manifest import read_manifest


def test_files_folders_and_manifests_in_one_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "folder", 2)
    write_pictures(tmp_path / "folder" / "a" / "deep", 1)
    write_pictures(tmp_path / "folder" / ".hidden", 1)
    (tmp_path / "folder" / "z.MP4").touch()
    (tmp_path / "folder" / "notes.txt").touch()
    (tmp_path / "one.jpg").touch()
    rows = [{"id": "r1", "image": "one.jpg", "prompt": "Why?"}, {"id": "r2", "video": "folder/z.MP4"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs = Inputs(["one.jpg", "folder", "rows.jsonl"])
    found = [(sample.id, sample.modality, sample.prompt) for sample in inputs]
    assert found == [
        ("one.jpg", "image", None),
        ("folder/000.png", "image", None),
        ("folder/001.png", "image", None),
        ("folder/a/deep/000.png", "image", None),
        ("folder/z.MP4", "video", None),
        ("r1", "image", "Why?"),
        ("r2", "video", None),
    ]
    counted = inputs.counted()
    assert (counted.images, counted.videos, counted.others) == (5, 2, 1)
    assert str(counted) == "5 images and 2 videos"
    assert counted.left_out == (
        "1 file is left out, which by its name is neither a picture nor a clip that can be read: .txt (1)"
    )
    assert Inputs("one.jpg").counted().left_out == ""
    assert counted.digest == Inputs(["one.jpg", "folder", "rows.jsonl"]).counted().digest
    assert counted.digest != Inputs(["folder", "one.jpg", "rows.jsonl"]).counted().digest
    (tmp_path / "rows.jsonl").write_text(json.dumps({**rows[0], "prompt": "How?"}) + "\n")
    assert Inputs(["rows.jsonl"]).counted().digest != counted.digest


def test_a_folder_that_is_named_alone_has_the_ids_that_it_has_as_a_manifest(tmp_path: Path) -> None:
    write_pictures(tmp_path / "folder" / "deep", 2)
    inputs = Inputs([tmp_path / "folder"])
    assert list(inputs) == read_manifest(tmp_path / "folder")
    assert [sample.id for sample in inputs] == ["deep/000.png", "deep/001.png"]
    write_pictures(tmp_path / "another" / "deep", 2)
    counted, another = inputs.counted(), Inputs([tmp_path / "another"]).counted()
    assert (counted.digest, counted.files) == (another.digest, Inputs(tmp_path / "folder").counted().files)
    assert counted.files != another.files


def test_what_is_named_wrongly_is_told_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").touch()
    (tmp_path / "phone.HEIC").touch()
    (tmp_path / "rows.csv").write_text("id,image\n7,a.png\n")
    (tmp_path / "rows.json").write_text('[{"id": "a"}]')
    os.mkfifo(tmp_path / "pipe")
    named = [
        tmp_path / "gone.png",
        "https://example.org/a.png",
        (tmp_path / "there.png").as_uri(),
        tmp_path / "table.xlsx",
        tmp_path / "phone.HEIC",
        tmp_path / "rows.csv",
        tmp_path / "rows.json",
        tmp_path / "pipe",
        tmp_path,
    ]
    with pytest.raises(InputsError) as refused:
        Inputs(named)
    text = str(refused.value)
    assert text.startswith("8 problems:")
    assert "gone.png does not exist" in text
    assert "is an address: download it" in text
    assert "there.png is an address: give the path alone, without file://" in text
    assert "phone.HEIC is HEIC, which nothing here opens: convert it" in text
    assert "table.xlsx is neither picture, clip, folder nor manifest" in text
    assert "rows.csv is CSV, and a manifest is JSON Lines: pandas.read_csv(" in text
    assert "rows.json is a JSON array, and a manifest is JSON Lines: jq" in text
    assert "pipe is neither picture, clip, folder nor manifest" in text
    with pytest.raises(InputsError, match="nothing is named"):
        Inputs([])


def test_a_folder_without_pictures_and_a_row_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        InputsError, match=r"no picture and no clip in there; 1 file is left out, .*: \.txt \(1\)"
    ):
        Inputs([tmp_path]).counted()
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a", "image": "a.png"}\n{"id": "b"}\n')
    with pytest.raises(ManifestError, match=r"rows\.jsonl:2"):
        Inputs([rows]).counted()


def test_a_link_back_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    write_pictures(tmp_path / "a" / "b", 2)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a" / "b")
    names = [sample.id for sample in Inputs([tmp_path / "a"])]
    assert names == ["again/000.png", "again/001.png", "b/000.png", "b/001.png"]


def test_a_link_to_itself_is_left_out(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    (tmp_path / "loop").symlink_to("loop")
    counted = Inputs([tmp_path]).counted()
    assert (counted.images, counted.others) == (1, 1)


def test_a_name_that_is_not_utf8_is_told_before_work(tmp_path: Path) -> None:
    (path, *_) = write_pictures(tmp_path / "folder", 1)
    try:
        os.rename(path, os.fsencode(tmp_path / "folder") + b"/caf\xe9.png")  # noqa: PTH104
    except OSError:
        pytest.skip("this file system takes names of UTF-8 alone")
    with pytest.raises(ManifestError, match=r"caf\\udce9\.png' is not UTF-8: rename it"):
        Inputs([tmp_path / "folder"]).counted()
    with pytest.raises(InputsError, match="is not UTF-8"):
        Inputs(list((tmp_path / "folder").iterdir()))
