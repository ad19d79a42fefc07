"""What is read of processes and of their logs, and what those leave that are killed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gpu_judge.vllm_server import processes
from gpu_judge.vllm_server.processes import cause, family, read_stat
from tests.gpu_judge.vllm_fakes import ENGINE_LOG

SHARING = """
import signal
from multiprocessing import shared_memory

shared = shared_memory.SharedMemory(create=True, size=4096)
print(shared.name, flush=True)
signal.pause()
"""


def test_reads_the_state_of_a_process_with_an_odd_name() -> None:
    assert read_stat("17 (a) Z) S 1 99 17 0") == ("S", 99)


def test_the_cause_that_a_log_tells(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert cause(log) == ""
    log.write_text("it is loading\n")
    assert cause(log) == ""
    log.write_text("(EngineCore pid=7) ERROR 11-25 [core.py:1510] ValueError: of the start before\n")
    before = log.stat().st_size
    with log.open("a") as file:
        file.write("Traceback:\n  raise OSError(\nOSError: tried\njson.decoder.JSONDecodeError: line 49\n")
    assert cause(log, before) == "json.decoder.JSONDecodeError: line 49"
    with log.open("a") as file:
        file.write(ENGINE_LOG)
    assert cause(log, before) == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.slow
def test_the_shared_memory_of_a_family_that_is_killed_goes_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def killed() -> tuple[Path, bool, int]:
        process = await processes.start([sys.executable, "-c", SHARING], os.environ, log)
        while not log.read_text().endswith("\n"):
            await asyncio.sleep(0.01)
        shared = Path("/dev/shm") / log.read_text().strip()
        there = shared.exists()
        await processes.kill_family(process.pid)
        await process.wait()
        return shared, there, process.pid

    shared, there, leader = asyncio.run(killed())
    assert there
    assert not shared.exists()
    assert family(leader) == []
