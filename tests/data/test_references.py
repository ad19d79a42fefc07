from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool, Segment, entry_line


def pool() -> ReferencePool:
    segments = (
        Segment(start=0, end=2, references=("s1", "s2")),
        Segment(start=2, end=4.5, references=("s3",)),
    )
    return ReferencePool(
        [
            PoolEntry(id="a", references=("one", "two", "drei – ü")),
            PoolEntry(id="v", references=("whole",), segments=segments),
        ]
    )


def test_a_pool_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "pool.jsonl"
    pool().write(path)
    again = ReferencePool.read(path)
    assert len(again) == 2
    assert [again[i] for i in ("a", "v")] == [pool()[i] for i in ("a", "v")]
    assert [p.name for p in path.parent.iterdir()] == ["pool.jsonl"]


def test_a_pool_can_grow_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    with path.open("a") as file:
        for sample_id in ("a", "v"):
            file.write(entry_line(pool()[sample_id]))
    assert ReferencePool.read(path)["v"].segments == pool()["v"].segments


def test_a_choice_depends_on_id_seed_and_step_alone_and_is_uniform() -> None:
    picks = [pool().pick("a", 5, step) for step in range(3000)]
    assert picks == [pool().pick("a", 5, step) for step in range(3000)]
    assert picks != [pool().pick("a", 6, step) for step in range(3000)]
    assert all(900 < n < 1100 for n in Counter(picks).values())


def test_segments_are_chosen_with_their_references() -> None:
    chosen = {pool().pick_segment("v", 0, step) for step in range(50)}
    assert {(segment.start, text) for segment, text in chosen} == {(0, "s1"), (0, "s2"), (2, "s3")}
    assert pool().pick_segment("a", 0, 0) is None


def test_a_key_whose_value_is_null_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"version": null, "id": "a", "references": ["x"], "segments": null, "clips": null}\n')
    assert ReferencePool.read(path).entries() == (PoolEntry(id="a", references=("x",)),)


def test_samples_without_references_are_named() -> None:
    samples = [Sample(id=i, images=(Path("x.png"),)) for i in ("a", "b")]
    assert pool().missing(samples) == ["b"]
    with pytest.raises(KeyError, match='"b"'):
        pool().pick("b", 0, 0)
    assert len(ReferencePool.of_samples(samples)) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a", "references": []}', "no reference"),
        ('{"id": "a"}', '"references" must be'),
        ('{"id": "a", "references": null}', '"references" must be'),
        ('{"id": "a", "references": null, "captions": ["x"]}', '"captions" is called "references" here'),
        ('{"id": "a", "references": ["x"], "version": 2}', "version 2"),
        (
            '{"id": "a", "references": ["x"], "segments": [{"start": 2, "end": 1, "references": ["x"]}]}',
            "start",
        ),
        ('{"id": "a", "references": ["x"], "segments": [{"start": "0", "end": 1}]}', "must be seconds"),
        (
            '{"id": "a", "references": ["x"], "segments": [{"start": 0, "end": BIG, "references": ["x"]}]}'.replace(
                "BIG", "1" + "0" * 400
            ),
            "too large",
        ),
        (
            '{"id": "a", "references": ["x"], "segments": [{"start": 0, "end": Infinity, "references": ["x"]}]}',
            "0 <= start < end",
        ),
        ('{"id": "a", "references": ["x"]}\n{"id": "a", "references": ["x"]}', "occurs twice"),
        ('{"id": "a", "references": ["x"]', "not valid JSON"),
        ('{"id": "a", "captions": ["x"]}', '"captions" is called "references" here'),
        ('{"id": "a", "refrences": ["x"]}', 'unknown key "refrences"; the nearest is "references"'),
        ("", "is empty"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(line)
    with pytest.raises(ManifestError, match=rf"(?s)pool\.jsonl.*{message}"):
        ReferencePool.read(path)


def test_a_folder_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"the pool of captions \S+ is a folder: name a file in it$"):
        ReferencePool.read(tmp_path, "pool of captions")
    pool = tmp_path / "references" / "train.jsonl"
    ReferencePool([PoolEntry(id="a", references=("A cat.",))]).write(pool)
    with pytest.raises(ManifestError, match=rf"is the folder of a run: name a file in it, such as {pool}$"):
        ReferencePool.read(tmp_path)
