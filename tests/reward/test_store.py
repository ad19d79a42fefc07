"""The store of judgements: nothing lost, nothing invented, readable beside a writer, safe from SIGKILL."""

import json
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
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.asking import instruction_version
from vcap_jax.reward.http_answers import Usage
from vcap_jax.reward.restudy import main, restudy
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
        named = {"step": 0, "sample_id": "a", "caption": "x", "family": "judge", "components": {}, **more}
        return StoredCandidate(place=place, verdicts=verdicts, reward=reward, **named)

    with JudgementStore(path) as store:
        store.put(whole, judgement(9, 8, 7))
        store.put(local, judgement(4, 3, 2))
        for future in store.put_candidates(
            [
                row(0, {"global": whole.digest}, 0.84),
                row(1, {"global": ""}, None),
                row(2, {"global": None}, 0.0),
                row(0, {"global": whole.digest, "local": local.digest}, 0.874, step=1),
                row(1, {"global": whole.digest, "local": None}, 0.84, step=1),
                row(2, {"global": whole.digest, "local": ""}, None, step=1),
            ]
        ):
            future.result(GUARD_S)
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
    assert main([str(studied), "--correctness", "0.1", "--completeness", "0"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"step": 0, "id": "a", "place": 0, "was": 0.84, "reward": pytest.approx(0.97)}
    assert len(lines) == 6
    assert main([str(studied / "absent")]) == 1
    assert "does not exist" in capsys.readouterr().err


def add(path: Path, **fields: Any) -> StoredCandidate:
    """A candidate put into the store at ``path``."""
    candidate = StoredCandidate(place=1, caption="y", **fields)
    with JudgementStore(path) as store:
        for future in store.put_candidates([candidate]):
            future.result(GUARD_S)
    return candidate


def test_a_step_that_is_done_again_replaces_its_rows(studied: Path) -> None:
    again = add(
        studied,
        step=0,
        sample_id="a",
        family="witness_adjudicator",
        components={"correctness": 0.0},
        verdicts={"global": None},
        reward=0.0,
    )
    rows = list(restudy(studied, RewardWeights()))
    assert len(rows) == 6
    assert rows[1].candidate == again


def test_rewards_of_another_family_have_no_such_weights(studied: Path) -> None:
    add(
        studied,
        step=9,
        sample_id="b",
        family="imitation",
        components={"cider": 3.0},
        verdicts={},
        reward=0.3,
    )
    assert [c.components for c, _ in read_candidates(studied)][-1] == {"cider": 3.0}
    with pytest.raises(StoreError, match="family 'imitation'"):
        list(restudy(studied, RewardWeights()))


def test_reading_does_not_wait_for_a_writer(studied: Path) -> None:
    with sqlite3.connect(studied, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        # Who waits for a lock of SQLite's does so for a while and then raises that the database is locked.
        assert len(list(restudy(studied, RewardWeights()))) == 6
        writer.execute("ROLLBACK")
