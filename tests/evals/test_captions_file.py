"""Files of captions: what is written is read again, a torn end is cut away, failures are tried again."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from vcap_jax.data.manifest import Sample
from vcap_jax.evals.captions_file import CaptionsFile, read_captions
from vcap_jax.evals.protocol import Captions, EvaluatorError

GIVEN = (
    Captions(id="a", texts=("a disc", "zwei Kreise"), tokens=(3, 4), truncated=(False, True)),
    Captions(id="b", texts=("written by hand",)),
    Captions(id="c", failure="c.png: not a usable picture"),
)
SAMPLES = [Sample(id=one.id, images=(Path(f"{one.id}.png"),)) for one in GIVEN]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "captions.jsonl"
    with CaptionsFile(path) as file:
        for one in GIVEN:
            file.add(one)
    return path


def test_entries_are_read_as_they_were_written(path: Path) -> None:
    assert list(read_captions(path).values()) == list(GIVEN)
    with CaptionsFile(path) as file:
        assert file.of(SAMPLES) == list(GIVEN)


def test_a_disk_that_is_full_is_named(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
    try:
        with pytest.raises(OSError, match=r"captions\.jsonl"), CaptionsFile(path) as file:
            file.add(Captions(id="c", texts=("a ring",)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(read_captions(path).values()) == list(GIVEN)


def test_what_has_failed_is_missing_until_it_has_captions(path: Path) -> None:
    with CaptionsFile(path) as file:
        assert [sample.id for sample in file.missing(SAMPLES)] == ["c"]
        file.add(Captions(id="c", texts=("a ring",)))
        assert file.missing(SAMPLES) == []
    assert read_captions(path)["c"].texts == ("a ring",)


def test_a_line_that_a_kill_tore_is_captioned_again(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"written") + 3])
    with CaptionsFile(path) as file:
        assert [sample.id for sample in file.missing(SAMPLES)] == ["b", "c"]
        for one in GIVEN[1:]:
            file.add(one)
    assert path.read_bytes() == whole


def test_a_row_of_something_else_is_refused_by_its_line(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"id": "d", "captions": "a disc"}\n')
    with pytest.raises(EvaluatorError, match=r"captions\.jsonl:4: not an entry of captions"):
        CaptionsFile(path)


def test_two_lines_with_captions_of_a_sample_are_refused_where_others_wrote_them(path: Path) -> None:
    """As where somebody writes a line per caption; what failed and was tried again is no such thing."""
    with CaptionsFile(path) as file:
        file.add(Captions(id="c", texts=("a ring",)))
        file.add(Captions(id="c", texts=("a ring",)))
    assert read_captions(path)["c"].texts == ("a ring",)
    with path.open("a") as file:
        file.write('{"id": "c", "captions": ["a red ring"]}\n')
    with pytest.raises(
        EvaluatorError, match=r"captions\.jsonl:6: other captions of 'c' stand in an earlier line"
    ):
        read_captions(path)
    with CaptionsFile(path) as file:
        assert file.missing(SAMPLES) == []
