"""A judge for benchmarks, and pictures for it to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.reward.scripted_judge import ScriptedJudge


@pytest.fixture
def server() -> Iterator[ScriptedJudge]:
    judge = ScriptedJudge()
    yield judge
    judge.close()


@pytest.fixture
def paint() -> Callable[[Path, int], None]:
    """Writes a small picture of one shade."""

    def write(path: Path, shade: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(path)

    return write
