"""A folder that goes with the process that uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import until
from vcap_jax.system.after_process import main, remove_after, runs


def test_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    folder = tmp_path / "used"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    user = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    remove_after(folder, user.pid)
    assert folder.exists()
    user.kill()
    user.wait()
    until(lambda: not folder.exists(), f"{folder} is removed")
    assert tmp_path.exists()


def test_it_is_looked_at_again_until_the_process_is_gone(tmp_path: Path) -> None:
    user = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        assert tmp_path.exists()
        looks.append(seconds)
        if len(looks) == 2:
            user.kill()
            user.wait()

    assert main([str(tmp_path), str(user.pid)], sleep) == 0
    assert len(looks) == 2
    assert not tmp_path.exists()


def test_who_runs() -> None:
    assert runs(os.getpid())
    assert runs(1), "of another user too"
