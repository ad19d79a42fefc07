"""Which samples are read and scored when: several at once, few ahead, in order."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.patience import GUARD_S
from vcap_jax.data import storage
from vcap_jax.data.errors import MediaError, StorageError
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.evals.protocol import Captions, OwnData
from vcap_jax.evals.scoring import scored
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.session import RewardSession
from vcap_jax.system import in_work
from vcap_jax.system.shutdown import Stopped


class Session:
    """Scores at once, or never. groups: what it was asked, in order."""

    unreachable = None

    def __init__(self, *, answers: bool = True, places: int = 0) -> None:
        self.places = places
        self.groups: list[GroupForReward] = []
        self.kept: list[bool] = []
        self._answers = answers

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def submit(self, group: GroupForReward, *, trained_on: bool) -> Future[GroupScores]:
        self.groups.append(group)
        self.kept.append(trained_on)
        future: Future[GroupScores] = Future()
        if self._answers:
            scores = (CandidateScore(reward=1.0),)
            future.set_result(GroupScores(sample_id=group.sample_id, step=0, candidates=scores))
        return future


def samples(count: int) -> tuple[Sample, ...]:
    return tuple(Sample(id=f"s{i}", images=(Path(f"s{i}.png"),)) for i in range(count))


def captions(count: int) -> list[Captions]:
    return [Captions(id=f"s{i}", texts=("A disc.",)) for i in range(count)]


def media(duration: float = 0.0) -> EncodedMedia:
    return EncodedMedia(modality="image", duration=duration, pictures=())


def test_several_samples_are_read_at_once_and_asked_about_in_order() -> None:
    session = Session()
    together = threading.Barrier(3)

    def read(sample: Sample) -> EncodedMedia:
        together.wait(GUARD_S)  # nobody goes on before three are here
        if sample.id == "s4":
            raise MediaError("s4.png is cut")
        return media(float(sample.id[1:]))

    own = OwnData(
        samples=samples(10), references=None, session=cast(RewardSession, session), media=read, threads=3
    )
    given = captions(10)
    given[2] = Captions(id="s2", failure="nobody captioned it")
    found = list(scored(own, given))
    assert [one.captions.id for one in found] == [f"s{i}" for i in range(10)]
    assert {one.captions.id: one.unasked for one in found if one.scores is None} == {
        "s2": "nobody captioned it",
        "s4": "s4.png is cut",
    }
    asked = [group for group in session.groups if isinstance(group.media, EncodedMedia)]
    assert [(group.sample_id, group.index) for group in asked] == [
        (f"s{i}", i) for i in (0, 1, 3, *range(5, 10))
    ]
    assert all(f"s{group.media.duration:g}" == group.sample_id for group in asked)


@pytest.mark.parametrize("kept", [True, False])
def test_a_sample_has_the_same_reference_whatever_its_place_and_one_judge_keeps_what_it_earned(
    kept: bool,
) -> None:
    """One judge's reward beside another's: only the first is what the store is for."""
    pool = ReferencePool(
        PoolEntry(id=f"s{i}", references=tuple(f"{k} of s{i}" for k in range(4))) for i in range(9)
    )
    first, other = Session(), Session()
    own = OwnData(
        samples=samples(9),
        references=pool,
        session=cast(RewardSession, first),
        other=cast(RewardSession, other),
        media=lambda sample: media(),
        seed=3,
    )
    found = list(scored(own, captions(9), kept=kept, places=[10 * i for i in range(9)]))
    assert all(one.scores is not None and one.other is not None for one in found)
    for group in first.groups:
        assert group.reference == pool.pick(group.sample_id, 3, 0)
        assert group.references == pool[group.sample_id].references
        assert group.step == 0
    assert [group.index for group in first.groups] == [10 * i for i in range(9)]
    assert other.groups == first.groups
    assert (set(first.kept), set(other.kept)) == ({kept}, {False})


def test_few_samples_are_read_ahead_and_a_stop_is_heard_while_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_work, "LOOK_EVERY_S", 0.001)
    read: list[str] = []

    def fast(sample: Sample) -> EncodedMedia:
        read.append(sample.id)
        return media()

    def stuck(sample: Sample) -> EncodedMedia:
        ended.wait(GUARD_S)
        return media()

    # Nobody answers: 32 are under way, and two for each thread are read.
    own = OwnData(
        samples=samples(100),
        references=None,
        session=cast(RewardSession, Session(answers=False)),
        media=fast,
        stop=lambda: len(read) >= 32 + 2 * 3,
        threads=3,
    )
    with pytest.raises(Stopped):
        list(scored(own, captions(100)))
    assert len(read) == 32 + 2 * 3
    ended = threading.Event()
    own = OwnData(
        samples=samples(2),
        references=None,
        session=cast(RewardSession, Session()),
        media=stuck,
        stop=lambda: True,
    )
    with pytest.raises(Stopped):
        list(scored(own, captions(2)))
    ended.set()


def test_as_many_samples_are_at_the_judge_as_fill_its_places() -> None:
    """One caption of each with 128 places, eight of each with 1,024."""
    for texts, places in ((1, 128), (8, 1024)):
        session = Session(answers=False, places=places)

        own = OwnData(
            samples=samples(200),
            references=None,
            session=cast(RewardSession, session),
            media=lambda sample: media(),
            stop=lambda session=session: len(session.groups) > 128,
        )
        given = [Captions(id=f"s{i}", texts=("A disc.",) * texts) for i in range(200)]
        with pytest.raises(Stopped):
            list(scored(own, given))
        assert len(session.groups) == 129


def test_a_stop_is_heard_where_the_judge_answers_at_once() -> None:
    session = Session()
    own = OwnData(
        samples=samples(100),
        references=None,
        session=cast(RewardSession, session),
        media=lambda sample: media(),
        stop=lambda: len(session.groups) >= 40,
    )
    with pytest.raises(Stopped, match="stopped in an evaluation"):
        list(scored(own, captions(100)))
    assert len(session.groups) == 40


def test_a_sample_whose_storage_is_gone_is_not_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation that counted it would be complete, and lack what a lost server had for a moment."""
    slept = list[float]()
    monkeypatch.setattr(storage, "time", SimpleNamespace(sleep=slept.append))

    def read(sample: Sample) -> EncodedMedia:
        raise StorageError(f"{sample.id}.png: Stale file handle")

    own = OwnData(samples=samples(1), references=None, session=cast(RewardSession, Session()), media=read)
    with pytest.raises(StorageError, match=r"s0\.png: Stale file handle, not within 30 s"):
        list(scored(own, captions(1)))
    assert sum(slept) == 30


def test_samples_of_a_folder_that_is_no_longer_mounted_have_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But one that was never there has."""
    monkeypatch.setattr(storage, "time", SimpleNamespace(sleep=lambda seconds: None))
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    there = tuple(Sample(id=f"s{i}", images=(mounted / f"s{i}.png",)) for i in range(4))
    for i in (0, 2, 3):
        there[i].images[0].touch()
    unmounted = threading.Event()

    def read(sample: Sample) -> EncodedMedia:
        if sample.id == "s2" and unmounted.is_set() and mounted.exists():
            mounted.rename(tmp_path / "away")
        storage.look(sample.images[0])
        return media()

    own = OwnData(
        samples=there, references=None, session=cast(RewardSession, Session()), media=read, threads=1
    )
    assert [one.unasked is None for one in scored(own, captions(4))] == [True, False, True, True]
    unmounted.set()
    with pytest.raises(StorageError, match=r"s2\.png: no such file, and .*s0\.png, which was read before"):
        list(scored(own, captions(4)))
