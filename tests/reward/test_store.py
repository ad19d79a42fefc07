"""The store of judgements: nothing lost, nothing invented, readable beside a writer, safe from SIGKILL."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.patience import GUARD_S
from vcap_jax.reward import store_schema
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.http_answers import Usage
from vcap_jax.reward.judge_query import instruction_version
from vcap_jax.reward.restudy import Coverage, restudy
from vcap_jax.reward.scores import Scores
from vcap_jax.reward.store import (
    Judgement,
    JudgementKey,
    JudgementStore,
    StoredCandidate,
    StoreError,
    read_candidates,
    read_judgements,
)
from vcap_jax.reward.templates import load_instruction

KEY = JudgementKey(
    model="judge",
    instruction="image",
    version="v1",
    media="m",
    reference="A witness.",
    candidate="A cat.",
    prompt="p",
)


def judgement(correctness: int = 9, completeness: int = 8, third: int = 7) -> Judgement:
    scores = Scores(
        analysis="héllo \u2603",
        correctness=correctness,
        completeness=completeness,
        third=third,
        third_key="Text Quality",
    )
    usage = Usage(prompt_tokens=100, cached_tokens=64, completion_tokens=9)
    return Judgement(answer=scores.as_answer(), usage=usage, seconds=1.5, tries=2)


def key(number: int) -> JudgementKey:
    return replace(KEY, candidate=f"A cat {number}.", prompt=f"p{number}")


def test_a_judgement_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "judgements.sqlite"
    with JudgementStore(path) as store:
        assert store.find([KEY]) == {}
        store.put(KEY, judgement()).result(GUARD_S)
        assert store.find([KEY, key(1)]) == {KEY.digest: judgement()}
    with JudgementStore(path) as store:
        assert store.find([KEY]) == {KEY.digest: judgement()}
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
        assert store.find([other]) == {}


def test_the_version_follows_text_and_schema(tmp_path: Path) -> None:
    packaged = load_instruction("image")
    path = tmp_path / "mine.txt"
    path.write_text(packaged.template.replace("experienced", "strict"))
    versions = {
        instruction_version(packaged, 2000),
        instruction_version(packaged, 1000),
        instruction_version(load_instruction("image", str(path)), 2000),
    }
    assert len(versions) == 3
    assert instruction_version(load_instruction("image"), 2000) in versions


def test_the_first_verdict_stays(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as store:
        store.put(KEY, judgement(9)).result(GUARD_S)
        store.put(KEY, judgement(1)).result(GUARD_S)
        assert store.find([KEY])[KEY.digest].answer["Correctness"] == 9


def test_many_threads_write_and_read_at_once(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as store:
        wrong: list[int] = []

        def work(first: int) -> None:
            for number in range(first, first + 100):
                store.put(key(number), judgement(number % 11)).result(GUARD_S)
                if store.find([key(number)])[key(number).digest].answer["Correctness"] != number % 11:
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
        assert mine.find([key(3)]) == other.find([key(3)])
        assert len(mine) == len(other) == 10


_WRITER = """
import sys
from tests.reward.test_store import judgement, key
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
        assert len(store.find(key(n) for n in range(confirmed + 1))) == confirmed + 1
        store.put(key(-1), judgement()).result(GUARD_S)


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"not a database at all, " * 100)
    with pytest.raises(StoreError, match=r"/s cannot be used.*judge\.store"):
        JudgementStore(path)
    with pytest.raises(StoreError, match="cannot be used"):
        JudgementStore(path / "below a file")
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="version 99"):
        JudgementStore(newer)
    with pytest.raises(StoreError, match="does not exist"):
        list(read_judgements(tmp_path / "absent"))
    with pytest.raises(StoreError, match="version 99"):
        list(read_candidates(newer))


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


# Other weights without a judge


@pytest.fixture
def studied(tmp_path: Path) -> Path:
    """An image candidate, one judged failed, an empty text, and two of a video."""
    path = tmp_path / "s"
    whole, local = key(1), key(2)

    def row(
        place: int, verdicts: dict[str, str | None], reward: float | None, **more: Any
    ) -> StoredCandidate:
        named = {"step": 0, "group": 3, "sample_id": "a", "caption": "x", "family": "judge", "components": {}}
        return StoredCandidate(place=place, verdicts=verdicts, reward=reward, **{**named, **more})

    with JudgementStore(path) as store:
        store.put(whole, judgement(9, 8, 7))
        store.put(local, judgement(4, 3, 2))
        for group in (
            [
                row(0, {"global": whole.digest}, 0.84),
                row(1, {"global": ""}, None),
                row(2, {"global": None}, 0.0),
            ],
            [
                row(0, {"global": whole.digest, "local": local.digest}, 0.874, step=1),
                row(1, {"global": whole.digest, "local": None}, 0.84, step=1),
                row(2, {"global": whole.digest, "local": ""}, None, step=1),
            ],
        ):
            store.put_group(group).result(GUARD_S)
    return path


