"""Events of video captions, and how descriptions stand to them."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.captions import full_caption
from vcap_jax.world.events import events_of, relation
from vcap_jax.world.scenes import VideoScene, sample_scene

CAPTION = """[0.0 - 2.0] At the top left a red circle moves left. At the bottom right a blue square stays still.
[2.0 - 4.0] At the top left a green circle moves right.
Summary: the scene changes at 2.0 seconds."""


def test_each_sentence_about_a_thing_is_an_event() -> None:
    assert events_of(CAPTION) == [
        "[0.0 - 2.0] At the top left a red circle moves left.",
        "[0.0 - 2.0] At the bottom right a blue square stays still.",
        "[2.0 - 4.0] At the top left a green circle moves right.",
    ]
    assert events_of("Nothing happens. [0.0 - 1.0] It is quiet.") == []


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("[0.0 - 2.0] A red circle moves left at the top left.", "entailment"),
        ("[0.0 - 2.0] at the top left a red circle moves left.", "entailment"),
        ("[0.0 - 2.0] A green circle moves left at the top left.", "contradiction"),
        ("[2.0 - 4.0] At the top left a red circle moves left.", "contradiction"),  # at another time
        ("[0.0 - 2.0] At the top right a red circle moves left.", "neutral"),
        ("[4.0 - 6.0] At the top left a red circle moves left.", "neutral"),
        ("A red circle moves left at the top left.", "neutral"),
        ("[0.0 - 2.0] Something moves.", "neutral"),
    ],
)
def test_relations(event: str, expected: str) -> None:
    assert relation(CAPTION, event) == expected


def test_a_caption_entails_its_own_events_and_those_of_another_form() -> None:
    for number in range(6):
        scene = sample_scene("video", 0, number, "heldout")
        assert isinstance(scene, VideoScene)
        first, second = (full_caption(scene, np.random.default_rng(seed)) for seed in (1, 2))
        events = events_of(first)
        assert len(events) == sum(len(shot.objects) for shot in scene.shots)
        assert {relation(second, event) for event in events} == {"entailment"}
