"""Runs launch/preflight.py in forks of one process that has imported what it imports.

The scripts call it some fifty times in their tests, and its imports (JAX, Flax, Orbax) take seconds of processor time,
its checks hardly any. Each call is the whole of launch/preflight.py, with arguments, folder, environment and output of
its own, in a process of its own; only the imports are shared.

As a program it is started with the path of the socket to listen at, and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.patience import until

ROOT = Path(__file__).resolve().parents[2]
PREFLIGHT = ROOT / "launch" / "preflight.py"
ADDRESS = "PREFLIGHT_SOCKET"
"""Names the socket in the environment of the stand-in for Python; if it is empty, preflight is started anew."""

CLIENT = f"""
import json, socket
with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["{ADDRESS}"])
    request = json.dumps([words, os.getcwd(), dict(os.environ)]).encode() + b"\\n"
    socket.send_fds(server, [request[:1]], [1, 2])
    server.sendall(request[1:])
    status = server.makefile().read()
    sys.exit(int(status) if status else "launch/preflight.py ended without a status")
"""
"""What the stand-in does with its ``words``, the first of which is the script."""


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """The server, while the context lasts; ``ADDRESS`` in this process's environment names it."""
    # Not pytest's folder: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="vcap-preflight-") as folder:
        address = Path(folder) / "socket"
        command = [sys.executable, "-m", "tests.launch.preflight_server", str(address)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE) as server:
            assert server.stdin is not None

            def alive() -> None:
                assert server.poll() is None, "the server of launch/preflight.py has ended"

            try:
                until(address.exists, "the server of launch/preflight.py", check=alive)
                os.environ[ADDRESS] = str(address)
                yield
            finally:
                os.environ.pop(ADDRESS, None)
                server.stdin.close()


def serve(address: str) -> None:
    _import_everything()
    # A thread would not be there in the fork, but its locks would.
    assert threading.active_count() == 1, threading.enumerate()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as ready:
        listener.bind(f"{address}.new")
        listener.listen(64)
        Path(f"{address}.new").rename(address)  # it is there once it listens
        ready.register(listener, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in ready.select()):
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(connection)
            connection.close()


def _import_everything() -> None:
    """Runs it once: some of its imports stand in functions."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "rows.jsonl"
        (Path(folder) / "a.png").touch()
        manifest.write_text('{"id": "a", "image": "a.png"}\n')
        arguments = ["--devices", "1", "--host-memory", "--config", str(ROOT / "configs/paper/image.yaml")]
        settings = [f"data.manifest={manifest}", "model.path=embedded", "max_steps=1"]
        settings.append("judge.urls=[http://127.0.0.1:8000]")
        with contextlib.redirect_stdout(sys.stderr):
            status = _run([str(PREFLIGHT), *arguments, *settings])
    assert status == 0


def _run(words: list[str]) -> int:
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


def _answer(connection: socket.socket) -> None:
    """Ends this process."""
    first, (out, err), _, _ = socket.recv_fds(connection, 1, 2)
    words, folder, environment = json.loads(first + connection.makefile("rb").readline())
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        status = _run(words)
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(str(status).encode())
    finally:
        # Without a status the caller knows that this was no ordinary end.
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
