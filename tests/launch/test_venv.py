"""``launch/venv.sh``: which Python the commands that set themselves up take, and what they say where there is none."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def found(folder: Path, **versions: str) -> subprocess.CompletedProcess[str]:
    """What ``find_python`` finds where PATH leads to Pythons of these names and versions alone."""
    for name, version in versions.items():
        pretended = f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0)"
        script = folder / name.replace("_", ".")
        script.write_text(
            f"#!/bin/bash\n[[ $1 == --version ]] && echo Python {version}.0 && exit\n"
            f'exec "{sys.executable}" -c "{pretended}; sys.executable = \'$0\'; $2"\n'
        )
        script.chmod(0o755)
    return subprocess.run(
        ["/bin/bash", "-c", f"source {ROOT / 'launch' / 'venv.sh'}; find_python"],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("newest", ["3.10", "3.15"])
def test_the_first_python_that_can_have_the_packages_is_taken(tmp_path: Path, newest: str) -> None:
    done = found(tmp_path, python3=newest, python3_14="3.14", python3_12="3.12")
    assert done.stdout == f"{tmp_path / 'python3.14'}\n", done.stderr


def test_where_there_is_none_those_there_are_are_named(tmp_path: Path) -> None:
    """With Python 3.15 pip said that there was no release of a package at all."""
    done = found(tmp_path, python3="3.15")
    assert done.returncode == 1
    assert "no Python 3.11 to 3.14" in done.stderr
    assert "found python3: Python 3.15.0" in done.stderr


def test_it_is_what_pip_is_told() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"
    assert "(3, 11) <= sys.version_info < (3, 15)" in (ROOT / "launch" / "venv.sh").read_text()
