"""Which rows are held out, and that none of them is trained on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.holding_out import a_part, check_apart, divided, is_held_out, shown_together
from vcap_jax.data.manifest import Sample, read_manifest


def samples(count: int, first: int = 0) -> list[Sample]:
    return [Sample(id=f"s{i}", images=(Path(f"/media/{i}.png"),)) for i in range(first, first + count)]


def test_a_row_stays_on_its_side_when_others_are_added() -> None:
    before_trained, before_held = divided(samples(400), 0.1, 0)
    trained, held = divided([*samples(300, first=1000), *samples(400)], 0.1, 0)
    assert {s.id for s in before_held} <= {s.id for s in held}
    assert {s.id for s in before_trained} <= {s.id for s in trained}
    assert 20 < len(before_held) < 60
    assert [s.id for s in held] == [s.id for s in [*samples(300, first=1000), *samples(400)] if s in held]


def test_a_larger_share_holds_out_what_a_smaller_one_does_and_a_seed_other_rows() -> None:
    few, many = ({s.id for s in divided(samples(500), share, 0)[1]} for share in (0.05, 0.3))
    assert few < many
    assert {s.id for s in divided(samples(500), 0.05, 1)[1]} != few
    assert divided(samples(5), 0.0, 0) == (samples(5), [])
    assert [s.id for s in samples(500) if is_held_out(s.id, 0.05, 0)] == [
        s.id for s in divided(samples(500), 0.05, 0)[1]
    ]


def test_a_part_is_in_every_larger_one_and_keeps_the_order() -> None:
    everything = samples(500)
    few, more = a_part(everything, 40), a_part(everything, 200)
    assert (len(few), len(more)) == (40, 200)
    assert {s.id for s in few} < {s.id for s in more}
    assert few == [s for s in everything if s in few]
    assert few != everything[:40]
    assert a_part(everything, 500) == a_part(everything, 501) == everything


def test_rows_of_a_held_out_picture_are_not_trained_on() -> None:
    """Several questions about one picture, and a pair with a picture that is held out alone."""
    asked = [
        Sample(id=f"{i}/{k}", images=(Path(f"/media/{i}.png"),), prompt=f"{k}?")
        for i in range(40)
        for k in range(3)
    ]
    pairs = [Sample(id=f"p{i}", images=(Path(f"/media/{i}.png"), Path("/m/x.png"))) for i in range(40)]
    everything = [*asked, *pairs]
    trained, held = divided(everything, 0.1, 0)
    assert [s.id for s in held] == [s.id for s in everything if is_held_out(s.id, 0.1, 0)]
    check_apart(trained, held)
    shown = {file for sample in held for file in sample.files}
    assert {s.id for s in trained} == {s.id for s in everything if not shown & {*s.files}}
    assert len(trained) + len(held) < len(everything)


def test_files_are_looked_at_only_where_something_is_held_out_and_each_folder_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On network storage every part of a path costs a round trip."""
    looked: list[str] = []
    follow = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: looked.append(str(path)) or follow(path))
    everything = samples(200)
    check_apart(everything, [])
    assert divided(everything, 0.0, 0) == (everything, [])
    assert not looked
    check_apart(*divided(everything, 0.1, 0))
    assert set(looked) == {"/media"}
    assert len(looked) <= 2


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"id": "a", "image": "other.png"}, "the id"),
        ({"id": "z", "image": "x/../a.png"}, "a file"),
        ({"id": "z", "image": "link.png"}, "a file"),
        ({"id": "z", "image": "linked/a.png"}, "a file"),
    ],
)
def test_a_held_out_sample_that_is_trained_on_is_refused(tmp_path: Path, row: dict, what: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "link.png").symlink_to("a.png")
    (tmp_path / "linked").symlink_to(".")
    (tmp_path / "train.jsonl").write_text(json.dumps({"id": "a", "image": "a.png"}) + "\n")
    (tmp_path / "held.jsonl").write_text(json.dumps(row) + "\n")
    trained, held = (read_manifest(tmp_path / name) for name in ("train.jsonl", "held.jsonl"))
    with pytest.raises(ManifestError, match=rf"held.jsonl:1: {what} of the held-out .*train.jsonl:1"):
        check_apart(trained, held)
    check_apart(trained, samples(3))


def test_rows_that_show_a_file_of_each_other_are_of_the_first_of_them(tmp_path: Path) -> None:
    """By links too, and from one to the next."""
    linked = tmp_path / "linked.png"
    linked.symlink_to(tmp_path / "a.png")
    shows = {"alone": ["x"], "3": ["c", "d"], "2": ["b", "c"], "q": ["a"], "1": ["e", "b"], "r": ["linked"]}
    shows["4"] = ["f", "d"]
    rows = [Sample(id=name, images=tuple(tmp_path / f"{f}.png" for f in of)) for name, of in shows.items()]
    assert shown_together(rows) == {**dict.fromkeys("1234", "3"), "q": "q", "r": "q"}
    clips = [Sample(id=name, video=tmp_path / "v.mp4") for name in "yz"]
    assert shown_together([*rows[:3], *clips]) == {"3": "3", "2": "3", "y": "y", "z": "y"}
    assert shown_together(samples(30)) == {}
