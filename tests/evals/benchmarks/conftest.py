"""A judge for benchmarks, and pictures for it to look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def paint() -> Callable[[Path, int], None]:
    """Writes a small picture of one shade."""

    def write(path: Path, shade: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(path)

    return write
