"""Runs the embedded judge: one process, one address."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from aiohttp import web

from gpu_judge.addresses import listen_error, url_of
from gpu_judge.embedded.judge import EmbeddedJudge
from gpu_judge.lifetime import check_port_file, on_signals, remove_port_file, watch_parent, write_port_file
from gpu_judge.openai_api import build_app
from vcap_jax.system.errors import VCapError
from vcap_jax.world.noisy_perception import PerceptionConfig

MODEL_NAME = "embedded-judge"
_DRAIN_S = 10.0


def run(
    *,
    host: str,
    port: int,
    port_file: Path | None,
    model_name: str | None,
    key: str | None,
    parent: int | None,
    perception: PerceptionConfig,
) -> int:
    """Serves until SIGTERM or SIGINT; the exit status. Raises PortFileError before anything is started.

    key: what requests must bring, None for nothing. perception: becomes part of the model's name, by which clients
    keep the scores of different judges apart.
    """
    check_port_file(port_file)
    name = (model_name or MODEL_NAME) + perception.label
    app = build_app(EmbeddedJudge(perception=perception), name, key)
    try:
        # One that names this address may be of the judge that has the port.
        remove_port_file(port_file, unless=url_of(host, port))
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(app, host, port, port_file, parent))
    except VCapError as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(
    app: web.Application, host: str, port: int, port_file: Path | None, parent: int | None
) -> None:
    stop = asyncio.Event()
    on_signals(stop.set)
    # A compressed body is refused, but aiohttp would begin to unpack it before anybody is asked.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_DRAIN_S, auto_decompress=False)
    await runner.setup()
    watch = asyncio.create_task(watch_parent(stop, parent)) if parent is not None else None
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as error:
            raise listen_error(host, port, error) from error
        address = url_of(host, runner.addresses[0][1])
        print(f"judge ready at {address}", flush=True)
        write_port_file(port_file, [address])
        await stop.wait()
    finally:
        if watch is not None:
            watch.cancel()
        await runner.cleanup()
