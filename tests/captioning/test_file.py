"""The caption file: in the order of the inputs, the same after a kill and in shares, and never mixed with another."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.captioning.engine import ReadingEngine, write_pictures
from vcap_jax.captioning.captioner import Captioner
from vcap_jax.captioning.engines import Drawing
from vcap_jax.captioning.file import (
    CaptionFileError,
    CaptionJob,
    about_file,
    read_caption_file,
    write_caption_file,
)
from vcap_jax.captioning.inputs import Inputs
from vcap_jax.captioning.parts import Shard, earlier_file, parts_folder
from vcap_jax.system.shutdown import Stopped, stop_on_signal
from vcap_jax.world.dataset import write_dataset


def job_of(folder: Path, shard: Shard | None = None, **drawing) -> CaptionJob:
    inputs = Inputs([folder])
    return CaptionJob(
        inputs=inputs, counted=inputs.counted(), drawing=Drawing(**drawing), seed=7, shard=shard or Shard()
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine pictures, one of them broken, and a clip."""
    paths = write_pictures(tmp_path / "in", 9)
    paths[4].write_bytes(b"no picture")
    (tmp_path / "in" / "002.mp4").touch()
    return tmp_path / "in"


@pytest.fixture
def whole(folder: Path, tmp_path: Path) -> bytes:
    path = tmp_path / "whole.jsonl"
    assert write_caption_file(path, Captioner(ReadingEngine()), job_of(folder))
    return path.read_bytes()


def test_rows_stand_in_the_order_of_the_inputs(folder: Path, whole: bytes, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in whole.splitlines()]
    assert [row["id"] for row in rows] == [sample.id for sample in Inputs([folder])]
    assert [row["captions"][0].split()[-1] for row in rows if "captions" in row] == [
        f"{place}/7/0" for place in range(10) if place != 5
    ]
    assert "not a readable image" in rows[5]["failure"]
    assert rows[2] == {
        "id": "002.mp4",
        "video": str(folder / "002.mp4"),
        "captions": ["['clip 002.mp4']  2/7/0"],
        "truncated": [False],
        "tokens": [3],
    }
    assert [caption.row() for caption in read_caption_file(tmp_path / "whole.jsonl")] == rows
    assert not parts_folder(tmp_path / "whole.jsonl").exists()


@pytest.mark.parametrize("line", ['{"id": "b", "ima', "[]", ""])
def test_a_file_that_was_damaged_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text(f'{{"id": "a", "image": "a.png", "captions": ["x"], "truncated": [false]}}\n{line}\n')
    with pytest.raises(CaptionFileError, match=r"captions\.jsonl:2: not a JSON object: remove the file"):
        list(read_caption_file(path))


