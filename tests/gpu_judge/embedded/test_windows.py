"""Claims of a text about a window of a video."""

from __future__ import annotations

from gpu_judge.embedded.windows import Window, claims_in_window, window_shots

SHOTS = ((0.0, 2.0), (2.0, 4.0))


def test_what_lies_outside_a_window_says_nothing_there() -> None:
    text = (
        "[0.0 - 2.0] A red circle moves left at the top left.\n"
        "[2.0 - 4.0] A blue star moves up at the top left.\nSummary: there is a cut at 2.0 seconds."
    )
    first = claims_in_window(text, window_shots(((0.5, 2.0),)))
    assert set(first) == {
        ((0, "top left", "shape"), "circle"),
        ((0, "top left", "colour"), "red"),
        ((0, "top left", "motion"), "left"),
    }
    both = claims_in_window(text, window_shots(((1.0, 2.0), (2.0, 3.0))))
    assert len(both) == 6
    # One frame of four at the edge of a window is a sliver.
    assert claims_in_window(text, window_shots(((0.5, 2.0), (2.0, 2.5)))) == first
    # A segment is cut to the window before it is asked which shot it is about.
    wide = text.replace("[0.0 - 2.0]", "[0.0 - 3.0]")
    assert claims_in_window(wide, window_shots(((0.0, 2.0),))) == first
    assert claims_in_window("A red circle moves left at the top left.", window_shots(((0.5, 2.0),))) == first
    assert claims_in_window(text, Window(shots=SHOTS, limits=(0.0, 1.0))) == first
