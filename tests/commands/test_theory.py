"""``launch/theory.py``: a picture, a table that agrees with itself, and errors that name the argument."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from vcap_jax.commands import theory as command

ROOT = Path(__file__).resolve().parents[2]


def theory(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "launch" / "theory.py"), *arguments]
    # Outside the repository and without it on the path, as a user may start it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=600, check=False, env=environment, cwd="/"
    )


@pytest.mark.slow
def test_the_landscapes_are_drawn_and_the_drawn_rates_agree(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "theory.png"
    done = theory("--facts", "8", "--references", "1", "4", "--draws", "20000", "--out", str(picture))
    assert done.returncode == 0, done.stderr
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50, "two landscapes, not an empty sheet"
    rows = [line.split() for line in done.stdout.splitlines()[2:-1]]
    assert [row[:3] for row in rows[3::4]] == [["1", "8", "0"], ["4", "8", "0"]]
    for row in rows:
        recall, drawn_recall, collision, drawn_collision = map(float, row[3:7])
        assert abs(recall - drawn_recall) < 0.02
        assert abs(collision - drawn_collision) < 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.foo"], "x.foo: end it in one of .*png"),
        (["--out", "noext"], "noext: end it in one of .*png"),
        (["--seed", "-1"], "give a whole number from 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_any_work(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "table", lambda *_, **__: pytest.fail("work was begun"))
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert re.search(message, capsys.readouterr().err)


def test_of_few_facts_the_usual_references_that_there_can_be_are_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    monkeypatch.setattr(command, "table", lambda facts, sizes, **_: asked.append((facts, sizes)))
    monkeypatch.setattr(command, "draw", lambda *_: Figure())
    for facts in ("8", "24"):
        assert command.main(["--facts", facts, "--out", str(tmp_path / "theory.PNG")]) == 0
    assert asked == [(8, [1, 3, 6]), (24, [1, 3, 6, 12])]


def test_curves_of_many_references_are_told_apart() -> None:
    """There are six colours."""
    curves = [
        [line for line in axes.get_lines() if str(line.get_label()).startswith("m = ")]
        for axes in command.draw(8, range(8)).findobj(Axes)
    ]
    assert sum(map(bool, curves)) == 3
    for lines in filter(None, curves):
        assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 8


def test_a_reference_larger_than_the_picture_is_refused() -> None:
    done = theory("--facts", "8", "--references", "9", "--out", "/nonexistent/never.png")
    assert done.returncode == 1
    assert "m is 9: a reference has between 0 and N = 8 facts" in done.stderr
