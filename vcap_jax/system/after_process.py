"""Removes a folder when the process that uses it has ended, in whatever way; runs beside that process.

    python -m vcap_jax.system.after_process FOLDER PID

For a process whose place another program takes, which knows nothing of the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vcap_jax.system.child_python import child_environment

_POLL_S = 1.0


def remove_after(folder: Path, pid: int) -> None:
    """Has ``folder`` removed once the process ``pid`` is gone, by a process that is nobody's child."""
    subprocess.run(
        [sys.executable, "-m", __name__, str(folder), str(pid)],
        check=True,
        env=child_environment(),
        # It must not hold a pipe open that somebody reads to its end.
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def main(arguments: Sequence[str] | None = None, sleep: Callable[[float], None] = time.sleep) -> int:
    folder, pid = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        if os.fork():
            os._exit(0)
        os.setsid()  # Ctrl-C is for the process that it waits for
    while runs(int(pid)):
        sleep(_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
