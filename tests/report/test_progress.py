"""Progress lines on terminals and in log files."""

from __future__ import annotations

import io

import pytest

from vcap_jax.report.progress import PoolProgress, Progress, duration, rate


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(terminal: bool, every: int, seconds: list[float], total: int, start: int = 0) -> str:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(total, start=start, every=every, stream=stream, terminal=terminal, clock=clock)
    for i, elapsed in enumerate(seconds, start + 1):
        clock.now += elapsed
        progress.update(i, {"step": i, "reward/mean": 0.5, "kl": 0.01, "judge/failed": 0.25, "other": 3})
    progress.close()
    return stream.getvalue()


def test_a_log_file_gets_a_line_per_interval_and_the_last() -> None:
    text = run(False, 10, [30.0] + [2.0] * 24, 25)
    steps = [line.split()[0] for line in text.splitlines()]
    assert steps == ["1/25", "10/25", "20/25", "25/25"]
    # The first step compiles: it sets the pace only until there is another.
    assert "2.0 s/step  30 s left" in text.splitlines()[1]
    assert "reward 0.500  kl 0.0100  failed 25.0%" in text
    assert "\r" not in text


def test_a_resumed_run_counts_from_where_it_goes_on() -> None:
    lines = run(False, 5, [3.0] * 10, 20, start=10).splitlines()
    assert [line.split()[0] for line in lines] == ["11/20", "15/20", "20/20"]
    assert lines[-1].endswith("0 s left")


def test_a_terminal_rewrites_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = run(True, 10, [1.0] * 4, 4)
    assert text.count("\r") == 4
    assert text.count("\n") == 1
    assert all(len(part) < 40 + len("\x1b[K") for part in text.strip().split("\r"))


def test_a_message_stands_on_a_line_of_its_own() -> None:
    stream = io.StringIO()
    progress = Progress(2, stream=stream, terminal=True, clock=Clock())
    progress.update(1, {})
    progress.message("checkpoint 1")
    assert stream.getvalue().endswith("\r\x1b[Kcheckpoint 1\n")


def test_words_for_time() -> None:
    assert [duration(s) for s in (0.4, 59, 61, 3600, 90000)] == [
        "0 s",
        "59 s",
        "1 min 01 s",
        "1 h 00 min",
        "1 d 01 h",
    ]
    assert (rate(0.25), rate(1.5)) == ("4.0 steps/s", "1.5 s/step")


def test_the_reward_is_told_by_the_familys_own_names() -> None:
    stream = io.StringIO()
    progress = Progress(1, stream=stream, terminal=False)
    row = {"reward/mean": 0.5, "reward/std": 0.2, "reward/text_quality": 7.25, "reward/local/correctness": 3}
    progress.update(1, {"step": 1, **row, "kl": 0.01})
    assert "reward 0.500  text quality 7.25  kl 0.0100" in stream.getvalue()


def test_a_pool_tells_its_own_pace_after_a_resume():
    now, said = [0.0], []
    progress = PoolProgress(said.append, seconds=10, clock=lambda: now[0])
    for second in range(1, 31):
        now[0] = float(second)
        progress("whole", 70 + second, 100, second)  # 70 were there before
    assert said == [
        "whole 80/100, 1.0/s, 20 s left",
        "whole 90/100, 1.0/s, 10 s left",
        "whole 100/100, 1.0/s, took 30 s",
    ]
    now[0] = 45.0
    progress("windows", 30, 200, 30)
    assert said[-1] == "windows 30/200, 2.0/s, 1 min 25 s left"


def test_what_went_before_the_first_line_does_not_slow_a_pool_down_for_ever():
    now, said = [0.0], []
    progress = PoolProgress(said.append, seconds=10, clock=lambda: now[0])
    now[0] = 100.0  # a program was compiled
    progress("captions", 1, 1000, 1)
    for second in range(1, 31):
        now[0] = 100.0 + second
        progress("captions", 1 + 10 * second, 1000, 1 + 10 * second)
    assert said == [
        "captions 1/1000",
        "captions 101/1000, 10.0/s, 1 min 30 s left",
        "captions 201/1000, 10.0/s, 1 min 20 s left",
        "captions 301/1000, 10.0/s, 1 min 10 s left",
    ]


def test_a_slow_pool_tells_the_seconds_of_each():
    now, said = [0.0], []
    progress = PoolProgress(said.append, seconds=10, clock=lambda: now[0])
    for done in (1, 2, 3):
        now[0] = 20.0 * done
        progress("captions", done, 3, done)
    assert said == [
        "captions 1/3",
        "captions 2/3, 20.0 s each, 20 s left",
        "captions 3/3, 20.0 s each, took 1 min 00 s",
    ]
