"""Pieces of work that others do: begun as others end, given as they end or in order, cancelled when nobody waits."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future

import pytest

from vcap_jax.system import in_work
from vcap_jax.system.in_work import arrived, as_they_end, in_order, ready, together, until_ended


class Work:
    """Pieces whose ends the test decides. begun: in their order."""

    def __init__(self, *ended: int) -> None:
        """ended: numbers of pieces that have ended when they begin, with their number."""
        self.begun: list[Future[int]] = []
        self._ended = ended

    def pieces(self, count: int) -> Iterator[Future[int]]:
        for number in range(count):
            piece: Future[int] = ready(number) if number in self._ended else Future()
            self.begun.append(piece)
            yield piece


class Enough(Exception):
    pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_work, "LOOK_EVERY_S", 0.001)


def test_the_next_begins_when_any_has_ended() -> None:
    work = Work(1, 2, 3)
    found = as_they_end(work.pieces(6), 2)
    assert [next(found) for _ in range(3)] == [(1, 1), (2, 2), (3, 3)]
    assert len(work.begun) == 4  # the first is still in work, and one at a time beside it
    work.begun[0].set_result(0)
    assert next(found) == (0, 0)


def test_no_more_are_in_work_than_were_asked_for() -> None:
    work, most = Work(), 0
    looks = 0

    def look() -> None:
        nonlocal most, looks
        looks += 1
        most = max(most, sum(not piece.done() for piece in work.begun))
        if looks % 7 == 0:
            next(piece for piece in work.begun if not piece.done()).set_result(0)

    assert sorted(number for number, _ in as_they_end(work.pieces(20), 3, look=look)) == list(range(20))
    assert most == 3


def test_an_order_is_kept_and_a_slow_one_keeps_none_from_being_begun() -> None:
    work = Work(*range(1, 9))

    def look() -> None:
        if len(work.begun) == 9 and not work.begun[0].done():
            work.begun[0].set_result(0)

    assert list(in_order(work.pieces(9), 2, look=look)) == list(range(9))


def test_no_more_wait_for_their_turn_than_may_be_held() -> None:
    work = Work(*range(1, 30))
    begun: list[int] = []

    def look() -> None:
        if work.begun and not work.begun[0].done() and waiting():
            begun.append(len(work.begun))
            work.begun[0].set_result(0)

    def waiting() -> bool:
        return len(work.begun) >= 6

    assert list(in_order(work.pieces(30), 2, held=5, look=look)) == list(range(30))
    assert begun == [6]  # the slow one and five that wait for it


def test_what_is_in_work_is_cancelled_when_nobody_wants_it_any_more() -> None:
    work = Work(0)
    found = in_order(work.pieces(5), 3)
    assert next(found) == 0
    found.close()
    assert [piece.cancelled() for piece in work.begun[1:]] == [True] * (len(work.begun) - 1)

    work = Work(0)
    with pytest.raises(Enough):
        list(in_order(work.pieces(5), 3, look=_after(4)))
    assert all(piece.cancelled() for piece in work.begun[1:])


def _after(looks: int) -> Callable[[], None]:
    left = iter(range(looks))

    def look() -> None:
        if next(left, None) is None:
            raise Enough

    return look


def test_an_error_of_a_piece_ends_everything_at_once_where_there_is_no_order() -> None:
    failed, other = broken(), Future[int]()
    with pytest.raises(ValueError, match="broken"):
        list(as_they_end(iter([other, failed]), 2))
    assert other.cancelled()


def broken() -> Future[int]:
    failed: Future[int] = Future()
    failed.set_exception(ValueError("broken"))
    return failed


def test_an_error_waits_for_its_turn_and_nothing_is_begun_meanwhile() -> None:
    slow, begun = Future[int](), list[Future[int]]()

    def pieces() -> Iterator[Future[int]]:
        for piece in (slow, ready(1), broken(), ready(3), ready(4), ready(5)):
            begun.append(piece)
            yield piece

    def look() -> None:
        if len(begun) == 3 and begun[2].done() and not slow.done():
            looks.append(1)
            if len(looks) == 5:
                slow.set_result(0)

    looks: list[int] = []
    found = in_order(pieces(), 2, look=look)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ValueError, match="broken"):
        next(found)
    assert len(begun) == 3


def test_a_look_is_taken_before_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where answers come so often that no wait lasts long."""
    monkeypatch.setattr(in_work, "LOOK_EVERY_S", 1000)
    work = Work()

    def look() -> None:
        left = [piece for piece in work.begun if not piece.done()]
        if len(work.begun) == 6 and left:
            left[0].set_result(0)

    assert [number for number, _ in as_they_end(work.pieces(6), 6, look=look)] == list(range(6))


def test_nothing_is_nothing() -> None:
    assert list(in_order(iter(()), 2)) == []
    assert together([], list).result() == []


def test_several_end_together_with_the_results_in_their_order() -> None:
    pieces: list[Future[int]] = [Future(), Future()]
    whole = together(pieces, list)
    pieces[1].set_result(1)
    assert not whole.done()
    pieces[0].set_result(0)
    assert whole.result() == [0, 1]


def test_the_first_error_of_several_is_that_of_the_whole() -> None:
    pieces: list[Future[int]] = [Future(), Future(), Future()]
    whole = together(pieces, list)
    pieces[1].set_exception(ValueError("first"))
    pieces[0].set_exception(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        whole.result(0)


def test_an_error_of_what_is_made_of_the_results_is_the_wholes() -> None:
    def use(results: list[int]) -> int:
        raise ValueError(f"no use for {results}")

    with pytest.raises(ValueError, match=r"no use for \[1, 2\]"):
        together([ready(1), ready(2)], use).result(0)


def test_several_are_cancelled_by_the_whole_and_the_whole_by_one() -> None:
    pieces: list[Future[int]] = [Future(), Future()]
    assert together(pieces, list).cancel()
    assert all(piece.cancelled() for piece in pieces)
    pieces = [Future(), Future()]
    whole = together(pieces, list)
    pieces[0].cancel()
    with pytest.raises(CancelledError):
        whole.result(0)
    assert pieces[1].cancelled()


def test_waiting_for_one_looks_and_may_be_ended() -> None:
    piece: Future[int] = Future()
    with pytest.raises(Enough):
        until_ended(piece, _after(2))
    assert until_ended(ready(3), _after(0)).result() == 3
    at: queue.SimpleQueue[int] = queue.SimpleQueue()
    with pytest.raises(Enough):
        arrived(at, _after(2))
    at.put(4)
    assert arrived(at, _after(0)) == 4
