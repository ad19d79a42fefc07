from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.jsonl import last_row, one_edit_apart, read_objects


@pytest.mark.parametrize(
    ("content", "row", "left"),
    [
        ("", None, ""),
        ('{"place": 1', None, ""),
        ('{"place": 1}\n', {"place": 1}, '{"place": 1}\n'),
        (
            '{"place": 1}\n{"place": 2, "t": "ü"}\n{"pla',
            {"place": 2, "t": "ü"},
            '{"place": 1}\n{"place": 2, "t": "ü"}\n',
        ),
    ],
)
def test_what_a_kill_tore_off_is_cut_away(tmp_path: Path, content: str, row, left: str) -> None:
    path = tmp_path / "rows.jsonl"
    assert last_row(path) is None
    path.write_text(content)
    assert last_row(path) == row
    assert path.read_text() == left


@pytest.mark.parametrize("length", [50, 65_000, 200_000])
def test_of_a_long_file_little_is_read_for_its_last_row(tmp_path: Path, length: int) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"place": place, "text": "x" * length} for place in range(4_000_000 // length)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracemalloc.start()
    try:
        assert last_row(path) == rows[-1]
        assert tracemalloc.get_traced_memory()[1] < 1_000_000 < path.stat().st_size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        *[
            ("image", other, True)
            for other in ("image", "imgae", "imag", "images", "imbge", "mage", "iimage")
        ],
        *[("image", other, False) for other in ("iamgee", "img", "picture", "", "egami")],
    ],
)
def test_one_edit(a: str, b: str, apart: bool) -> None:
    assert one_edit_apart(a, b) == one_edit_apart(b, a) == apart


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """The last would count, and the other picture or reference be lost."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "image": "x.png", "image": "y.png"}\n')
    with pytest.raises(
        ManifestError, match=r"rows\.jsonl:1: not valid JSON \(the key 'image' is given twice"
    ):
        list(read_objects(path, "manifest"))


def test_half_a_character_is_refused_and_a_whole_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(r'{"id": "\ud83d\ude00", "text": "\\ud83d, \u2028"}' + "\n")
    assert list(read_objects(path, "manifest")) == [(1, {"id": "😀", "text": "\\ud83d, \u2028"})]
    # A reference cut in the middle of an emoji; a name of a file that is not UTF-8, as os.listdir gives it.
    for text in (r'{"references": ["so happy \ud83d"]}', r'{"caf\udce9": 1}'):
        path.write_text(f'{{"id": "a"}}\n{text}\n')
        with pytest.raises(ManifestError, match=r"rows\.jsonl:2: '\\ud.*' is half of a character"):
            list(read_objects(path, "manifest"))


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "ü"}\n', encoding="utf-8-sig")
    assert list(read_objects(path, "manifest")) == [(1, {"id": "ü"})]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"id,image\n7,a.png\n", r"a\.csv is CSV, and a manifest is JSON Lines: pandas\.read_csv\("),
        ("a.tsv", b"id\timage\n7\ta.png\n", r"a\.tsv is TSV, .*pandas\.read_table\(.*a\.lines\.jsonl'"),
        ("a", b"PAR1\x15\x04\x15\xf0\n", "a is parquet, .*pandas.read_parquet"),
        ("a.parquet", b"PAR1\x15\x04\n", "parquet is parquet, .*orient='records', lines=True"),
        ("a.jsonl.gz", gzip.compress(b'{"id": "a"}\n', mtime=0), r"gz is gzip, .*: unpack it \(gunzip\)"),
        (
            "a.json",
            b'[\n  {"id": "a"}\n]\n',
            r":1: not valid JSON .*a\.json is a JSON array, .*jq -c '\.\[\]'",
        ),
        (
            "a.jsonl",
            b'[{"id": "a"}]',
            r":1: a list, not a JSON object: .*is a JSON array, .*a\.lines\.jsonl$",
        ),
        ("a.jpg", b"\xff\xd8\xff\xe0", r"a\.jpg is a picture or clip, and a manifest is JSON Lines: name"),
        ("a.txt", b"a.png\n", ":1: not valid JSON .*: write one JSON object per line"),
        ("a.csv", b'{"id": "a"}\n{"id"', ":2: not valid JSON .*: write one JSON object per line"),
        ("a.jsonl", '{"id": "ü"}'.encode("latin-1"), "not UTF-8 text after line 0 .*: save it as UTF-8"),
    ],
)
def test_another_format_is_named_with_what_makes_rows_of_it(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ManifestError, match=said):
        list(read_objects(tmp_path / name, "manifest"))