def test_the_same_weights_give_the_same_rewards_bit_for_bit(studied: Path) -> None:
    rows = list(restudy(studied, RewardWeights()))
    whole, local = 0.05 * 9 + 0.04 * 8 + 0.01 * 7, 0.05 * 4 + 0.04 * 3 + 0.01 * 2
    assert [row.reward for row in rows] == [whole, None, 0.0, whole + 0.1 * local, whole + 0.1 * 0.0, None]


def test_other_weights(studied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = RewardWeights(correctness=0.1, completeness=0.0, text_quality=0.0, local=0.0)
    assert [row.reward for row in restudy(studied, weights)] == [
        pytest.approx(0.9),
        None,
        0.0,
        *[pytest.approx(0.9)] * 3,
    ]
    told = Coverage()
    for row in restudy(studied, weights):
        told.add(row)
    assert (
        str(told) == "6 candidates of 2 steps, 1 of them without a stored answer that they need (reward null)"
    )


def candidate(**fields: Any) -> StoredCandidate:
    given: dict[str, Any] = {
        "step": 0,
        "group": 3,
        "sample_id": "a",
        "place": 0,
        "caption": "y",
        "family": "witness_adjudicator",
        "components": {},
        "verdicts": {"global": None},
        "reward": 0.0,
    }
    return StoredCandidate(**{**given, **fields})


def put(path: Path, *groups: list[StoredCandidate]) -> None:
    with JudgementStore(path) as store:
        for group in groups:
            store.put_group(group).result(GUARD_S)


def test_a_group_that_is_scored_again_replaces_its_rows(studied: Path) -> None:
    again = [candidate(place=0, components={"correctness": 0.0}), candidate(place=1)]
    put(studied, again)
    rows = [row.candidate for row in restudy(studied, RewardWeights())]
    assert rows[:2] == again
    assert [row.step for row in rows] == [0, 0, 1, 1, 1]


def test_a_sample_that_occurs_twice_in_a_step_keeps_the_candidates_of_both_groups(tmp_path: Path) -> None:
    """And a step that is done again replaces exactly what it wrote, whichever group ends first."""
    groups = {
        place: [candidate(group=place, place=k, caption=f"{place} {k}") for k in range(8)]
        for place in (2, 5, 11)
    }
    put(tmp_path / "s", *groups.values())
    put(tmp_path / "s", groups[11], groups[2], groups[5])
    assert [c for c, _ in read_candidates(tmp_path / "s")] == [*groups[2], *groups[5], *groups[11]]


def test_a_group_is_put_whole(tmp_path: Path) -> None:
    with JudgementStore(tmp_path / "s") as store:
        for wrong in ([], [candidate(), candidate(group=4)], [candidate(group=None)]):
            with pytest.raises(ValueError, match="candidates of one group"):
                store.put_group(wrong)
        with pytest.raises(StoreError, match="cannot be written"):
            store.put_group([candidate(place=0), candidate(place=1), candidate(place=1)]).result(GUARD_S)
    assert list(read_candidates(tmp_path / "s")) == []


# A store of version 2, in which a sample has the candidates of one group in a step

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
        assert len(store.find([key(1), key(2)])) == 2
    assert list(read_candidates(old)) == kept
    assert list(read_judgements(old)) == judged
    # Step 1 is done again: its rows take the place of those that did not know their group; those of step 0 stay.
    again = [[candidate(step=1, group=group, place=k) for k in range(3)] for group in (0, 7)]
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


def version(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        found = store_schema.version_of(connection)
    connection.close()
    return found


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


def test_rewards_of_another_family_have_no_such_weights(studied: Path) -> None:
    other = candidate(
        step=9, sample_id="b", family="imitation", components={"cider": 3.0}, verdicts={}, reward=0.3
    )
    put(studied, [other])
    assert [c.components for c, _ in read_candidates(studied)][-1] == {"cider": 3.0}
    with pytest.raises(StoreError, match="family 'imitation'"):
        list(restudy(studied, RewardWeights()))


def test_reading_does_not_wait_for_a_writer(studied: Path) -> None:
    with sqlite3.connect(studied, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        # Who waits for a lock of SQLite's does so for a while and then raises that the database is locked.
        assert len(list(restudy(studied, RewardWeights()))) == 6
        writer.execute("ROLLBACK")
