"""Work that others do, many pieces at a time: what comes of each, as it ends or in the order of asking.

The pieces are futures that an iterator makes. Reading it begins the next piece, so it is read only when there is room
for one: what a piece holds, such as a picture, is held for no more of them.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from threading import Lock
from typing import TypeVar

R = TypeVar("R")
S = TypeVar("S")

LOOK_EVERY_S = 1.0
"""Between two looks while nothing ends."""


def as_they_end(
    begun: Iterable[Future[R]], at_once: int, *, look: Callable[[], None] = lambda: None
) -> Generator[tuple[int, R], None, None]:
    """Number and result of each piece when it ends. A slow one keeps no other from being begun.

    begun: the pieces. at_once: of them in work. look: raises to end everything; called before a piece is begun, before
    each wait, and every ``LOOK_EVERY_S`` of it. Raises what a piece raised. What is in work when this ends is
    cancelled.
    """
    with closing(_ended(begun, at_once, lambda: True, look)) as ended:
        for number, piece in ended:
            yield number, piece.result()


def in_order(
    begun: Iterable[Future[R]],
    at_once: int,
    *,
    held: int | None = None,
    look: Callable[[], None] = lambda: None,
) -> Generator[R, None, None]:
    """As ``as_they_end``, but in the order of the pieces: what a piece raised is raised in its turn, and none is begun
    meanwhile.

    held: pieces that have ended and wait for one before them, None for any number; with so many none is begun until it
    has ended.
    """
    waiting: dict[int, Future[R]] = {}
    told, failed = 0, False

    def room() -> bool:
        return not failed and (held is None or len(waiting) < held)

    with closing(_ended(begun, at_once, room, look)) as ended:
        for number, piece in ended:
            waiting[number] = piece
            failed = failed or piece.cancelled() or piece.exception() is not None
            while told in waiting:
                yield waiting.pop(told).result()
                told += 1


def _ended(
    begun: Iterable[Future[R]], at_once: int, room: Callable[[], bool], look: Callable[[], None]
) -> Generator[tuple[int, Future[R]], None, None]:
    """Number of each piece and the piece itself when it has ended. room: whether one more may be begun now; asked where
    one could be, and others are in work."""
    numbers: dict[Future[R], int] = {}
    """Of the pieces in work."""
    ended: queue.SimpleQueue[Future[R]] = queue.SimpleQueue()
    pieces, more = iter(begun), True
    number = 0
    try:
        while more or numbers:
            while more and ended.empty() and len(numbers) < at_once and (not numbers or room()):
                look()
                future = next(pieces, None)
                if future is None:
                    more = False
                    break
                numbers[future] = number
                number += 1
                future.add_done_callback(ended.put)
            if numbers:
                look()
                future = arrived(ended, look)
                yield numbers.pop(future), future
    finally:
        for future in numbers:
            future.cancel()


def ready(result: R) -> Future[R]:
    """A piece that has ended already."""
    future: Future[R] = Future()
    future.set_result(result)
    return future


def together(pieces: Sequence[Future[R]], use: Callable[[list[R]], S]) -> Future[S]:
    """One piece of several: ends with what ``use`` makes of all their results, or with the first error. Cancelled, it
    cancels them. use: is quick; called in the thread in which the last one ends."""
    whole: Future[S] = Future()
    lock, left, settled = Lock(), len(pieces), False

    def one_ended(piece: Future[R]) -> None:
        nonlocal left, settled
        with lock:
            left -= 1
            failed = piece.cancelled() or piece.exception() is not None
            if settled or not (failed or left == 0):
                return
            settled = True
        if piece.cancelled():
            whole.cancel()
        elif whole.set_running_or_notify_cancel():
            try:
                piece.result()  # or its error
                whole.set_result(use([one.result() for one in pieces]))
            except BaseException as error:
                whole.set_exception(error)

    def cancelled(_: Future[S]) -> None:
        if whole.cancelled():
            for piece in pieces:
                piece.cancel()

    if not pieces:
        return ready(use([]))
    whole.add_done_callback(cancelled)
    for piece in pieces:
        piece.add_done_callback(one_ended)
    return whole


def until_ended(piece: Future[R], look: Callable[[], None]) -> Future[R]:
    """The piece once it has ended. look: raises to wait no longer; called every ``LOOK_EVERY_S``."""
    while not wait([piece], timeout=LOOK_EVERY_S).done:
        look()
    return piece


def arrived(at: queue.SimpleQueue[R], look: Callable[[], None]) -> R:
    """What comes next. look: as for ``until_ended``."""
    while True:
        try:
            return at.get(timeout=LOOK_EVERY_S)
        except queue.Empty:
            look()
