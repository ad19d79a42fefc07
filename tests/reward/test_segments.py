"""Reading the policy's segments and drawing the local window."""

import itertools
import random
import statistics
import time

import pytest

from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.segments import (
    Segment,
    choose_window,
    format_segments,
    parse_segments,
    sample_window,
    select_segments,
)

TWO = [(0.0, 2.0, "A red circle moves left."), (2.0, 4.0, "A blue square stays still.")]

LAYOUTS = {
    "canonical": "[0.0 - 2.0] {a}\n[2.0 - 4.0] {b}\nSummary: {s}",
    "one line": "[0.0 - 2.0] {a} [2.0 - 4.0] {b} Summary: {s}",
    "tight": "[0-2]{a}\n[2-4]{b}\nSummary:{s}",
    "clock": "[00:00 - 00:02] {a}\n[00:02 - 00:04] {b}\n\nSummary: {s}",
    "clock with hours": "[00:00:00 --> 00:00:02] {a}\n[00:00:02 --> 00:00:04] {b}\nSummary: {s}",
    "clock with fractions": "[0:00.0 - 0:02.0] {a}\n[0:02,000 - 0:04,000] {b}\nSummary: {s}",
    "bare with unit": "0.0-2.0s: {a}\n2.0-4.0s: {b}\nSummary: {s}",
    "bare with colon": "0.0 - 2.0: {a}\n2.0 - 4.0: {b}\nSummary: {s}",
    "bare clock": "00:00-00:02 {a}\n00:02-00:04 {b}\nSummary: {s}",
    "units in brackets": "[0.0s - 2.0s] {a}\n[2.0s - 4.0s] {b}\nSummary: {s}",
    "seconds": "[0 seconds - 2 seconds]: {a}\n[2 seconds - 4 seconds]: {b}\nSummary: {s}",
    "angled": "<0.0 seconds> - <2.0 seconds> {a}\n<2.0 seconds - 4.0 seconds> {b}\nSummary: {s}",
    "round": "(0.0 - 2.0) {a}\n(2.0 - 4.0) {b}\nSummary: {s}",
    "en dash": "[0.0 \u2013 2.0] {a}\n[2.0\u20134.0] {b}\nSummary: {s}",
    "to": "[0.0 to 2.0] {a}\n[2.0 to 4.0] {b}\nSummary: {s}",
    "from": "From 0 to 2 seconds, {a}\nFrom 2 to 4 seconds, {b}\nSummary: {s}",
    "markdown": "**[0.0 - 2.0]** {a}\n\n**[2.0 - 4.0]** {b}\n\n**Summary:** {s}",
    "headings": "### 0.0 - 2.0s\n{a}\n### 2.0 - 4.0s\n{b}\n## Overall Summary\n{s}",
    "bare alone": "0.0 - 2.0\n{a}\n\n2.0 - 4.0\r\n{b}\n\nSummary: {s}",
    "bare headings": "## Segment 1: 0.0 - 2.0\n{a}\n**Segment 2: 2.0 to 4.0**\n{b}\n## Summary\n{s}",
    "list": "- [0.0 - 2.0]: {a}\n- [2.0 - 4.0]: {b}\n- Summary: {s}",
    "numbered": "1. [0.0 - 2.0] {a}\n2. [2.0 - 4.0] {b}\nSummary: {s}",
    "scenes": "**Scene 1 (0:00-0:02):** {a}\n**Scene 2 (0:02-0:04):** {b}\n**Global summary:** {s}",
    "scenes before brackets": "Segment 1: [0.0 - 2.0] {a}\nSegment 2: [2.0 - 4.0] {b}\nSummary: {s}",
    "indented": "   [ 0.0 - 2.0 ] {a}\n\t[ 2.0 - 4.0 ] {b}\n  Summary : {s}",
    "carriage returns": "[0.0 - 2.0] {a}\r\n[2.0 - 4.0] {b}\r\nSummary: {s}",
    "preamble": "Here is the description of the video:\n[0.0 - 2.0] {a}\n[2.0 - 4.0] {b}\nSummary: {s}",
    "wrapped text": "[0.0 - 2.0]\n{a}\n\n[2.0 - 4.0]\n{b}\n\nSummary:\n{s}",
    "summary first": "Summary: {s}\n[0.0 - 2.0] {a}\n[2.0 - 4.0] {b}",
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts(layout: str) -> None:
    parsed = parse_segments(layout.format(a=TWO[0][2], b=TWO[1][2], s="A circle, then a square."))
    assert [(s.start, s.end, s.text) for s in parsed.segments] == TWO
    assert parsed.summary == "A circle, then a square."


@pytest.mark.parametrize(
    "caption",
    [
        "",
        "A red circle moves left.",
        "2 - 3 people walk, and 4 to 5 dogs follow.",
        "Between 2 - 3 people walk, and\n2 - 3 of them run.",
        "There are\n2 - 3 people.\nScene 1: 2 - 3 people walk.",
        "The table reads\n1, 2\n3, 4\nand 5 and 6 are below, or\n5 and 6\ntoo.",
        "There are [many] shapes (2-3) in 0.5 - 2 colours.",
        "[2.0 - 2.0] nothing lasts",
        "[4.0 - 2.0] backwards",
        "[0.0 - 2.0]",
        "[0.0 - 2.0] [2.0 - 4.0]",
        "[0.0 -",
        "[a - b] letters",
        "A ball at [10, 20] moves to [30 and 40].",
    ],
)
def test_what_is_no_segment(caption: str) -> None:
    assert parse_segments(caption).segments == ()


def test_a_pair_in_brackets_is_a_header_at_the_start_of_a_line_alone() -> None:
    """Inside it may be a place in the picture, and the rest of the segment would be lost."""
    parsed = parse_segments("[0.0 - 2.0] A ball at [10, 20] moves.\n  [2, 4] It rests at [3 and 5].")
    assert [(one.start, one.end, one.text) for one in parsed.segments] == [
        (0.0, 2.0, "A ball at [10, 20] moves."),
        (2.0, 4.0, "It rests at [3 and 5]."),
    ]


def test_a_cut_off_caption_keeps_what_it_has() -> None:
    parsed = parse_segments("[0.0 - 2.0] A red circle moves left.\n[2.0 - 4.0] A blue squ")
    assert [s.text for s in parsed.segments] == ["A red circle moves left.", "A blue squ"]
    assert parsed.summary == ""


def test_canonical_layout_round_trips() -> None:
    rng = random.Random(0)
    for _ in range(200):
        times = sorted(rng.sample(range(4000), 6))
        segments = tuple(
            Segment(start=a / 10, end=b / 10, text=f"Thing {i} is {a} by {b}, to be seen.")
            for i, (a, b) in enumerate(itertools.pairwise(times))
        )
        assert parse_segments(format_segments(segments)).segments == segments


def test_parsing_never_raises_and_is_quick() -> None:
    rng = random.Random(1)
    pieces = [
        "[",
        "]",
        "0",
        "2.0",
        " - ",
        ":",
        "00:02",
        "\n",
        " ",
        "(",
        ")",
        "to",
        "s",
        "Summary",
        "**",
        "x",
        "9" * 50,
        "\u2192",
    ]
    for _ in range(2000):
        parsed = parse_segments("".join(rng.choice(pieces) for _ in range(rng.randrange(40))))
        assert all(0 <= s.start < s.end and s.text for s in parsed.segments)
    for long in [
        "0" * 20000,
        "0 " * 10000,
        "[0" + " " * 20000,
        " " * 20000 + "0",
        "\n- " * 7000,
        "**" * 10000,
        "[0 - " * 5000,
        "Scene" + " " * 100,
        "Scene" + " " * 20000,
        "**Scene 1" + "\t" * 20000 + "x",
        "From" + " " * 20000 + "x",
        "0 - 2 s" + " " * 20000 + "x",
        "0 - 2" + " " * 20000 + "**" + " " * 20000 + "x",
        "Overall summary" + " " * 20000 + "x",
    ]:
        began = time.process_time()
        parse_segments(long)
        assert time.process_time() - began < 1, long[:10]


def test_segments_of_a_window() -> None:
    segments = [Segment(start=a, end=b, text=f"{a}") for a, b in [(0, 2), (2, 4), (4, 100), (4.0, 4.2)]]

    def chosen(start: float, end: float, least: float) -> list[int]:
        window = TimeWindow(start=start, end=end)
        return [segments.index(s) for s in select_segments(segments, window, least)]

    assert chosen(0, 2, 0.0) == [0]  # touching is not overlapping
    assert chosen(1.9, 3.9, 0.0) == [0, 1]
    assert chosen(1.9, 3.9, 0.25) == [1]  # a sliver of the first is left out
    assert chosen(1.5, 3.5, 0.25) == [0, 1]
    assert chosen(10, 12, 1.0) == [2]  # the window lies inside a long segment
    assert chosen(3, 6, 1.0) == [3]  # a short segment lies inside the window
    assert chosen(200, 210, 0.0) == []


def test_windows_are_seeded_and_cover_the_video() -> None:
    settings = {"duration": 10.0, "fraction": 0.25, "min_seconds": 2.0}
    window = sample_window(seed=1, step=2, sample_id="a", **settings)
    assert window == sample_window(seed=1, step=2, sample_id="a", **settings)
    others = [
        sample_window(seed=2, step=2, sample_id="a", **settings),
        sample_window(seed=1, step=3, sample_id="a", **settings),
        sample_window(seed=1, step=2, sample_id="b", **settings),
    ]
    assert window not in others
    starts = [sample_window(seed=0, step=i, sample_id="a", **settings).start for i in range(2000)]
    assert 0 <= min(starts) < 0.1
    assert 7.4 < max(starts) <= 7.5
    assert statistics.mean(starts) == pytest.approx(3.75, abs=0.2)


def test_window_lengths() -> None:
    def length(duration: float, fraction: float) -> float:
        window = sample_window(
            seed=0, step=0, sample_id="a", duration=duration, fraction=fraction, min_seconds=2.0
        )
        assert window.start >= 0
        assert window.end <= duration + 1e-9
        return window.seconds

    assert length(100.0, 0.25) == pytest.approx(25)
    assert length(4.0, 0.25) == pytest.approx(2)  # the minimum
    assert length(1.5, 0.25) == pytest.approx(1.5)  # the whole video
    assert length(8.0, 1.0) == pytest.approx(8)
    with pytest.raises(ValueError, match=r"'a'.*duration"):
        length(0.0, 0.5)


def test_the_window_of_a_reference_pool_is_one_of_its_segments() -> None:
    segments = [Segment(start=i, end=i + 1, text="x") for i in range(4)]
    windows = [choose_window(segments, seed=0, step=step, sample_id="a") for step in range(100)]
    assert {window.start for window in windows} == {0, 1, 2, 3}
    assert windows == [choose_window(segments, seed=0, step=step, sample_id="a") for step in range(100)]