def test_after_a_signal_and_a_torn_line_the_file_is_the_same(
    folder: Path, whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "resumed.jsonl"

    def stop(place: int) -> None:
        if place == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with stop_on_signal(), pytest.raises(Stopped, match=r"stopped with \d+ of 10 inputs captioned"):
        write_caption_file(path, Captioner(ReadingEngine(before=stop)), job_of(folder))
    assert not path.exists()
    (partial,) = parts_folder(path).glob("*.partial")
    kept = len(partial.read_bytes().splitlines())
    assert 0 < kept < 10
    with partial.open("a") as file:
        file.write('{"place": 3, "id"')
    again = ReadingEngine()
    told: list[tuple[str, int, int, int]] = []
    assert write_caption_file(
        path, Captioner(again), job_of(folder), on_progress=lambda *progress: told.append(progress)
    )
    assert path.read_bytes() == whole
    assert sum(map(len, again.batches)) == 10 - kept, "nothing is captioned twice"
    assert told[-1] == ("captions", 10, 10, 10 - kept)


def test_a_part_that_is_being_written_is_left_alone(folder: Path, whole: bytes, tmp_path: Path) -> None:
    """What one process has just written another would take for torn, and cut away."""
    path, other = tmp_path / "twice.jsonl", ReadingEngine()

    def again(place: int) -> None:
        if place == 7:
            with pytest.raises(
                CaptionFileError, match=r"another process is writing .*captions-00000-of-00001"
            ):
                write_caption_file(path, Captioner(other), job_of(folder))

    assert write_caption_file(path, Captioner(ReadingEngine(before=again)), job_of(folder))
    assert path.read_bytes() == whole
    assert other.batches == []


@pytest.mark.parametrize("count", [2, 3, 12])
def test_shares_joined_are_one(folder: Path, whole: bytes, tmp_path: Path, count: int) -> None:
    path = tmp_path / "shared.jsonl"
    order = [*range(1, count), 0]
    done = [
        write_caption_file(path, Captioner(ReadingEngine()), job_of(folder, Shard(index=index, count=count)))
        for index in order
    ]
    assert done == [False] * (count - 1) + [True]
    assert path.read_bytes() == whole


def test_the_same_command_again_asks_nobody(folder: Path, whole: bytes, tmp_path: Path) -> None:
    engine = ReadingEngine()
    assert write_caption_file(tmp_path / "whole.jsonl", Captioner(engine), job_of(folder))
    assert engine.batches == []
    assert (tmp_path / "whole.jsonl").read_bytes() == whole


@pytest.fixture
def mended(folder: Path, whole: bytes) -> bytes:
    """The broken picture is whole now. What a file of all of them would be."""
    del whole
    write_pictures(folder.parent / "spare", 5)[4].replace(folder / "004.png")
    path = folder.parent / "mended.jsonl"
    assert write_caption_file(path, Captioner(ReadingEngine()), job_of(folder))
    return path.read_bytes()


def test_only_what_failed_is_tried_again(folder: Path, whole: bytes, mended: bytes, tmp_path: Path) -> None:
    path, engine = tmp_path / "whole.jsonl", ReadingEngine()
    assert write_caption_file(path, Captioner(engine), job_of(folder))
    assert path.read_bytes() == whole != mended, "without the option the errors stand"
    told: list[tuple[str, int, int, int]] = []
    for _ in range(2):
        assert write_caption_file(
            path,
            Captioner(engine),
            job_of(folder),
            retry_failed=True,
            on_progress=lambda *progress: told.append(progress),
        )
        assert path.read_bytes() == mended
        assert not parts_folder(path).exists()
        assert not earlier_file(path).exists()
    assert engine.batches == [[5]], "and once there is nothing that failed, nobody is asked"
    assert told == [("captions", 10, 10, 1)]


@pytest.mark.usefixtures("whole")
def test_what_fails_again_keeps_its_error_of_today(folder: Path, tmp_path: Path) -> None:
    path, engine = tmp_path / "whole.jsonl", ReadingEngine()
    (folder / "004.png").write_bytes(b"")
    assert write_caption_file(path, Captioner(engine), job_of(folder), retry_failed=True)
    assert engine.batches == [[5]]
    caption = list(read_caption_file(path))[5]
    assert "004.png" in str(caption.failure)


@pytest.mark.parametrize("count", [2, 3])
def test_shares_try_again_each_its_own(folder: Path, mended: bytes, tmp_path: Path, count: int) -> None:
    path, engine = tmp_path / "whole.jsonl", ReadingEngine()
    done = [
        write_caption_file(
            path, Captioner(engine), job_of(folder, Shard(index=index, count=count)), retry_failed=True
        )
        for index in range(count)
    ]
    assert done == [False] * (count - 1) + [True]
    assert path.read_bytes() == mended
    assert engine.batches == [[5]]


def test_a_share_that_is_done_is_opened_again_for_what_failed(
    folder: Path, mended: bytes, tmp_path: Path
) -> None:
    path, good = tmp_path / "shared.jsonl", (folder / "004.png").read_bytes()
    (folder / "004.png").write_bytes(b"no picture")
    shares = [Shard(index=index, count=2) for index in range(2)]
    assert not write_caption_file(path, Captioner(ReadingEngine()), job_of(folder, shares[1]))
    (folder / "004.png").write_bytes(good)
    engine = ReadingEngine()
    assert not write_caption_file(path, Captioner(engine), job_of(folder, shares[1]), retry_failed=True)
    assert engine.batches == [[5]]
    assert write_caption_file(path, Captioner(engine), job_of(folder, shares[0]), retry_failed=True)
    assert path.read_bytes() == mended


def test_a_second_attempt_that_is_stopped_loses_no_caption(
    folder: Path, mended: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "whole.jsonl"

    def refuse(place: int) -> None:
        raise OSError(f"no answer for {place}")

    with pytest.raises(OSError, match="no answer for 5"):
        write_caption_file(path, Captioner(ReadingEngine(before=refuse)), job_of(folder), retry_failed=True)
    assert not path.exists(), "a file that has its name is complete"
    assert len(list(read_caption_file(earlier_file(path)))) == 10
    engine = ReadingEngine()
    assert write_caption_file(path, Captioner(engine), job_of(folder)), "the option need not be said again"
    assert engine.batches == [[5]]
    assert path.read_bytes() == mended


@pytest.mark.usefixtures("whole")
def test_a_second_attempt_of_another_captioner_takes_no_captions_of_the_first(
    folder: Path, tmp_path: Path
) -> None:
    """Also where its parts are gone: they were removed, as one is told, or it was killed before it had any."""
    path = tmp_path / "whole.jsonl"
    path.rename(earlier_file(path))
    with pytest.raises(
        CaptionFileError, match=r"whole\.jsonl\.earlier is there already, by a reader.*weights"
    ):
        write_caption_file(path, Captioner(ReadingEngine("another")), job_of(folder))
    assert not path.exists()
    earlier_file(path).unlink()
    engine = ReadingEngine("another")
    assert write_caption_file(path, Captioner(engine), job_of(folder))
    assert sum(map(len, engine.batches)) == 10


@pytest.mark.usefixtures("whole")
def test_another_captioner_other_settings_or_inputs_are_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "whole.jsonl"
    with pytest.raises(CaptionFileError, match=r"by a reader.*\(writer, weights differ\).*another --out"):
        write_caption_file(path, Captioner(ReadingEngine("another")), job_of(folder))
    with pytest.raises(CaptionFileError, match=r"\(captions, sampling\.temperature differ\)"):
        write_caption_file(path, Captioner(ReadingEngine()), job_of(folder, captions=2, sample=True))
    job = dataclasses.replace(job_of(folder), seed=8)
    with pytest.raises(CaptionFileError, match=r"\(seed differ\)"):
        write_caption_file(path, Captioner(ReadingEngine()), job)
    (folder / "more.png").touch()
    with pytest.raises(CaptionFileError, match=r"\(inputs, asked differ\)"):
        write_caption_file(path, Captioner(ReadingEngine()), job_of(folder))
    about_file(path).unlink()
    with pytest.raises(CaptionFileError, match="not of this command"):
        write_caption_file(path, Captioner(ReadingEngine()), job_of(folder))


@pytest.mark.parametrize("count", [1, 2])
def test_another_folder_with_the_same_names_is_another_input(
    folder: Path, whole: bytes, tmp_path: Path, count: int
) -> None:
    path, other = tmp_path / "shared.jsonl", tmp_path / "other"
    shutil.copytree(folder, other)
    shares = [Shard(index=index, count=count) for index in range(count)]

    def killed(place: int) -> None:
        if place == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_caption_file(path, Captioner(ReadingEngine(before=killed)), job_of(folder, shares[0]))
    for share in shares:
        with pytest.raises(CaptionFileError, match=r"begun in .*\(files differ\): remove the folder"):
            write_caption_file(path, Captioner(ReadingEngine()), job_of(other, share))
    for share in shares:
        write_caption_file(path, Captioner(ReadingEngine()), job_of(folder, share))
    for again in (False, True):
        with pytest.raises(
            CaptionFileError,
            match=rf"its captions of 000\.png are of {folder}/000\.png, not of {other}/000\.png: name the inputs as",
        ):
            write_caption_file(path, Captioner(ReadingEngine()), job_of(other), retry_failed=again)
    assert path.read_bytes() == whole


def test_of_a_row_without_a_caption_a_manifest_may_name_another_file(tmp_path: Path) -> None:
    write_pictures(tmp_path, 4)
    manifest, path, engine = tmp_path / "rows.jsonl", tmp_path / "out.jsonl", ReadingEngine()

    def name(*files: str) -> CaptionJob:
        rows = [{"id": f"row {place}", "image": file} for place, file in enumerate(files)]
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return job_of(manifest)

    assert write_caption_file(path, Captioner(engine), name("000.png", "01.png"))
    job = name("000.png", "001.png")
    assert write_caption_file(path, Captioner(engine), job), "without the option the error stands"
    assert write_caption_file(path, Captioner(engine), job, retry_failed=True)
    assert engine.batches == [[0, 1], [1]]
    assert [caption.files[0].name for caption in read_caption_file(path)] == ["000.png", "001.png"]
    assert all(caption.texts for caption in read_caption_file(path))
    with pytest.raises(CaptionFileError, match=r"captions of row 0 are of .*000\.png, not of .*002\.png"):
        write_caption_file(path, Captioner(engine), name("002.png", "001.png"))


def test_inputs_that_vanish_meanwhile_are_told_and_nothing_is_lost(folder: Path, tmp_path: Path) -> None:
    path, job = tmp_path / "vanished.jsonl", job_of(folder)
    kept = (folder / "008.png").read_bytes()
    (folder / "008.png").unlink()
    with pytest.raises(CaptionFileError, match="1 inputs are not there any more"):
        write_caption_file(path, Captioner(ReadingEngine()), job)
    (folder / "008.png").write_bytes(kept)
    again = ReadingEngine()
    assert write_caption_file(path, Captioner(again), job)
    assert again.batches == [[9]]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("change", ["added", "removed"])
def test_inputs_that_move_meanwhile_do_not_take_each_others_places(
    folder: Path, whole: bytes, tmp_path: Path, change: str, count: int
) -> None:
    """A folder that somebody writes to: what was counted at first is what the file is of."""
    path = tmp_path / "moved.jsonl"
    jobs = [job_of(folder, Shard(index=index, count=count)) for index in range(count)]
    there, away = folder / "001.png", tmp_path / "001.png"
    if change == "added":
        (folder / "000a.png").write_bytes(there.read_bytes())
    else:
        there.rename(away)
    for job in jobs:
        lacking = change == "removed" and job.shard.index == count - 1
        message = "1 inputs are not there any more" if lacking else "have moved: take away what was added"
        with pytest.raises(CaptionFileError, match=message):
            write_caption_file(path, Captioner(ReadingEngine()), job)
    if change == "added":
        (folder / "000a.png").unlink()
    else:
        away.rename(there)
    again = ReadingEngine()
    done = [write_caption_file(path, Captioner(again), job) for job in jobs]
    assert done == [False] * (count - 1) + [True]
    assert path.read_bytes() == whole
    assert 0 not in {index for batch in again.batches for index in batch}  # it had its place


def test_rows_that_are_added_at_the_end_of_a_manifest_are_for_another_time(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path, 4)
    manifest = tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": picture.stem, "image": picture.name}) + "\n" for picture in pictures]
    manifest.write_text("".join(lines[:3]))
    job = job_of(manifest)
    manifest.write_text("".join(lines))
    assert write_caption_file(tmp_path / "out.jsonl", Captioner(ReadingEngine()), job)
    assert [caption.id for caption in read_caption_file(tmp_path / "out.jsonl")] == ["000", "001", "002"]


@pytest.mark.long
def test_shares_of_a_real_policys_draws_are_those_of_one(tmp_path: Path) -> None:
    """Groups decode beside others than alone, and in other batches."""
    write_dataset(tmp_path / "in" / "image", "image", "shared", 7, seed=0)
    write_dataset(tmp_path / "in" / "video", "video", "shared", 2, seed=0)
    alone, shared = tmp_path / "alone.jsonl", tmp_path / "shared.jsonl"
    with Captioner.load("embedded", settings=["rollout.max_completion_length=24"]) as captioner:
        assert write_caption_file(alone, captioner, job_of(tmp_path / "in", captions=2, sample=True))
        for index in range(3):
            job = job_of(tmp_path / "in", Shard(index=index, count=3), captions=2, sample=True)
            assert write_caption_file(shared, captioner, job) == (index == 2)
    assert shared.read_bytes() == alone.read_bytes()
    rows = [json.loads(line) for line in alone.read_text().splitlines()]
    assert len(rows) == 9
    assert all(len(set(row["captions"])) == 2 for row in rows[:3])
