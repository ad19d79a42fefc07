"""The store of judgements: nothing lost, nothing invented, readable beside a writer, safe from SIGKILL."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.patience import GUARD_S
from tests.reward.stored import KEY, candidate, judgement, key, put
from vcap_jax.reward import store as store_module
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.judge_query import verdict_form
from vcap_jax.reward.restudy import restudy
from vcap_jax.reward.store import (
    JudgementStore,
    StoreError,
    forget_candidates,
    read_candidates,
    read_judgements,
)
from vcap_jax.reward.templates import load_instruction


def test_a_judgement_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "judgements.sqlite"
    with JudgementStore(path) as store:
        assert store.find(KEY) is None
        store.put(KEY, judgement()).result(GUARD_S)
        assert store.find(KEY) == judgement()
        assert store.find(key(1)) is None
    with JudgementStore(path) as store:
        assert store.find(KEY) == judgement()
        assert len(store) == 1
    ((found, stored),) = read_judgements(path)
    assert (found, stored) == (replace(KEY, version="v1", prompt=""), judgement())


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"instruction": "video_segment"},
        {"version": "v2"},
        {"media": "n"},
        {"reference": "Another."},
        {"reference": None},
        {"reference": ""},
        {"candidate": "A dog."},
        {"prompt": "q"},
    ],
)
def test_everything_that_decides_a_verdict_is_in_its_key(tmp_path: Path, change: dict[str, Any]) -> None:
    other = replace(KEY, **change)
    assert other.digest != KEY.digest
    with JudgementStore(tmp_path / "s") as store:
        store.put(KEY, judgement()).result(GUARD_S)
        assert store.find(other) is None


def test_the_version_follows_text_and_schema(tmp_path: Path) -> None:
    packaged = load_instruction("image")
    path = tmp_path / "mine.txt"
    path.write_text(packaged.template.replace("experienced", "strict"))
    versions = {
        verdict_form(packaged, 2000).version,
        verdict_form(packaged, 1000).version,
        verdict_form(load_instruction("image", str(path)), 2000).version,
    }
    assert len(versions) == 3
    assert verdict_form(load_instruction("image"), 2000).version in versions


def test_the_first_verdict_stays(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as store:
        store.put(KEY, judgement(9)).result(GUARD_S)
        store.put(KEY, judgement(1)).result(GUARD_S)
        assert store.find(KEY) == judgement(9)


def test_many_threads_write_and_read_at_once(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as store:
        wrong: list[int] = []

        def work(first: int) -> None:
            for number in range(first, first + 100):
                store.put(key(number), judgement(number % 11)).result(GUARD_S)
                if store.find(key(number)) != judgement(number % 11):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(100 * t,)) for t in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD_S)
        assert wrong == []
        assert len(store) == 800


def test_two_processes_share_a_file(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as mine, JudgementStore(tmp_path / "s") as other:
        futures = [store.put(key(k), judgement(k)) for k in range(10) for store in (mine, other)]
        for future in futures:
            future.result(GUARD_S)
        assert mine.find(key(3)) == other.find(key(3))
        assert len(mine) == len(other) == 10


_WRITER = """
import sys
from tests.reward.stored import judgement, key
from vcap_jax.reward.store import JudgementStore
store = JudgementStore(sys.argv[1])
for number in range(1_000_000):
    store.put(key(number), judgement(number % 11)).result()
    print(number, flush=True)
"""


def test_what_was_confirmed_survives_sigkill_and_others_read_meanwhile(tmp_path: Path) -> None:
    path, root = tmp_path / "s", Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    confirmed = -1
    for line in process.stdout:
        confirmed = int(line)
        if confirmed == 60:
            assert sum(1 for _ in read_judgements(path)) >= 61  # while it is being written
            os.kill(process.pid, signal.SIGKILL)
            break
    confirmed = max([confirmed, *(int(line) for line in process.stdout)])
    assert process.wait(GUARD_S) == -signal.SIGKILL
    assert sum(1 for _ in read_judgements(path)) >= confirmed + 1
    with JudgementStore(path) as store:
        assert all(store.find(key(n)) is not None for n in range(confirmed + 1))
        store.put(key(-1), judgement()).result(GUARD_S)


def test_rows_are_read_as_they_are_asked_for_while_a_writer_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's store has a million rows."""
    path, opened = tmp_path / "s", store_module._opened
    fetched: list[tuple[Any, ...]] = []

    def noted(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        fetched.append(row)
        return row

    def noting(*given: Any) -> sqlite3.Connection:
        connection = opened(*given)
        connection.row_factory = noted
        return connection

    put(path, *([candidate(step=step)] for step in range(50)))
    with JudgementStore(path) as store:
        for number in range(50):
            store.put(key(number), judgement()).result(GUARD_S)
        monkeypatch.setattr(store_module, "_opened", noting)
        candidates, judgements = read_candidates(path), read_judgements(path)
        next(candidates)
        next(judgements)
        assert 0 < len(fetched) < 20
        # It waits for no reader, and no reader sees it.
        store.put(KEY, judgement()).result(GUARD_S)
        forget_candidates(path, step=7)
        assert [one.step for one, _ in candidates] == [*range(1, 50)]
        assert [found.candidate for found, _ in judgements] == [key(n).candidate for n in range(1, 50)]
        assert len(store) == 51


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"not a database at all, " * 100)
    with pytest.raises(StoreError, match=r"/s cannot be used.*judge\.store"):
        JudgementStore(path)
    with pytest.raises(StoreError, match="cannot be used"):
        JudgementStore(path / "below a file")
    for read in (read_candidates, read_judgements):
        with pytest.raises(StoreError, match=r"/s cannot be read .*not a database"):
            list(read(path))
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="version 99"):
        JudgementStore(newer)
    with pytest.raises(StoreError, match="does not exist"):
        list(read_judgements(tmp_path / "absent"))
    with pytest.raises(StoreError, match="version 99"):
        list(read_candidates(newer))


