"""A supervision under way, of servers that are small scripts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from gpu_judge.vllm_server.readiness import Probe
from gpu_judge.vllm_server.supervisor import Launch, Supervision, supervise
from tests.gpu_judge.vllm_fakes import starts
from tests.listening import ports_for_servers
from tests.patience import GUARD_S

QUICK = Supervision(
    first_backoff_s=0.05,
    max_backoff_s=0.2,
    start_timeout_s=2 * GUARD_S,
    poll_s=0.05,
    watch_s=0.05,
    health_timeout_s=GUARD_S,
    hang_s=2 * GUARD_S,
    drain_s=GUARD_S,
    end_s=GUARD_S,
)


def launch(vllm: Path, port: int, can_sleep: bool = False) -> Launch:
    return Launch(
        name=f"server :{port}",
        argv=(str(vllm), "serve", "--port", str(port), "--served-model-name", "judge"),
        environment=dict(os.environ),
        probe=Probe(
            url=f"http://127.0.0.1:{port}",
            model="judge",
            key=None,
            modality="both",
            video_token_id=7,
            video_tokens=68,
            can_sleep=can_sleep,
        ),
        log=vllm.parent / f"{port}.log",
    )


class Run:
    """A supervision under way, with what its tests look at."""

    def __init__(self, vllm: Path, count: int, settings: Supervision, can_sleep: bool = False) -> None:
        self.vllm = vllm
        self.ports = tuple(ports_for_servers(count))
        self.stop, self.hurry, self.ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
        launches = [launch(vllm, port, can_sleep) for port in self.ports]
        self.task = asyncio.create_task(
            supervise(launches, settings, stop=self.stop, hurry=self.hurry, all_ready=self.ready.set)
        )

    async def until(self, what: Callable[[], Any], seconds: float = GUARD_S) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            if self.task.done():
                self.task.result()
            assert time.monotonic() < deadline, "it did not happen"
            await asyncio.sleep(0.02)

    def leader(self, port: int) -> int:
        return starts(self.vllm, port)[-1]


def play(
    vllm: Path,
    scene: Callable[[Run], Any],
    *,
    count: int = 1,
    settings: Supervision = QUICK,
    can_sleep: bool = False,
) -> None:
    """Runs ``scene`` beside the supervision, then stops it."""

    async def run() -> None:
        playing = Run(vllm, count, settings, can_sleep)
        try:
            await scene(playing)
        finally:
            playing.stop.set()
            await asyncio.wait_for(asyncio.gather(playing.task, return_exceptions=True), 3 * GUARD_S)

    asyncio.run(run())


def answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=GUARD_S) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
