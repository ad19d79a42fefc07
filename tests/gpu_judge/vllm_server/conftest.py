"""A fake vLLM for the tests of what runs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_judge.vllm_server.processes import family
from tests.gpu_judge.vllm_fakes import SERVER, give_orders, write_installation


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Path]:
    """A fake installation; afterwards none of its processes may be left."""
    executable = write_installation(tmp_path / "env", SERVER)
    give_orders(executable)
    yield executable
    left = [pid for path in executable.parent.glob("starts-*") for pid in _pids(path) if family(pid)]
    for pid in left:
        os.killpg(pid, signal.SIGKILL)
    assert not left


def _pids(path: Path) -> list[int]:
    return [int(line.split()[0]) for line in path.read_text().splitlines()]
