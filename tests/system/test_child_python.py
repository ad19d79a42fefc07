"""A Python beside this one finds this project's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vcap_jax.system.child_python import child_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("own", ["", "/somewhere"])
def test_a_child_finds_the_same_packages_wherever_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", own)
    environment = child_environment()
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), *filter(None, [own])]
    code = "import gpu_judge, vcap_jax; print(gpu_judge.__file__, vcap_jax.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(ROOT / name / "__init__.py") for name in ("gpu_judge", "vcap_jax")]
