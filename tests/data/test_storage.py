"""A file that is not there, and storage that does not answer."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import av
import pytest
from PIL import Image

from tests.data.media_files import write_video
from vcap_jax.data.errors import MediaError, StorageError
from vcap_jax.data.images import decode_image
from vcap_jax.data.storage import look
from vcap_jax.data.videos import choose_frames, index_video, read_frames
from vcap_jax.models.qwen3_vl.processing.settings import VideoSettings


def away(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


@pytest.mark.parametrize("name", ["gone.png", "", "photo.png/more", "zero\0byte"])
def test_a_file_that_is_not_there_is_the_manifests_fault(tmp_path: Path, name: str) -> None:
    (tmp_path / "photo.png").write_bytes(b"")
    look(tmp_path / "photo.png")
    with pytest.raises(MediaError, match=r"(no such file|a folder, and no file): correct the path"):
        look(tmp_path / name)


def test_of_a_relative_name_it_is_told_where_it_was_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MediaError, match=re.escape(f"gone.png: no such file in {tmp_path}: correct")):
        look(Path("gone.png"))


def test_a_file_that_may_not_be_seen_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(MediaError, match=r"photo\.png: Permission denied: let this user read it"):
        look(tmp_path / "photo.png")


def test_storage_that_does_not_answer_is_no_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "stat", away)
    for read in (look, decode_image, index_video):
        with pytest.raises(StorageError, match=r"photo\.png: Stale file handle"):
            read(tmp_path / "photo.png")


def test_storage_that_goes_while_a_picture_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "photo.png"
    Image.new("RGB", (2, 2)).save(path)
    monkeypatch.setattr(Image, "open", away)
    with pytest.raises(StorageError, match=r"photo\.png"):
        decode_image(path)


def test_a_damaged_sector_can_be_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken for storage that is away, at each start, and a row cannot be taken out of a run's manifest."""
    path = tmp_path / "photo.png"
    path.touch()

    def damaged(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Image, "open", damaged)
    with pytest.raises(StorageError, match=r"error \(where it says so of this file alone, remove the file"):
        decode_image(path)
    path.unlink()
    with pytest.raises(MediaError, match="no such file"):
        decode_image(path)


def test_storage_that_goes_while_a_video_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "clip.mp4"
    write_video(path, 21, fps=10)
    index = index_video(path)
    path.write_bytes(path.read_bytes()[:200])
    frames = choose_frames(index, VideoSettings(fps=4.0))
    with pytest.raises(MediaError, match=r"clip\.mp4"):
        list(read_frames(index, frames))
    monkeypatch.setattr(Path, "stat", away)
    with pytest.raises(StorageError, match=r"clip\.mp4"):
        list(read_frames(index, frames))


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT, errno.ESHUTDOWN])
def test_what_ffmpeg_says_of_the_storage_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The system may know a file's name still, and a process without free descriptors asks for the name alone."""
    path = write_video(tmp_path / "clip.mp4", 12)
    index = index_video(path)

    def refused(*_: object, **__: object) -> NoReturn:
        av.error.err_check(-number, str(path))
        raise AssertionError

    monkeypatch.setattr(av, "open", refused)
    with pytest.raises(StorageError, match=r"clip\.mp4: .*: its storage does not answer"):
        index_video(path)
    with pytest.raises(StorageError, match=r"clip\.mp4"):
        list(read_frames(index, [0]))


def test_an_input_error_of_ffmpeg_is_the_storages_where_the_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so of damaged files too. A network's storage that is away may answer for the name out of a cache."""
    path = write_video(tmp_path / "clip.mp4", 12)

    def failed(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(av, "open", failed)
    with pytest.raises(MediaError, match=r"clip\.mp4: not a readable video"):
        index_video(path)
    monkeypatch.setattr(Path, "open", failed)
    with pytest.raises(StorageError, match=r"clip\.mp4"):
        index_video(path)


def test_a_client_that_lustre_has_put_out_is_no_damaged_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "photo.png"
    path.touch()

    def put_out(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ESHUTDOWN, os.strerror(errno.ESHUTDOWN))

    monkeypatch.setattr(Image, "open", put_out)
    with pytest.raises(StorageError, match="transport endpoint shutdown"):
        decode_image(path)
    monkeypatch.setattr(Path, "stat", put_out)
    with pytest.raises(StorageError, match="transport endpoint shutdown"):
        look(path)


@pytest.mark.parametrize(("read", "name"), [(decode_image, "a.png"), (index_video, "a.mp4")])
def test_an_empty_file_is_told_as_such(read: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(MediaError, match=rf"{name}: the file is empty: replace it or drop the row$"):
        read(tmp_path / name)
