"""How reading the embedded world is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.world_reading import SEE, Tally, main, report
from vcap_jax.world.sight import Sight
from vcap_jax.world.vocabulary import Facts, Slot


def sight(facts: Facts, unknown: frozenset[Slot] = frozenset()) -> Sight:
    return Sight(facts=facts, unknown=unknown, shots=(), prominence={})


def test_every_way_to_go_wrong_is_counted_once() -> None:
    true: Facts = {
        ("a", "shape"): "ring",
        ("a", "colour"): "red",
        ("b", "shape"): "star",
        ("b", "size"): "small",
    }
    said: Facts = {
        ("a", "shape"): "ring",
        ("a", "colour"): "pink",
        ("b", "mark"): "4",
        ("c", "shape"): "star",
    }
    tally = Tally(seconds=[0.002])
    # What is said of the mark is left open by the scene; the size is left open by the eyes alone.
    wrong = tally.add(true, frozenset({("b", "mark")}), sight(said, frozenset({("b", "size")})))
    assert set(wrong) == {("a", "colour"), ("b", "shape"), ("b", "size"), ("c", "shape")}
    assert (tally.errors, tally.share) == (4, 1.0)
    kinds = report(tally)["kinds"]
    assert kinds == {
        "shape": {"facts": 2, "missed": 1, "misread": 0, "invented": 1},
        "colour": {"facts": 1, "missed": 0, "misread": 1, "invented": 0},
        "size": {"facts": 1, "missed": 1, "misread": 0, "invented": 0},
    }


def test_clips_are_read_and_the_figures_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures" / "video.json"
    assert main(["--modality", "video", "--scenes", "3", "--most", "0", "--out", str(out)]) == 0
    assert "0 errors, 0.000% of" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert figures["scenes"] == 3
    assert figures["facts"] == sum(kind["facts"] for kind in figures["kinds"].values()) >= 75


@pytest.mark.parametrize("files", [[], ["--jpeg", "90"]])
def test_pictures_are_read_from_either_kind_of_file(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "image.json"
    assert main(["--modality", "image", "--scenes", "3", "--out", str(out), *files]) == 0
    assert json.loads(out.read_text())["facts"] >= 60


def test_clips_are_no_jpeg_files() -> None:
    with pytest.raises(SystemExit):
        main(["--modality", "video", "--jpeg", "90"])


def test_too_many_errors_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEE, "video", lambda *_: (sight({}), 0.001))
    assert main(["--modality", "video", "--scenes", "2"]) == 1


def test_no_scene_is_too_few() -> None:
    with pytest.raises(SystemExit):
        main(["--scenes", "0"])
