"""Events of video captions, and how descriptions stand to them."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.captions import full_caption
from vcap_jax.world.events import events_of, relation
from vcap_jax.world.video_scenes import sample_video_scene

CAPTION = """[0.0 - 2.0] At the top left a red circle moves left. The one at the top left turns green at 1.0 seconds.
[2.0 - 4.0] At the top left a green circle moves right. The camera pans left.
Summary: there are two shots."""


def test_each_sentence_of_a_segment_is_an_event() -> None:
    assert events_of(CAPTION) == [
        "[0.0 - 2.0] At the top left a red circle moves left.",
        "[0.0 - 2.0] The one at the top left turns green at 1.0 seconds.",
        "[2.0 - 4.0] At the top left a green circle moves right.",
        "[2.0 - 4.0] The camera pans left.",
    ]
    assert events_of("Nothing happens. [0.0 - 1.0] It is quiet.") == []


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("[0.0 - 2.0] A red circle moves left at the top left.", "entailment"),
        ("[0.0 - 2.0] The top left one becomes green at 1.0 seconds.", "entailment"),
        ("[0.0 - 2.0] The top left one changes colour.", "entailment"),
        ("[0.0 - 2.0] The top left one disappears at 1.0 seconds.", "contradiction"),
        ("[0.0 - 2.0] The top left one turns green at 1.5 seconds.", "contradiction"),
        ("[2.0 - 4.0] At the top left a red circle moves left.", "contradiction"),  # at another time
        ("[2.0 - 4.0] The camera zooms in.", "contradiction"),
        ("[0.0 - 2.0] The camera pans left.", "neutral"),
        ("[0.0 - 2.0] At the top right a red circle moves left.", "neutral"),
        ("[4.0 - 6.0] At the top left a red circle moves left.", "neutral"),
        ("A red circle moves left at the top left.", "neutral"),
        ("[0.0 - 2.0] Something moves.", "neutral"),
    ],
)
def test_relations(event: str, expected: str) -> None:
    assert relation(CAPTION, event) == expected


def test_a_caption_entails_its_own_events_and_those_in_other_words() -> None:
    for number in range(6):
        scene = sample_video_scene(0, number, "heldout")
        first, second = (full_caption(scene, np.random.default_rng(seed)) for seed in (1, 2))
        assert {relation(second, event) for event in events_of(first)} == {"entailment"}
