"""Claims of a text about a window of a video."""

from __future__ import annotations

import pytest

from gpu_judge.embedded.windows import Window, claims_in_window, empty_in_window, window_of
from vcap_jax.world.sight import Sight
from vcap_jax.world.vocabulary import HAPPENINGS, Facts

SHOTS = ((0.0, 2.0), (2.0, 4.0))


def seen(shots: tuple[tuple[float, float], ...], facts: Facts | None = None, quiet: tuple = ()) -> Window:
    """A window that shows ``facts``; ``quiet``: of which objects the frames leave open what happens to them."""
    things = {slot[:2]: 1.0 for slot in facts or {} if slot[-1] == "shape"}
    unknown = frozenset((*thing, kind) for thing in quiet for kind in HAPPENINGS)
    return window_of(Sight(facts=facts or {}, unknown=unknown, shots=shots, prominence=things))


def test_what_lies_outside_a_window_says_nothing_there() -> None:
    text = (
        "[0.0 - 2.0] A red circle moves left at the top left.\n"
        "[2.0 - 4.0] A blue star moves up at the top left.\nSummary: there is a cut at 2.0 seconds."
    )
    first = claims_in_window(text, seen(((0.5, 2.0),)))
    assert set(first) == {
        ((0, "top left", "shape"), "circle"),
        ((0, "top left", "colour"), "red"),
        ((0, "top left", "motion"), "left"),
    }
    both = claims_in_window(text, seen(((1.0, 2.0), (2.0, 3.0))))
    assert len(both) == 6
    # One frame of four at the edge of a window is a sliver.
    assert claims_in_window(text, seen(((0.5, 2.0), (2.0, 2.5)))) == first
    # A segment is cut to the window before it is asked which shot it is about.
    wide = text.replace("[0.0 - 2.0]", "[0.0 - 3.0]")
    assert claims_in_window(wide, seen(((0.0, 2.0),))) == first
    assert claims_in_window("A red circle moves left at the top left.", seen(((0.5, 2.0),))) == first
    assert claims_in_window(text, Window(shots=SHOTS, limits=(0.0, 1.0))) == first


CIRCLE = "[0.0 - 6.0] At the top left a red circle moves left. The background is white. "
NOW = {
    (0, "top left", "shape"): "circle",
    (0, "top left", "colour"): "red",
    (0, "top left", "motion"): "left",
}
BACKGROUND = {(0, "scene", "background"): "white"}


@pytest.mark.parametrize(
    ("happens", "earlier", "meanwhile", "later"),
    [
        ("appears at 3.0 seconds", {}, NOW | {(0, "top left", "event"): "appears"}, NOW),
        ("disappears at 3.0 seconds", NOW, NOW | {(0, "top left", "event"): "disappears"}, {}),
        (
            "turns green at 3.0 seconds",
            NOW,
            NOW | {(0, "top left", "event"): "changes", (0, "top left", "into"): "green"},
            NOW | {(0, "top left", "colour"): "green"},
        ),
        (
            "changes colour at 3.0 seconds",
            NOW,
            NOW | {(0, "top left", "event"): "changes"},
            {slot: value for slot, value in NOW.items() if slot[-1] != "colour"},
        ),
    ],
)
def test_what_happens_at_another_time_is_not_asked_about(
    happens: str, earlier: Facts, meanwhile: Facts, later: Facts
) -> None:
    text = f"{CIRCLE}The one at the top left {happens}."
    time = {(0, "top left", "time"): "3.0"}
    for shots, expected in (
        (((0.0, 2.0),), earlier),
        (((1.0, 3.0),), earlier),
        (((2.0, 4.0),), meanwhile | time),
        (((3.0, 5.0),), later),
        (((4.0, 6.0),), later),
    ):
        assert dict(claims_in_window(text, seen(shots))) == expected | BACKGROUND, shots
        assert (
            dict(claims_in_window(text, Window(shots=((0.0, 6.0),), limits=shots[0])))
            == expected | BACKGROUND
        )
        assert not empty_in_window(text, seen(shots))


def test_a_time_alone_is_asked_about_where_it_lies() -> None:
    text = f"{CIRCLE}Something happens to the one at the top left at 3.0 seconds."
    assert dict(claims_in_window(text, seen(((0.0, 2.0),)))) == NOW | BACKGROUND
    within = dict(claims_in_window(text, seen(((2.0, 4.0),))))
    assert within == NOW | BACKGROUND | {(0, "top left", "time"): "3.0"}


def test_without_a_time_the_frames_tell_whether_it_is_over() -> None:
    shots = ((2.0, 4.0),)
    there, quiet = {(0, "top left", "shape"): "circle"}, ((0, "top left"),)
    gone = f"{CIRCLE}The one at the top left disappears."
    assert dict(claims_in_window(gone, seen(shots))) == BACKGROUND
    assert dict(claims_in_window(gone, seen(shots, there)))[0, "top left", "shape"] == "circle"
    turned = f"{CIRCLE}The one at the top left turns green."
    assert (0, "top left", "colour") not in dict(claims_in_window(turned, seen(shots, there, quiet)))
    assert dict(claims_in_window(turned, seen(shots, there)))[0, "top left", "colour"] == "red"


def test_two_values_for_one_slot_are_asked_about_at_any_time() -> None:
    """One could otherwise say something wrong for every window but one."""
    text = f"{CIRCLE}The one at the top left appears at 3.0 seconds. The one at the top left appears at 1.0 seconds."
    assert len(claims_in_window(text, seen(((0.0, 2.0),)))) == 7
