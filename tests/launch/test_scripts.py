"""What all scripts for real hardware have in common."""

from __future__ import annotations

import fcntl
import os
import pty
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


def test_every_script_passes_shellcheck() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_misspelt_option_is_refused(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--modaliti", "video")
    assert done.returncode == 2
    assert "--modaliti is no option" in done.stderr


@pytest.mark.parametrize("script", ["h800_8x.sh", "tpu.sh"])
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
