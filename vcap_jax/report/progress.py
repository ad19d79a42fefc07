"""Progress of a run on one line: where it is, how good, how fast, how long still."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Shown:
    """A metric on the progress line: its key in the row, the label before it and the format of its value.

    "area/*" are the area's further metrics but ``std`` and those of areas inside it, each under its own name.
    """

    key: str
    label: str
    format: str


SHOWN: tuple[Shown, ...] = (
    Shown("reward/mean", "reward", ".3f"),
    Shown("reward/*", "", ".3g"),
    Shown("facts/coverage", "facts", ".0%"),
    Shown("facts/hallucination", "false", ".1%"),
    Shown("kl", "kl", ".4f"),
    Shown("length/mean", "tokens", ".0f"),
    Shown("judge/failed", "failed", ".1%"),
)

# Seconds per step are averaged over this many steps, so that the time left follows a change of pace.
_WINDOW = 50
# Lines that the rate of a pool reaches back, a minute at ten seconds each.
_LINES = 6


class Progress:
    """Reports steps: a line rewritten in place on a terminal, a line for every ``every`` steps anywhere else.

    The first step of a process, which compiles, is left out of the rate as soon as there is another.

    Args:
        total: steps of the whole run.
        start: steps done before this process (a resumed run).
        every: steps between two lines where lines are not rewritten.
        shown: what a line says; keys that a row lacks are left out.
        stream, terminal, clock: for tests; by default standard output, whatever it is, and the monotonic
        clock.
    """

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        every: int = 1,
        shown: Sequence[Shown] = SHOWN,
        stream: TextIO | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._start, self._every, self._shown = total, start, every, tuple(shown)
        self._stream = sys.stdout if stream is None else stream
        self._terminal = self._stream.isatty() if terminal is None else terminal
        self._clock = clock
        self._last = clock()
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._first: float | None = None
        self._open_line = False

    def update(self, step: int, row: Mapping[str, float | int | str]) -> None:
        """Reports that ``step`` (1-based count of steps done) has ended with this row of metrics."""
        now = self._clock()
        elapsed, self._last = now - self._last, now
        if self._first is None:
            self._first = elapsed
        else:
            self._seconds.append(elapsed)
        if self._terminal:
            # A line that wraps could not be rewritten; "\x1b[K" clears what was longer before.
            line = self._line(step, row)[: shutil.get_terminal_size().columns - 1]
            self._stream.write(f"\r{line}\x1b[K")
            self._open_line = True
        elif (step - self._start) % self._every == 0 or step in (self._start + 1, self._total):
            self._stream.write(self._line(step, row) + "\n")
        self._stream.flush()

    def message(self, text: str) -> None:
        """Prints a line of its own above the progress line."""
        if self._open_line:
            self._stream.write("\r\x1b[K")
            self._open_line = False
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Ends the rewritten line, if one is open."""
        if self._open_line:
            self._stream.write("\n")
            self._stream.flush()
            self._open_line = False

    def _line(self, step: int, row: Mapping[str, float | int | str]) -> str:
        width = len(str(self._total))
        parts = [f"{step:>{width}}/{self._total}"]
        for item in self._shown:
            for key, label in self._named(item, row):
                value = row.get(key)
                if isinstance(value, int | float):
                    parts.append(f"{label} {value:{item.format}}")
        seconds = sum(self._seconds) / len(self._seconds) if self._seconds else self._first or 0.0
        parts.append(rate(seconds))
        parts.append(f"{duration(seconds * (self._total - step))} left")
        return "  ".join(parts)

    def _named(self, item: Shown, row: Mapping[str, float | int | str]) -> list[tuple[str, str]]:
        """Key and label of each metric that an item stands for."""
        area, star, _ = item.key.partition("*")
        if not star:
            return [(item.key, item.label)]
        known = {shown.key for shown in self._shown} | {f"{area}std"}
        inside = [key for key in row if key.startswith(area) and key not in known]
        return [
            (key, name.replace("_", " ")) for key in inside if "/" not in (name := key.removeprefix(area))
        ]


def rate(seconds_per_step: float) -> str:
    """A pace in whichever unit gives a number above one: ``1.4 s/step`` or ``3.1 steps/s``."""
    if 0 < seconds_per_step < 1:
        return f"{1 / seconds_per_step:.1f} steps/s"
    return f"{seconds_per_step:.1f} s/step"


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``2 h 07 min`` or ``3 d 04 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


class PoolProgress:
    """Says "WHAT done/total" with rate and time left, at most every ``seconds`` and at the end of each WHAT.

    The rate is that since a few lines ago: what went before the first, such as compiling, counts in that one alone, and
    in the last, whose rate is that of the whole. A first line after a single one has no rate, since all of the time may
    have gone into what comes before.
    """

    def __init__(
        self, say: Callable[[str], None], *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._seconds, self._clock = say, seconds, clock
        self._last = clock()
        self._what = ""
        self._told: deque[tuple[float, int]] = deque(maxlen=_LINES)

    def __call__(self, what: str, done: int, total: int, done_here: int) -> None:
        """done_here: by this process; the rate is its own."""
        now = self._clock()
        if what != self._what:
            self._what, self._begin = what, self._last
            self._told.clear()
        if now - self._last < self._seconds and done < total:
            return
        self._last = now
        recent = bool(self._told) and done < total
        since, before = self._told[0] if recent else (self._begin, 0)
        self._told.append((now, done_here))
        seconds = max(now - since, 1e-9)
        pace = seconds / max(done_here - before, 1)
        told = f"{pace:.1f} s each" if pace > 1 else f"{1 / pace:.1f}/s"
        if done >= total:
            self._say(f"{what} {done}/{total}, {told}, took {duration(seconds)}")
        elif not recent and done_here <= 1:
            self._say(f"{what} {done}/{total}")
        else:
            self._say(f"{what} {done}/{total}, {told}, {duration((total - done) * pace)} left")
