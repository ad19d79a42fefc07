"""Choosing the best of N: the rule, what it counts, and scoring that goes on after a kill."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.signals import ask_to_stop
from vcap_jax.data.errors import MediaError, NoUsableSamplesError, StorageError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.parallel.processes import ALONE
from vcap_jax.recipes.best_of_n import best_candidate, choose_best, score_candidates
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import CandidateScore, GroupScores
from vcap_jax.system.shutdown import Stopped


@pytest.mark.parametrize(
    ("rewards", "best"),
    [
        ([0.1, 0.9, 0.5], 1),
        ([0.5, 0.9, 0.9], 1),
        ([None, 0.2, None], 1),
        ([None, 0.0, 0.0], 1),
        ([-1.0, None], 0),
        # Equal but for the rounding of their sums: scores of 0, 6, 4 and of 4, 1, 4.
        ([0.05 * 4 + 0.04 * 1 + 0.01 * 4, 0.05 * 0 + 0.04 * 6 + 0.01 * 4], 0),
        ([0.05 * 0 + 0.04 * 6 + 0.01 * 4, 0.05 * 4 + 0.04 * 1 + 0.01 * 4], 0),
        ([None, None], None),
        ([], None),
    ],
)
def test_the_highest_reward_wins_and_among_equals_the_first(rewards, best) -> None:
    assert best_candidate(rewards) == best


def test_the_choice_is_counted(tmp_path: Path) -> None:
    candidates = ReferencePool(
        PoolEntry(id=i, references=tuple(f"{i}{k}" for k in range(3))) for i in ("a", "b", "c", "d")
    )
    rows = {"a": [0.2, 0.8, 0.8], "b": [None, 0.4, 0.1], "c": [None, None, None], "d": [0.3, 0.2, 0.1]}
    path = tmp_path / "scores.jsonl"
    path.write_text(
        "".join(
            json.dumps({"place": p, "id": i, "rewards": r}) + "\n" for p, (i, r) in enumerate(rows.items())
        )
    )
    best, selection = choose_best(path, candidates)
    assert {e.id: e.references for e in best.entries()} == {"a": ("a1",), "b": ("b1",), "d": ("d0",)}
    known = [r for row in rows.values() for r in row if r is not None]
    assert (selection.samples, selection.without, selection.failed, selection.ties) == (3, 1, 4, 1)
    assert selection.candidates == len(known)
    assert selection.mean == pytest.approx(np.mean(known))
    assert selection.best == pytest.approx(np.mean([0.8, 0.4, 0.3]))


def test_no_score_at_all_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text('{"place": 0, "id": "a", "rewards": [null]}\n')
    with pytest.raises(NoUsableSamplesError, match=r"scores\.jsonl: not a single candidate"):
        choose_best(path, ReferencePool([PoolEntry(id="a", references=("x",))]))


@pytest.fixture(autouse=True)
def pictures(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("pictures"))
    Path("x.png").touch()


class Session:
    """Rewards a caption by its number; counts what it was asked; ends the run at group ``dies``."""

    places = 0

    def __init__(self, dies: str = "") -> None:
        self.asked: list[str] = []
        self.references: dict[str, str] = {}
        self._dies = dies

    def submit(self, group) -> Future:
        future: Future = Future()
        if group.sample_id == self._dies:
            future.set_exception(ConnectionError("the judge is gone"))
            return future
        self.asked.append(group.sample_id)
        self.references[group.sample_id] = group.reference
        scores = tuple(
            CandidateScore(reward=None, failure=Failure(reason="timeout", detail=""))
            if text == "unscored"
            else CandidateScore(reward=float(text))
            for text in group.captions
        )
        future.set_result(GroupScores(sample_id=group.sample_id, step=0, candidates=scores))
        return future


def load(sample: Sample):
    if sample.id == "s3":
        raise MediaError("damaged")
    return SimpleNamespace(sample=sample, media=None)


SAMPLES = [Sample(id=f"s{i}", images=(Path("x.png"),)) for i in range(6)]
CANDIDATES = ReferencePool(PoolEntry(id=s.id, references=(f"0.{s.id[1]}", "unscored")) for s in SAMPLES)
WITNESSES = ReferencePool(PoolEntry(id=s.id, references=(f"witness of {s.id}",)) for s in SAMPLES)


def score(
    path: Path, session: Session, bad: list, on_bad_sample: str = "skip", samples: list[Sample] = SAMPLES
) -> None:
    data = SimpleNamespace(reading_threads=1, prefetch=None, on_bad_sample=on_bad_sample)
    ctx: Any = SimpleNamespace(
        config=SimpleNamespace(seed=0, data=data),
        reader=lambda *, judged: load,
        say=lambda _: None,
        report_bad_sample=bad.append,
        processes=ALONE,
    )
    score_candidates(path, ctx, CANDIDATES, samples, session, WITNESSES)


def test_scores_are_written_in_order_and_asked_for_once(tmp_path: Path) -> None:
    path, bad = tmp_path / "new" / "scores.jsonl", []
    broken = Session(dies="s4")
    with pytest.raises(ConnectionError):
        score(path, broken, bad)
    assert not path.exists()
    partial = path.with_name("scores.jsonl.partial")
    partial.write_text(partial.read_text() + '{"place": 5, "i')
    again = Session()
    score(path, again, bad)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["id"] for row in rows] == ["s0", "s1", "s2", "s4", "s5"]
    assert rows[1]["rewards"] == [0.1, None]
    assert "s0" not in again.asked
    assert again.references["s4"] == "witness of s4"
    assert {b.id for b in bad} == {"s3"}
    untouched = Session()
    score(path, untouched, bad)
    assert untouched.asked == []


def test_it_goes_on_where_only_samples_that_cannot_be_read_are_left(tmp_path: Path) -> None:
    path, bad = tmp_path / "scores.jsonl", []
    path.with_name("scores.jsonl.partial").write_text('{"place": 2, "id": "s2", "rewards": [0.2]}\n')
    again = Session()
    score(path, again, bad, samples=SAMPLES[:4])
    assert (again.asked, [b.id for b in bad]) == ([], ["s3"])
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["s2"]


def test_an_attempt_is_not_gone_on_with_while_its_pictures_are_away(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    with pytest.raises(ConnectionError):
        score(path, Session(dies="s2"), [])
    Path("x.png").unlink()
    untouched = Session()
    with pytest.raises(StorageError, match=r"x\.png, which was read before, is not there any more"):
        score(path, untouched, [])
    assert untouched.asked == []
    Path("x.png").touch()
    score(path, Session(), [])
    assert len(path.read_text().splitlines()) == 5


def test_a_sample_that_cannot_be_read_may_be_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=r"sample s3: damaged.*data\.on_bad_sample"):
        score(tmp_path / "scores.jsonl", Session(), [], "refuse")
    assert not (tmp_path / "scores.jsonl").exists()


def test_a_signal_ends_it_once_what_is_at_the_judge_is_scored(tmp_path: Path) -> None:
    class Signalled(Session):
        def submit(self, group) -> Future:
            if group.sample_id == "s2":
                ask_to_stop()
            return super().submit(group)

    path, stopped, again = tmp_path / "scores.jsonl", Signalled(), Session()
    with pytest.raises(Stopped, match="stopped with 3 of 6 samples scored"):
        score(path, stopped, [])
    assert stopped.asked == ["s0", "s1", "s2"]
    score(path, again, [])
    assert again.asked == ["s4", "s5"]
