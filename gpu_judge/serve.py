"""Serves a judge at an OpenAI-compatible address.

    python gpu_judge/serve.py --backend embedded --host 127.0.0.1 --port 8000

Prints the address once it accepts requests. Ends on SIGTERM or SIGINT after finishing what it has begun.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

if __package__ in (None, ""):
    # Run as a script: make the project importable, and this folder's modules only as part of it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from aiohttp import web

from gpu_judge.backends import BACKENDS, MODEL_NAMES, BackendUnavailable
from gpu_judge.openai_api import build_app

_DRAIN_S = 10.0
_PARENT_CHECK_S = 1.0


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Serve a judge of captions in OpenAI's chat format.")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="embedded")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free port")
    parser.add_argument("--port-file", type=Path, help="write the address here once requests are accepted")
    parser.add_argument("--model-name", help="name of the model to serve under")
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="end when the starting process is gone"
    )
    return parser.parse_args(arguments)


async def serve(
    app: web.Application, host: str, port: int, port_file: Path | None, with_parent: bool
) -> None:
    """Serves until SIGTERM or SIGINT (or, ``with_parent``, until the parent process ends)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_DRAIN_S)
    await runner.setup()
    watch = asyncio.create_task(_watch_parent(stop)) if with_parent else None
    try:
        await web.TCPSite(runner, host, port).start()
        address = f"http://{host}:{runner.addresses[0][1]}"
        print(f"judge ready at {address}", flush=True)
        if port_file is not None:
            _write_whole(port_file, address + "\n")
        await stop.wait()
    finally:
        if watch is not None:
            watch.cancel()
        await runner.cleanup()


async def _watch_parent(stop: asyncio.Event) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(_PARENT_CHECK_S)
    stop.set()


def _write_whole(path: Path, text: str) -> None:
    """Writes a file that nobody can see half-written."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        judge = BACKENDS[options.backend]()
    except BackendUnavailable as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 2
    app = build_app(judge, options.model_name or MODEL_NAMES[options.backend])
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(app, options.host, options.port, options.port_file, options.exit_with_parent))
    except OSError as error:
        print(f"serve.py: cannot listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