def test_a_store_is_read_where_no_file_can_be_made_beside_it(studied: Path) -> None:
    # Permissions do not hold for root, so what SQLite would make leads nowhere.
    Path(f"{studied}-shm").symlink_to(studied.parent / "absent" / "shm")
    assert len(list(restudy(studied, RewardWeights()))) == len(list(read_candidates(studied))) > 0
    assert len(list(read_judgements(studied))) > 0
    # With a log beside it not all is in the file.
    Path(f"{studied}-wal").write_bytes(b"a log")
    with pytest.raises(StoreError, match="or a copy of its folder where that may not be written to"):
        list(read_candidates(studied))


def test_a_store_that_is_damaged_while_it_is_open_is_named(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as store:
        with closing(sqlite3.connect(tmp_path / "s")) as other:
            other.execute("DROP TABLE judgements")
        with pytest.raises(StoreError, match="/s cannot be read"):
            store.find(KEY)
        with pytest.raises(StoreError, match="/s cannot be read"):
            len(store)


def test_a_write_that_fails_says_so_to_whoever_waits(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as store:
        bad = replace(judgement(), seconds=None)  # type: ignore[arg-type]
        with pytest.raises(StoreError, match="cannot be written"):
            store.put(KEY, bad).result(GUARD_S)
        unwritable = replace(KEY, candidate="half of a pair: \ud83d")
        with pytest.raises(StoreError, match="cannot be written"):
            store.put(unwritable, judgement()).result(GUARD_S)
        store.put(key(1), judgement()).result(GUARD_S)
        assert len(store) == 1


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = JudgementStore(tmp_path / "s")
    future = store.put(KEY, judgement())
    store.close()
    store.close()
    assert future.done()
    with pytest.raises(RuntimeError, match="closed"):
        store.put(KEY, judgement())


def test_a_group_that_is_scored_again_replaces_its_rows(studied: Path) -> None:
    again = [candidate(index=0, components={"correctness": 0.0}), candidate(index=1)]
    put(studied, again)
    rows = [row.candidate for row in restudy(studied, RewardWeights())]
    assert rows[:2] == again
    assert [row.step for row in rows] == [0, 0, 1, 1, 1]


def test_candidates_of_a_step_are_forgotten_and_no_answers_while_the_store_is_open(studied: Path) -> None:
    with JudgementStore(studied) as store:
        before = len(store)
        forget_candidates(studied, step=0)
        assert len(store) == before > 0
    assert {one.step for one, _ in read_candidates(studied)} == {1}


def test_a_sample_that_occurs_twice_in_a_step_keeps_the_candidates_of_both_groups(tmp_path: Path) -> None:
    """And a step that is done again replaces exactly what it wrote, whichever group ends first."""
    groups = {
        place: [candidate(group=place, index=k, caption=f"{place} {k}") for k in range(8)]
        for place in (2, 5, 11)
    }
    put(tmp_path / "s", *groups.values())
    put(tmp_path / "s", groups[11], groups[2], groups[5])
    assert [c for c, _ in read_candidates(tmp_path / "s")] == [*groups[2], *groups[5], *groups[11]]


def test_a_group_is_put_whole(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as store:
        for wrong in ([], [candidate(), candidate(group=4)]):
            with pytest.raises(ValueError, match="candidates of one group"):
                store.put_group(wrong)
        with pytest.raises(StoreError, match="cannot be written"):
            store.put_group([candidate(index=0), candidate(index=1), candidate(index=1)]).result(GUARD_S)
    assert list(read_candidates(tmp_path / "s")) == []


def test_a_place_without_locks_is_told_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lustre mounted without -o flock; it was told once judges and policy were loaded."""
    store_module.check_place(tmp_path / "run")  # to be made there
    store_module.check_place(tmp_path / "far" / "away")  # nothing is known of it from here
    assert list(tmp_path.iterdir()) == []

    def locked(path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store_module, "_connect", locked)
    with pytest.raises(
        StoreError, match=r"no store of judgements \(disk I/O error\).*-o flock.*judge\.store"
    ):
        store_module.check_place(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (sqlite3.SQLITE_FULL, "leave the file there"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "leave the file there"),
        (sqlite3.SQLITE_NOTADB, "move it away"),
    ],
)
def test_on_a_full_disk_nobody_is_told_to_move_the_answers_away(
    code: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> sqlite3.Connection:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(store_module, "_connect", full)
    with pytest.raises(StoreError, match=remedy):
        JudgementStore(tmp_path / "judgements.sqlite")
