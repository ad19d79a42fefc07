"""``launch/theory.py``: a picture, a table that agrees with itself, and errors that name the argument."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]


def theory(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "launch" / "theory.py"), *arguments]
    # Outside the repository and without it on the path, as a user may start it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment, cwd="/"
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


def test_a_reference_larger_than_the_picture_is_refused() -> None:
    done = theory("--facts", "8", "--references", "9", "--out", "/nonexistent/never.png")
    assert done.returncode == 1
    assert "m is 9: a reference has between 0 and N = 8 facts" in done.stderr
