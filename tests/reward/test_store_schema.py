"""A store is made whole, once, and one of another version is refused."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.reward.stored import candidate, put
from vcap_jax.reward import store_schema
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.restudy import restudy
from vcap_jax.reward.store import (
    JudgementStore,
    StoreError,
    read_candidates,
)


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return store_schema.version_of(connection)


def test_a_store_of_another_version_is_refused_and_left_as_it_is(studied: Path) -> None:
    with closing(sqlite3.connect(studied)) as connection:
        connection.execute("PRAGMA user_version = 2")
    before = studied.read_bytes()
    told = r"/s is a store of version 2, and this program knows version 3 alone: give the file of a run"
    with pytest.raises(StoreError, match=told):
        next(restudy(studied, RewardWeights()))
    with pytest.raises(StoreError, match=told):
        JudgementStore(studied)
    assert studied.read_bytes() == before


_KILLED = """
import os, sqlite3, sys
from vcap_jax.reward import store
at = int(sys.argv[2])

class Dying(sqlite3.Connection):
    left = at
    def execute(self, *what):
        if self.in_transaction:
            if Dying.left == 0:
                os._exit(9)
            Dying.left -= 1
        return super().execute(*what)

connect = sqlite3.connect
sqlite3.connect = lambda *a, **k: connect(*a, **{**k, "factory": Dying})
store.JudgementStore(sys.argv[1]).close()
"""


@pytest.mark.slow
def test_a_process_killed_while_it_makes_a_store_leaves_one_that_can_be_made(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    path, killed = tmp_path / "s", 0
    for statement in range(20):
        arguments = [sys.executable, "-c", _KILLED, str(path), str(statement)]
        code = subprocess.run(arguments, env=environment, check=False).returncode
        if code == 0:
            break
        assert code == 9
        assert version(path) == 0
        killed += 1
    assert killed > 3
    put(path, [candidate()])
    assert [c for c, _ in read_candidates(path)] == [candidate()]


def test_several_processes_make_a_store_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    threads = [threading.Thread(target=lambda: JudgementStore(path).close()) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert version(path) == store_schema.VERSION
    put(path, [candidate()])
    assert [c for c, _ in read_candidates(path)] == [candidate()]
