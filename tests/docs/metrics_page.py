"""The columns of metrics.jsonl that docs/tracking.md explains."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "tracking.md"


def unexplained(columns: Iterable[str]) -> list[str]:
    """Those that no row of the table names; ``NAME`` and ``N`` in it stand for several."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("## The columns of metrics.jsonl\n")
    table = rest.partition("\n## ")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    patterns = [re.escape(name).replace("NAME", ".+").replace("/N/", r"/\d+/") for name in names]
    return [column for column in columns if not any(re.fullmatch(pattern, column) for pattern in patterns)]
