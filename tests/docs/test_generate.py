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


def test_prose_of_a_help_is_as_narrow_as_its_box_and_examples_are_as_they_were() -> None:
    names = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    width, words = names["WIDTH"], "Captions are kept. " * 6
    kept = [
        f"usage: bash launch/h800_8x.sh {'[options] ' * 9}",
        f"    python launch/caption.py --out {'x' * width}.jsonl",
        f"options:\n  --out FILE  {words}",
        f"* {words}",
    ]
    told = names["in_columns"]("\n\n".join([*kept, f"{words}\n--out says where."])).split("\n\n")
    assert told[:-1] == kept
    assert max(map(len, told[-1].splitlines())) <= width
    assert told[-1].split() == f"{words} --out says where.".split()
