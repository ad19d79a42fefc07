"""Writes the parts of the documentation that the code itself states: every setting, and every command's help.

python docs/generate.py        # docs/generated/configuration.md and commands.md; the site's build does it too
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

COMMANDS = (
    (
        "Training",
        ("launch/train.py", "launch/sft.py", "launch/distill.py", "launch/self_improve.py", "launch/runs.py"),
    ),
    (
        "Captions and checkpoints",
        ("launch/caption.py", "launch/references.py", "launch/convert.py"),
    ),
    ("Rewards", ("launch/score.py", "launch/restudy.py")),
    (
        "Evaluation",
        (
            "launch/evaluate.py",
            "launch/compare.py",
            "launch/propose.py",
            "launch/annotate.py",
            "launch/agreement.py",
            "launch/probe.py",
        ),
    ),
    (
        "Nodes and clusters",
        ("launch/h800_8x.sh", "launch/slurm.sbatch", "launch/tpu.sh", "launch/plan.py", "launch/target.py"),
    ),
    ("Servers", ("gpu_judge/serve.py", "launch/serve_rollout.py")),
    ("The paper", ("launch/reproduce.py", "launch/theory.py")),
    ("Parts of other commands", ("launch/preflight.py", "launch/make_backbone.py")),
)
"""Every command by what it is for. Those that show their help in another way are in ``WITHOUT_HELP``."""

WIDTH = 88
"""Columns of a help that the site shows beside its two bars, in a window of 1280 pixels."""

WITHOUT_HELP = ("launch/quickstart.sh", "launch/cluster.sh", "launch/venv.sh")
"""quickstart.sh hands --help on to train.py; the other two are sourced by scripts."""


def configuration() -> str:
    """Every key of the configuration, as Markdown."""
    from vcap_jax.configuration.describing import markdown
    from vcap_jax.run.config import RunConfig

    return markdown(RunConfig)


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
        env={**os.environ, "COLUMNS": str(WIDTH + 2), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{path} --help ended with {done.returncode}: {done.stderr.strip()}")
    return in_columns(done.stdout.strip())


def in_columns(text: str) -> str:
    """A help whose prose has at most ``WIDTH`` columns; its usage, and what is indented or a list, stay as they are."""
    parts = text.split("\n\n")
    prose = [not re.search(r"usage: |^(\s|[*-] )", part, re.MULTILINE) for part in parts]
    return "\n\n".join(
        textwrap.fill(part, WIDTH, break_long_words=False, break_on_hyphens=False) if is_prose else part
        for part, is_prose in zip(parts, prose, strict=True)
    )


def write_all(folder: Path) -> None:
    """Writes ``configuration.md`` and ``commands.md`` into ``folder``."""
    folder.mkdir(exist_ok=True)
    (folder / "configuration.md").write_text(configuration(), encoding="utf-8")
    (folder / "commands.md").write_text(commands(), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    write_all(HERE / "generated")
