"""What all scripts for real hardware have in common."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.launch.stand_ins import JUDGE_ELSEWHERE, ROOT, TPU, command, environment, notes, start, wait_for
from tests.patience import GUARD_S

SCRIPTS = [
    *sorted((ROOT / "launch").glob("*.sh")),
    ROOT / "launch" / "slurm.sbatch",
    ROOT / "tests" / "run.sh",
]


@pytest.mark.slow
def test_every_script_passes_shellcheck() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_misspelt_option_is_refused(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--modaliti", "video")
    assert done.returncode == 2
    assert "--modaliti is no option" in done.stderr


@pytest.mark.parametrize("script", ["h800_8x.sh", pytest.param("tpu.sh", marks=pytest.mark.slow)])
def test_a_run_outlives_its_terminal(node: Path, script: str) -> None:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        command(node, script, *JUDGE_ELSEWHERE),
        env=environment(node, TRAINER_SECONDS="2", **TPU),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    wait_for(node, "trainer --")
    os.close(master)
    assert process.wait(timeout=GUARD_S) == 0
    assert notes(node)[-1] == "trainer done"


@pytest.mark.parametrize("failing", ["", "mypy", "pytest", "mypy pytest"])
def test_the_tests_exit_with_what_they_say(tmp_path: Path, failing: str) -> None:
    for name in ("tests/run.sh", "launch/venv.sh", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / ".venv-test" / "bin"
    programs.mkdir(parents=True)
    # Python itself where code is given; of the tools, those that are to fail do.
    stand_in = f'[[ $1 == -c ]] && exec "{sys.executable}" "$@"; [[ " {failing} " != *" $2 "* ]]'
    for name, line in {"python": stand_in, "lint-imports": "true"}.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(["bash", "tests/run.sh"], cwd=tmp_path, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    if failing:
        names = {"mypy": "types", "pytest": "tests"}
        told, _, failed = last.partition(": ")
        assert (done.returncode, told) == (1, "failed")
        assert sorted(failed.split()) == sorted(names[tool] for tool in failing.split())
    else:
        assert (done.returncode, last) == (0, "passed: lint, format, types, rooms, tests")
