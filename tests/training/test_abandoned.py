"""After a checkpoint that could not be read or written nothing is printed but the error."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from vcap_jax.training.abandoned import drop_abandoned

drop_abandoned()
drop_abandoned()

class Future:
    def __init__(self, words):
        self.words = words
    def __repr__(self):
        return f"<{self.words}>"
    def __del__(self):
        raise ValueError(f"told by {self.words}")

sys.excepthook(RuntimeError, RuntimeError("Event loop is closed"), None)
for words in ("tensorstore.Future", "orbax.checkpoint coroutine", "something else"):
    Future(words)

import asyncio

async def fails(words):
    raise ValueError(words)

async def forgotten():
    for words in ("of orbax, in a task", "something else, in a task"):
        asyncio.ensure_future(fails(words))
    await asyncio.sleep(0)

asyncio.run(forgotten())
raise RuntimeError("of orbax, and not caught")
"""


def test_what_was_left_behind_is_dropped_and_all_else_printed() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Event loop" not in ended.stderr
    assert "tensorstore" not in ended.stderr
    assert "coroutine" not in ended.stderr
    assert "told by something else" in ended.stderr
    assert "of orbax, in a task" not in ended.stderr
    assert "something else, in a task" in ended.stderr
    assert ended.stderr.rstrip().endswith("RuntimeError: of orbax, and not caught")
