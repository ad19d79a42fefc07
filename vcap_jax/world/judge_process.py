"""Starts the embedded judge as a process of its own and ends it again.

Used when no judge address is configured: the trainer then talks HTTP to the same server a user would start by
hand, so the small run exercises the boundary of the large one.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vcap_jax.system.child_python import child_environment
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import tail
from vcap_jax.system.waiting import Waiting
from vcap_jax.world.noisy_perception import PerceptionConfig

_log = logging.getLogger(__name__)


class JudgeStartError(VCapError, RuntimeError):
    """The embedded judge did not come up; the message carries the end of its log."""


@contextmanager
def embedded_judge(
    log_path: Path,
    perception: PerceptionConfig | None = None,
    *,
    timeout_s: float = 120.0,
    say: Callable[[str], None] = _log.warning,
) -> Iterator[str]:
    """Yields the base URL of a freshly started embedded judge; it is ended when the context closes.

    log_path: where the server's output goes. perception: how well it sees, by default without errors. say: where
    messages about waiting for it go, by default the log, and that it has ended before the context has.
    Raises JudgeStartError if it exits or stays silent for ``timeout_s``.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log_path.open("ab") as log:
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "gpu_judge.serve", "--backend", "embedded", "--host", "127.0.0.1"]
        command += ["--port", "0", "--port-file", str(port_file), "--exit-with-parent", str(os.getpid())]
        sees = perception or PerceptionConfig()
        command += ["--miss-rate", repr(sees.miss), "--invent-rate", repr(sees.invent)]
        command += ["--attention", str(sees.attention), f"--error-seed={sees.seed}"]
        # Its matrices are tiny; threads of numpy would only get in the way of the trainer's.
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**child_environment(), **alone}
        # In a session of its own: Ctrl-C reaches the trainer alone, which needs the judge to finish its step.
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        began, closing = log.tell(), threading.Event()

        def tell_end() -> None:
            status = process.wait()
            if not closing.is_set():
                # Whoever asks it waits as for any server, but this one does not come back to its port.
                say(
                    f"the embedded judge has ended with {status}, and only a new start of this command starts it "
                    f"again. {_end(log_path, began)}"
                )

        try:
            port = _wait_for_port(process, port_file, log_path, began, timeout_s, say)
            threading.Thread(target=tell_end, name="embedded judge", daemon=True).start()
            yield f"http://127.0.0.1:{port}"
        finally:
            closing.set()
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=60)


def _wait_for_port(
    process: subprocess.Popen[bytes],
    port_file: Path,
    log_path: Path,
    began: int,
    timeout_s: float,
    say: Callable[[str], None],
) -> int:
    deadline = time.monotonic() + timeout_s
    # No setting holds this limit: on any machine that can run it the judge is up in seconds.
    waiting = Waiting("the embedded judge to start", say, limit_s=timeout_s, setting=f"log: {log_path}")
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise JudgeStartError(
                f"the embedded judge exited with {process.returncode}. {_end(log_path, began)}"
            )
        text = port_file.read_text().strip() if port_file.exists() else ""
        if text:
            return int(text.rsplit(":", 1)[-1])
        waiting.tell("it has named no port yet")
        time.sleep(0.05)
    raise JudgeStartError(
        f"the embedded judge named no port within {timeout_s:.0f} s. {_end(log_path, began)}"
    )


def _end(log_path: Path, began: int) -> str:
    """What this start, from byte ``began`` on, has written last: a resumed run's earlier ones are in the log too."""
    end = tail(log_path, 15, began)
    return f"The end of {log_path}: {end}" if end else f"It has written nothing into {log_path}"
