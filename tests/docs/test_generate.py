"""What the documentation takes from the code: every command stands in a list, so none is forgotten."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_script_of_launch_is_listed_once() -> None:
    names = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    listed = [path for _, paths in names["COMMANDS"] for path in paths] + list(names["WITHOUT_HELP"])
    assert len(listed) == len(set(listed))
    scripts = {f"launch/{path.name}" for path in (ROOT / "launch").iterdir() if path.is_file()}
    assert scripts == {path for path in listed if path.startswith("launch/")}
