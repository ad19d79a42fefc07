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


def test_reasonability_of_a_video_without_cuts_and_of_rambling_text() -> None:
    assert reasonability([(0.0, 4.0)], [(0.0, 4.0)], 1.0)[0] == 10
    assert reasonability([(0.0, 1.0), (1.0, 4.0)], [(0.0, 4.0)], 1.0)[0] < 10
    assert reasonability([(0.0, 2.0), (2.0, 4.0)], SHOTS, 0.5)[0] == 5
