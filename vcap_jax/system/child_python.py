"""Pythons of our own that run beside this one."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Where the packages of this project lie."""


def child_environment() -> dict[str, str]:
    """This process's environment, in which a Python finds the packages that this one runs, wherever it is started."""
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": search}
