"""How well segments fit the shots of a video."""

from __future__ import annotations

import pytest

from gpu_judge.embedded.reasonability import reasonability

SHOTS = ((0.0, 2.0), (2.0, 4.0))


@pytest.mark.parametrize(
    ("segments", "score"),
    [
        ([(0.0, 2.0), (2.0, 4.0)], 10),
        ([(2.0, 4.0), (0.0, 2.0)], 10),
        ([(0.0, 1.0), (1.0, 4.0)], 3),  # fills the video, changes at the wrong time
        ([(0.0, 4.0)], 3),  # not divided
        ([(0.0, 2.0)], 5),  # half of it
        ([(0.0, 1.8), (2.2, 4.0)], 9),  # both boundaries meet the one cut
        ([(0.0, 1.0), (3.0, 4.0)], 2),  # sure of its shots, but silent about when they change
        ([(0.0, 4.0), (0.0, 4.0)], 2),
        ([(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)], 6),
        ([(9.0, 12.0)], 0),
        ([(3.0, 1.0)], 0),
        ([], 0),
    ],
)
def test_reasonability(segments: list[tuple[float, float]], score: int) -> None:
    assert reasonability(segments, SHOTS, 1.0)[0] == score


@pytest.mark.parametrize(
    ("segments", "score"),
    [
        ([(0.0, 1.0), (1.0, 4.0), (4.0, 6.0)], 10),
        ([(0.0, 1.2), (1.2, 3.8), (3.8, 6.0)], 10),  # about there
        ([(0.0, 1.0), (1.0, 6.0)], 8),  # one cut of two, no false one: F1 2/3
        ([(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 6.0)], 6),  # one found, two false: F1 2/5
        ([(0.0, 3.0), (3.0, 6.0)], 3),
        ([(0.0, 1.0), (4.0, 6.0)], 5),  # both cuts, half of the time
        ([(0.0, 6.0)], 3),
    ],
)
def test_reasonability_of_three_shots(segments: list[tuple[float, float]], score: int) -> None:
    assert reasonability(segments, ((0.0, 1.0), (1.0, 4.0), (4.0, 6.0)), 1.0)[0] == score


def test_reasonability_of_a_video_without_cuts_and_of_rambling_text() -> None:
    assert reasonability([(0.0, 4.0)], [(0.0, 4.0)], 1.0)[0] == 10
    assert reasonability([(0.0, 1.0), (1.0, 4.0)], [(0.0, 4.0)], 1.0)[0] < 10
    assert reasonability([(0.0, 2.0), (2.0, 4.0)], SHOTS, 0.5)[0] == 5
