"""Writes the parts of the documentation that the code itself states: every setting, and every command's help.

python docs/generate.py        # docs/generated/configuration.md and commands.md; the site's build does it too
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

COMMANDS = (
    ("Training", ("launch/train.py", "launch/sft.py", "launch/distill.py", "launch/self_improve.py")),
    ("Captions and checkpoints", ("launch/references.py", "launch/convert.py", "launch/restudy.py")),
    (
        "Nodes and clusters",
        ("launch/h800_8x.sh", "launch/slurm.sbatch", "launch/tpu.sh", "launch/plan.py", "launch/target.py"),
    ),
    ("Servers", ("gpu_judge/serve.py", "launch/serve_rollout.py")),
    ("The paper", ("launch/reproduce.py", "launch/theory.py")),
    ("Parts of other commands", ("launch/preflight.py", "launch/make_backbone.py")),
)
"""Every command by what it is for. Those that show their help in another way are in ``WITHOUT_HELP``."""

WITHOUT_HELP = ("launch/quickstart.sh", "launch/cluster.sh", "launch/venv.sh")
"""quickstart.sh hands --help on to train.py; the other two are sourced by scripts."""


def configuration() -> str:
    """Every key of the configuration, as Markdown: a heading for a section, a table of its keys."""
    from vcap_jax.run.config import RunConfig

    return "\n".join(_section(RunConfig, MISSING, "", "The run itself", "")) + "\n"


def _section(cls: type, default: Any, prefix: str, heading: str, note: str) -> Iterator[str]:
    from vcap_jax.configuration.dialect import inline_yaml
    from vcap_jax.configuration.docstrings import class_doc
    from vcap_jax.configuration.schema import inherited_default, schema_fields, section_of, type_name

    doc = class_doc(cls)
    yield from (f"## {heading}", "", " ".join(filter(None, [doc.summary, note[:1].upper() + note[1:]])), "")
    fields = list(schema_fields(cls).values())
    plain = [field for field in fields if section_of(field.annotation) is None]
    if plain:
        yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    for field in plain:
        entry = doc.entries.get(field.name)
        value = inherited_default(field, default)
        shown = "required" if value is MISSING else _code(inline_yaml(value))
        meaning = "" if entry is None else _cell(entry.meaning)
        if entry is not None and len(entry.names) > 1 and entry.names[0] != field.name:
            meaning = f"see `{prefix}{entry.names[0]}`"
        yield f"| `{prefix}{field.name}` | {_cell(type_name(field.annotation))} | {shown} | {meaning} |"
    yield ""
    for field in fields:
        section = section_of(field.annotation)
        if section is None:
            continue
        value = inherited_default(field, default)
        path = prefix + field.name
        inside = doc.entries.get(field.name)
        yield from _section(
            section,
            MISSING if value is None else value,
            f"{path}.",
            f"`{path}`" + (" (null by default)" if value is None else ""),
            "" if inside is None else inside.meaning,
        )


def _cell(text: str) -> str:
    """Prose for a cell of a table, its words as they are."""
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


def _code(text: str) -> str:
    """A value for a cell of a table, as code. Only the bar that divides cells needs a mark there."""
    return "`" + text.replace("|", "\\|") + "`"


def commands() -> str:
    """The help of every command, as Markdown.

    Raises ValueError if a script of launch/ is in no list here, and RuntimeError if one cannot say its help.
    """
    listed = [path for _, paths in COMMANDS for path in paths]
    scripts = {f"launch/{path.name}" for path in (ROOT / "launch").iterdir() if path.is_file()}
    if missing := sorted(scripts - {*listed, *WITHOUT_HELP}):
        raise ValueError(f"docs/generate.py says nothing of {', '.join(missing)}: add them to COMMANDS")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        helps = dict(zip(listed, pool.map(_help, listed), strict=True))
    lines: list[str] = []
    for title, paths in COMMANDS:
        lines += [f"## {title}", ""]
        for path in paths:
            lines += [f"### {path}", "", "```text", helps[path], "```", ""]
    return "\n".join(lines)


def _help(path: str) -> str:
    runner = sys.executable if path.endswith(".py") else "bash"
    done = subprocess.run(
        [runner, path, "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "96", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{path} --help ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def write_all(folder: Path) -> None:
    """Writes ``configuration.md`` and ``commands.md`` into ``folder``."""
    folder.mkdir(exist_ok=True)
    (folder / "configuration.md").write_text(configuration(), encoding="utf-8")
    (folder / "commands.md").write_text(commands(), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    write_all(HERE / "generated")
