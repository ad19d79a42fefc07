"""A store of version 2, in which a sample has the candidates of one group in a step: read, and brought up to date."""

import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reward.stored import candidate, key, put
from vcap_jax.reward import store_schema
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.restudy import Coverage, restudy
from vcap_jax.reward.store import (
    JudgementStore,
    read_candidates,
    read_judgements,
)

_VERSION_2 = """
CREATE TABLE judgements (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, instruction TEXT NOT NULL, version TEXT NOT NULL,
    media TEXT NOT NULL, reference TEXT, candidate TEXT NOT NULL,
    answer TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL, tries INTEGER NOT NULL, stored_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE candidates (
    step INTEGER NOT NULL, sample_id TEXT NOT NULL, place INTEGER NOT NULL, caption TEXT NOT NULL,
    family TEXT NOT NULL, components TEXT NOT NULL, verdicts TEXT NOT NULL, reward REAL,
    PRIMARY KEY (step, sample_id, place)
) WITHOUT ROWID;
"""


@pytest.fixture
def old(studied: Path, tmp_path: Path) -> Path:
    """What the version before would have kept of ``studied``, written by its statements."""
    path = tmp_path / "old"
    with sqlite3.connect(path) as writer, sqlite3.connect(studied) as reader:
        writer.executescript(f"PRAGMA journal_mode = WAL; {_VERSION_2} PRAGMA user_version = 2;")
        judgements = reader.execute("SELECT * FROM judgements").fetchall()
        writer.executemany(f"INSERT INTO judgements VALUES ({', '.join('?' * 14)})", judgements)
        names = "step, sample_id, place, caption, family, components, verdicts, reward"
        candidates = reader.execute(f"SELECT {names} FROM candidates").fetchall()
        writer.executemany(f"INSERT INTO candidates VALUES ({', '.join('?' * 8)})", candidates)
    writer.close()
    reader.close()
    return path


def test_a_store_of_version_2_is_read_as_it_is(old: Path, studied: Path, capsys: Any) -> None:
    before = old.read_bytes()
    expected = [(replace(c, group=None), answers) for c, answers in read_candidates(studied)]
    assert list(read_candidates(old)) == expected
    assert len(list(read_judgements(old))) == 2
    assert [row.reward for row in restudy(old, RewardWeights())] == [
        row.reward for row in restudy(studied, RewardWeights())
    ]
    told = Coverage()
    for row in restudy(old, RewardWeights()):
        told.add(row)
    assert "6 were stored by a program that kept one group alone of a sample" in str(told)
    assert old.read_bytes() == before


def test_a_run_goes_on_with_a_store_of_version_2(old: Path) -> None:
    kept = list(read_candidates(old))
    judged = list(read_judgements(old))
    with JudgementStore(old) as store:
        assert store.find(key(1)) is not None
        assert store.find(key(2)) is not None
    assert list(read_candidates(old)) == kept
    assert list(read_judgements(old)) == judged
    # Step 1 is done again: its rows take the place of those that did not know their group; those of step 0 stay.
    again = [[candidate(step=1, group=group, index=k) for k in range(3)] for group in (0, 7)]
    put(old, *again)
    assert [c for c, _ in read_candidates(old)] == [*(c for c, _ in kept[:3]), *again[0], *again[1]]


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


def version(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        found = store_schema.version_of(connection)
    connection.close()
    return found


@pytest.mark.slow
def test_a_process_killed_while_it_brings_a_store_up_to_date_leaves_it_as_it_was(old: Path) -> None:
    kept, judged = list(read_candidates(old)), list(read_judgements(old))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    killed = 0
    for statement in range(20):
        arguments = [sys.executable, "-c", _KILLED, str(old), str(statement)]
        code = subprocess.run(arguments, env=environment, check=False).returncode
        assert list(read_candidates(old)) == kept
        assert list(read_judgements(old)) == judged
        if code == 0:
            break
        assert code == 9
        assert version(old) == 2
        killed += 1
    assert killed > 5
    assert version(old) == store_schema.VERSION


def test_several_processes_bring_a_store_up_to_date_once(old: Path) -> None:
    kept = list(read_candidates(old))
    threads = [threading.Thread(target=lambda: JudgementStore(old).close()) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(read_candidates(old)) == kept
    assert version(old) == store_schema.VERSION


def test_a_store_that_version_2_was_killed_at_making_can_be_used(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s") as writer:
        writer.executescript(_VERSION_2)
    writer.close()
    put(tmp_path / "s", [candidate()])
    assert [c for c, _ in read_candidates(tmp_path / "s")] == [candidate()]
