"""Facts to captions and back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from vcap_jax.world.captions import WeakSettings, full_caption, weak_caption, weaken, wrong_value
from vcap_jax.world.facts import FactCount, count_facts, scene_facts
from vcap_jax.world.grammar import ATTRIBUTES, describe_image, parse_image
from vcap_jax.world.scenes import Modality, sample_image_scene, sample_scene, sample_video_scene
from vcap_jax.world.sentences import Facts, split_sentences
from vcap_jax.world.video_grammar import NO_SHOT, describe_video, parse_segment, parse_video, shot_of

SHOTS = [(0.0, 2.0), (2.0, 4.0)]


def random_subset(facts: Facts, rng: np.random.Generator) -> Facts:
    """Some of the facts, some of them made wrong."""
    chosen = {slot: value for slot, value in facts.items() if rng.random() < 0.6}
    return {
        slot: wrong_value(slot, value, rng) if rng.random() < 0.3 else value for slot, value in chosen.items()
    }


def test_any_subset_of_image_facts_true_or_not_survives_the_round_trip() -> None:
    rng = np.random.default_rng(0)
    captions = set()
    for index in range(2500):
        facts = random_subset(scene_facts(sample_image_scene(0, index)), rng)
        caption = describe_image(facts, rng)
        assert dict(parse_image(caption).claims) == facts
        assert all(sentence.claims for sentence in parse_image(caption).sentences)
        captions.add(caption)
    assert len(captions) > 2000


def test_any_subset_of_video_facts_true_or_not_survives_the_round_trip() -> None:
    rng = np.random.default_rng(1)
    for index in range(2500):
        scene = sample_video_scene(0, index)
        facts = random_subset(scene_facts(scene), rng)
        shots = [shot.seconds for shot in scene.shots]
        caption = parse_video(describe_video(facts, rng, segments=shots))
        assert dict(caption.claims(shots)) == facts
        assert not caption.stray


@pytest.mark.parametrize("modality", ["image", "video"])
def test_full_captions_say_everything_and_weak_ones_are_as_weak_as_meant(modality: Modality) -> None:
    rng = np.random.default_rng(2)
    weak = FactCount(total=0, claims=0, correct=0)
    for index in range(1200):
        scene = sample_scene(modality, 0, index)
        full = count_facts(scene, full_caption(scene, rng))
        assert (full.coverage, full.hallucination) == (1, 0)
        count = count_facts(scene, weak_caption(scene, rng))
        assert count.claims > 0
        weak += count
    assert weak.coverage == pytest.approx(0.5, abs=0.05)
    assert weak.hallucination == pytest.approx(0.15, abs=0.03)


def test_weakness_is_what_the_settings_say() -> None:
    facts = scene_facts(sample_image_scene(0, 1))
    none = WeakSettings(omit_object=0, omit_attribute=0, wrong_attribute=0, invent_object=0)
    assert weaken(facts, np.random.default_rng(0), none) == facts
    wrong = WeakSettings(omit_object=0, omit_attribute=0, wrong_attribute=1, invent_object=0)
    weak = weaken(facts, np.random.default_rng(0), wrong)
    assert weak.keys() == facts.keys()
    assert all(weak[slot] != facts[slot] for slot in facts)
    silent = WeakSettings(omit_object=1, omit_attribute=1)
    assert len(weaken(facts, np.random.default_rng(0), silent)) >= 1
    with pytest.raises(ValueError, match="omit_object is a probability"):
        WeakSettings(omit_object=1.5)


def test_attributes_may_be_left_out_of_a_sentence() -> None:
    claims = parse_image(
        "A red object is at the top left. There is a large star at the middle center."
    ).claims
    assert claims == (
        (("top left", "colour"), "red"),
        (("middle center", "shape"), "star"),
        (("middle center", "size"), "large"),
    )
    assert parse_image("the scene has a grey background.").claims == ((("scene", "background"), "gray"),)


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "   \n ",
        "A large red circle is at the top left",  # no full stop: cut off
        "A large red red circle is at the top left.",
        "A large red circle is at the top left left.",
        "A large red circle is not at the top left.",
        "A red large circle is at the top left.",
        "A circle.",
        "An object is at the top left.",
        "A red circle is at the top left and a blue star is at the top right.",
        "A red or blue circle is at the top left.",
        "The background is red.",
        "[0.0 - 2.0] A red circle is at the top left.",
        "All elements have been described.",
        "A red circle is at the top left?",
        "\x00\ud800<|im_end|> ... .. . !!",
    ],
)
def test_what_is_not_a_whole_sentence_of_the_grammar_claims_nothing(junk: str) -> None:
    assert parse_image(junk).claims == ()


def test_junk_around_a_sentence_does_not_hide_it_and_repetition_adds_nothing() -> None:
    text = "Look! A red circle is at the top left. A red circle is at the top left. and a blue"
    assert parse_image(text).claims == ((("top left", "shape"), "circle"), (("top left", "colour"), "red"))


def test_shuffled_and_cut_captions_never_yield_a_claim_that_no_sentence_makes() -> None:
    rng = np.random.default_rng(3)
    for index in range(400):
        scene = sample_image_scene(1, index)
        caption = full_caption(scene, rng)
        allowed = set(parse_image(caption).claims)
        cut = caption[: int(rng.integers(len(caption)))]
        assert set(parse_image(cut).claims) <= allowed
        words = caption.split()
        rng.shuffle(words)
        parse_image(" ".join(words))
        parse_video(" ".join(words))


def test_each_of_several_values_for_a_slot_is_a_claim_and_only_one_can_be_right() -> None:
    scene = sample_image_scene(0, 0)
    thing = scene.objects[0]
    colours = ("red", "blue", "green", "yellow")
    caption = " ".join(f"A {colour} object is at the {thing.place}." for colour in colours)
    count = count_facts(scene, caption)
    assert (count.claims, count.correct) == (4, int(thing.colour in colours))


def test_counts() -> None:
    count = FactCount(total=10, claims=4, correct=3)
    assert (count.coverage, count.hallucination) == (0.3, 0.25)
    assert FactCount(total=10, claims=0, correct=0).hallucination == 0
    assert count + count == FactCount(total=20, claims=8, correct=6)


def test_a_segment_is_about_the_shot_that_holds_more_than_half_of_it() -> None:
    assert shot_of(0.0, 2.0, SHOTS) == 0
    assert shot_of(1.5, 4.0, SHOTS) == 1
    assert shot_of(0.0, 4.0, SHOTS) == NO_SHOT  # half and half
    assert shot_of(2.0, 9.0, SHOTS) == NO_SHOT  # beyond the end
    assert shot_of(3.0, 3.0, SHOTS) == NO_SHOT
    assert shot_of(3.0, 2.0, SHOTS) == NO_SHOT


def test_a_wrong_timestamp_makes_the_claims_wrong() -> None:
    scene = next(s for i in range(50) if (s := sample_video_scene(0, i)).cut == 2.0)
    rng = np.random.default_rng(0)
    right = describe_video(scene_facts(scene), rng, segments=[(0.0, 2.0), (2.0, 4.0)])
    assert count_facts(scene, right).hallucination == 0
    everything_at_once = right.replace("[0.0 - 2.0]", "[0.0 - 4.0]").replace("[2.0 - 4.0]", "[0.0 - 4.0]")
    count = count_facts(scene, everything_at_once)
    assert count.correct == 1  # the cut in the summary
    assert count.claims > 3
    late = count_facts(
        scene, right.replace("cut at 2.0", "cut at 3.0").replace("changes at 2.0", "changes at 3.0")
    )
    assert late.claims - late.correct == 1


def test_video_layout() -> None:
    caption = parse_video(
        "Here you go. A red star is at the top left.\n"
        "[0.0 - 1.5] A red circle moves left at the top left. Nothing else.\n"
        "  [1.5 - 4.0] The bottom right shows a blue square staying still. A star is at the top center.\n"
        "Summary: the scene changes at 1.5 seconds. A red circle moves left at the top left."
    )
    assert [(segment.start, segment.end) for segment in caption.segments] == [(0.0, 1.5), (1.5, 4.0)]
    assert caption.claims([(0.0, 1.5), (1.5, 4.0)]) == (
        ((0, "top left", "shape"), "circle"),
        ((0, "top left", "colour"), "red"),
        ((0, "top left", "motion"), "left"),
        ((1, "bottom right", "shape"), "square"),
        ((1, "bottom right", "colour"), "blue"),
        ((1, "bottom right", "motion"), "still"),
        (("video", "cut"), "1.5"),
    )
    assert len(caption.stray) == 2
    assert not any(sentence.claims for sentence in caption.stray)


def test_a_segment_is_read_with_or_without_its_header() -> None:
    sentence = "A red circle moves up at the top left."
    assert parse_segment(sentence) == parse_segment(f"[0.0 - 1.0] {sentence}")


def test_sentences_end_at_full_stops_that_are_not_decimal_points() -> None:
    assert split_sentences("There is a cut at 2.0 seconds. A b. c") == [
        "There is a cut at 2.0 seconds.",
        "A b.",
        "c",
    ]


def test_every_combination_of_attributes_can_be_said() -> None:
    whole = {"shape": "ring", "colour": "orange", "size": "small"}
    rng = np.random.default_rng(4)
    for count in (1, 2, 3):
        for chosen in itertools.combinations(ATTRIBUTES, count):
            facts: Facts = {("bottom left", key): whole[key] for key in chosen}
            for _ in range(12):
                assert dict(parse_image(describe_image(facts, rng)).claims) == facts
