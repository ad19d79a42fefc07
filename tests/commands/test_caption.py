"""``vcap caption`` from the words to the exit status, with a served model behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.captioning.engine import write_pictures
from tests.captioning.server import Captioning, served
from tests.patience import GUARD_S
from vcap_jax.commands.caption import main

PATIENT = [f"judge.ready_timeout_s={GUARD_S}", f"judge.deadline_s={GUARD_S}"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(Captioning()) as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "in", 4)
    return Path("in")


def test_captions_are_printed_and_the_rest_is_told_aside(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--by", url, "in", *PATIENT, "--page", "page.html"]) == 0
    told = capsys.readouterr()
    lines = sorted(told.out.splitlines())
    assert [line.split(":")[0] for line in lines] == [f"00{k}.png" for k in range(4)]
    assert all(": Picture " in line for line in lines)
    assert "4 images\n" in told.err
    assert "captions by a-captioner behind an endpoint" in told.err
    assert Path("page.html").read_text().count("<article") == 4


def test_files_of_a_folder_that_are_left_out_are_told(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.HEIC", "b.heic", "notes.txt"):
        (folder / name).touch()
    assert main(["--by", url, str(folder), *PATIENT]) == 0
    assert (
        "4 images; 3 files are left out, which by their names are neither pictures nor clips that can be read: "
        ".heic (2), .txt (1)\n"
    ) in capsys.readouterr().err


def test_a_broken_file_is_named_and_the_status_says_so(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "002.png").write_bytes(b"broken")
    words = [
        "--by",
        url,
        "--out",
        "out.jsonl",
        "in",
        *PATIENT,
        "--quiet",
        "--page",
        "p.html",
        "--page-limit",
        "3",
    ]
    assert main(words) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "not captioned: in/002.png: not a readable image" in told.err
    assert "3 of 4 inputs captioned" in told.err
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert ["failure" in row for row in rows] == [False, False, True, False]
    assert Path("p.html").read_text().count("<article") == 3
    assert main(words) == 1, "it is still so when there is nothing left to do"
    assert "the same command with --retry-failed tries them again" in capsys.readouterr().err
    write_pictures(folder, 4)
    assert main([*words, "--retry-failed"]) == 0
    assert "4 of 4 inputs captioned" in capsys.readouterr().err


def test_an_input_that_lacks_captions_is_asked_about_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captioning = Captioning()
    captioning.lost = {3, 4}
    words = [
        "in",
        "-n",
        "4",
        "--sample",
        "--out",
        "out.jsonl",
        "judge.max_tries=1",
        "judge.concurrency=1",
        *PATIENT,
    ]
    with served(captioning) as address:
        words = ["--by", address, *words]
        assert main(words) == 1
        told = capsys.readouterr().err
        assert "1 of 4 inputs have no caption, or not all" in told
        assert "not captioned: 00" in told
        rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
        assert sorted(len(row["captions"]) for row in rows) == [2, 4, 4, 4]
        assert main(words) == 1, "and it stays so"
        assert len(captioning.bodies) == 16
        assert main([*words, "--retry-failed"]) == 0
        assert len(captioning.bodies) == 16 + 4
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [len(row["captions"]) for row in rows] == [4] * 4
    assert not any("failure" in row for row in rows)


def test_shares_are_joined_by_the_last(url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--by", url, "in", "--quiet", *PATIENT]
    assert main([*words, "--out", "alone.jsonl"]) == 0
    assert main([*words, "--out", "shared.jsonl", "--shard", "1/2"]) == 0
    assert "share 1 of 2 is written; others are still at work" in capsys.readouterr().err
    assert not Path("shared.jsonl").exists()
    assert main([*words, "--out", "shared.jsonl", "--shard", "0/2"]) == 0
    assert Path("shared.jsonl").read_bytes() == Path("alone.jsonl").read_bytes()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", "2"], "greedily they would all be the same; add --sample"),
        (["-n", "2", "--temperature", "0"], "at temperature 0 they would all be the same"),
        (["-n", "0"], "give at least 1"),
        (["--page-limit=-1"], "give at least 1"),
        (["--shard", "0/2"], "add --out"),
        (["--out", "in"], "--out in is a folder: name a file in it, such as in/captions.jsonl"),
        (["--retry-failed"], "add --out"),
        (["--shard", "2/2", "--out", "x.jsonl"], "'2/2' is no share"),
        (["--temperature", "nan"], "give a number of at least 0, not 'nan'"),
        (["--temperature=-1"], "give a number of at least 0, not '-1'"),
    ],
)
def test_words_that_cannot_work_are_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--by", "embedded", "in", *words])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_what_is_not_there_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--by", "embedded", "in/999.png"]) == 1
    assert capsys.readouterr().err == f"error: in/999.png does not exist in {Path.cwd()}\n"
    assert main(["--by", "nowhere", "in"]) == 1
    assert (
        f"by (--by) nowhere does not exist in {Path.cwd()}: give the folder of a checkpoint or of a run\n"
        in capsys.readouterr().err
    )
    assert main(["--by", "embedded", "in", "rolout.seed=3"]) == 1
    assert "rolout" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("http://127.0.0.1:9,127.0.0.1:10", "give addresses that begin with http:// or https://"),
        ("http://127.0.0.1:9,http://127.0.0.1:9/", "an address is named twice"),
        ("http://[::1:9", "an address cannot be read (Invalid IPv6 URL)"),
    ],
)
def test_addresses_that_are_none_are_told_in_a_line(
    by: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--by", by, "in"]) == 1
    assert f"by (--by) {by}: {told}\n" in capsys.readouterr().err


def test_blanks_between_addresses_are_none_of_them(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--by", f"{url}, {url.replace('127.0.0.1', 'localhost')}", "in", "--quiet", *PATIENT]) == 0


def test_a_file_that_looks_like_a_setting_is_a_file(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "000.png").rename("a.b=c.png")
    assert main(["--by", url, "a.b=c.png", *PATIENT]) == 0
    assert capsys.readouterr().out.startswith("a.b=c.png: Picture ")
