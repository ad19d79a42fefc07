"""Probes' right answers are a scene's facts, and what they read is what stands there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.recipes.teaching.prompter import processor
from vcap_jax.recipes.teaching.probes import (
    IMAGE_PROBES,
    NOTHING,
    PATCH_PROBES,
    PROBES,
    UNKNOWN,
    VIDEO_PROBES,
    fills,
    new_readers,
    patch_targets,
    probe_losses,
    targets,
)
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_facts import layers
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tiny_policy import Prompts
from vcap_jax.world.video_facts import seen_frames
from vcap_jax.world.vocabulary import IMAGE_PLACES, VIDEO_PLACES


def test_answers_about_a_picture_are_its_facts() -> None:
    for index in range(8):
        scene = sample_scene("image", 0, index, "test")
        facts, found = scene_facts(scene), targets(scene)
        for name in ("shape", "colour", "size", "pattern", "direction", "mark", "inside"):
            probe = IMAGE_PROBES[name]
            told = {
                owner[0]: probe.values[value]
                for owner, value in zip(probe.owners, found[name][0], strict=True)
                if value != UNKNOWN and probe.values[value] != NOTHING
            }
            assert told == {slot[0]: value for slot, value in facts.items() if slot[1:] == (name,)}
        empty = {place for place, value in zip(IMAGE_PLACES, found["shape"][0], strict=True) if value == 0}
        assert empty == set(IMAGE_PLACES) - {item.place for item in scene.objects}
        hidden = {slot[1] for slot in facts if slot[-1] == "overlap"}
        assert {p for p, v in zip(IMAGE_PLACES, found["covered"][0], strict=True) if v == 1} == hidden


def test_answers_about_pairs_of_frames_change_with_what_happens() -> None:
    seen = 0
    for index in range(20):
        scene = sample_scene("video", 0, index, "test")
        found = targets(scene)
        for shot in scene.shots:
            for thing in shot.objects:
                owner = VIDEO_PLACES.index(thing.place)
                if thing.event is None or thing.at is None:
                    continue
                seen += 1
                before, after = (
                    {
                        name: VIDEO_PROBES[name].values[found[name][pair, owner]]
                        for name in ("shape", "colour")
                    }
                    for pair in (thing.at // 2 - 1, thing.at // 2)
                )
                assert (before["shape"] == NOTHING) == (thing.event == "appears")
                assert (after["shape"] == NOTHING) == (thing.event == "disappears")
                if thing.event == "changes":
                    assert (before["colour"], after["colour"]) == (thing.colour, thing.into)
    assert seen > 10


@pytest.mark.long
@pytest.mark.parametrize(("modality", "grid"), [("image", (4, 4)), ("video", (3, 3))])
def test_probes_learn_what_the_tokens_at_a_place_hold(modality: str, grid: tuple[int, int]) -> None:
    """Each token holds the shape at the place that lies nearest to it: that can be read, colours cannot."""
    probes = {name: PROBES[modality][name] for name in ("shape", "colour")}
    places = len(probes["shape"].owners)
    edge = round(places**0.5)
    rng = np.random.default_rng(0)
    wanted = {
        name: rng.integers(0, len(p.values), (256, places)).astype(np.int32) for name, p in probes.items()
    }
    of_token = [min(int((k + 0.5) / grid[0] * edge), edge - 1) for k in range(grid[0])]
    where = np.array([row * edge + column for row in of_token for column in of_token])
    codes = rng.normal(size=(len(probes["shape"].values), 12)).astype(np.float32)
    tokens = jnp.asarray(codes[wanted["shape"][:, where]])
    readers, rule = new_readers(probes, grid, 12), optax.adam(0.1)
    state = rule.init(readers)

    @jax.jit
    def update(readers, state):
        gradients = jax.grad(lambda r: probe_losses(probes, r, tokens, wanted)[0])(readers)
        updates, state = rule.update(gradients, state)
        return optax.apply_updates(readers, updates), state

    for _ in range(60):
        readers, state = update(readers, state)
    rights = probe_losses(probes, readers, tokens, wanted)[1]
    assert rights["shape"] > 0.95
    assert rights["colour"] < 0.5


def test_an_answer_that_is_not_asked_for_has_no_loss() -> None:
    probes = {name: VIDEO_PROBES[name] for name in ("shape", "size")}
    readers = new_readers(probes, (3, 3), 12)
    tokens = jnp.asarray(np.random.default_rng(0).normal(size=(4, 9, 12)), jnp.float32)
    none = {name: np.full((4, 4), UNKNOWN, np.int32) for name in probes}
    of_places = 2 * np.log(3)  # rows and columns of tokens are always asked for
    loss = jax.jit(lambda wanted: probe_losses(probes, readers, tokens, wanted)[0])
    assert float(loss(none)) == pytest.approx(of_places)
    one = {**none, "size": np.array([[1, UNKNOWN, UNKNOWN, UNKNOWN]] * 4, np.int32)}
    assert float(loss(one)) == pytest.approx(of_places + np.log(2))


def test_patches_are_filled_in_the_order_of_the_vision_tower() -> None:
    """A picture whose grey level is the number of its object comes out of the processor alike."""
    front = np.random.default_rng(0).integers(0, 5, (8, 8)).repeat(16, 0).repeat(16, 1)
    picture = np.repeat(front[..., None], 3, 2).astype(np.uint8)
    patches = Prompts(processor(), "image").patches(picture)[0]
    assert (patches == patches[:, :1]).all()
    assert fills(front, 5).tolist() == patches[:, 0].tolist()


def test_a_patch_with_little_of_an_object_holds_nothing() -> None:
    front = np.full((96, 96), -1)
    front[:4, :12] = 0  # 48 of 256 pixels
    front[:4, 16:27] = 1  # 44
    assert fills(front, 2)[:2].tolist() == [0, -1]


@pytest.mark.parametrize("modality", ["image", "video"])
def test_every_view_has_the_answers_of_its_objects(modality: Modality) -> None:
    probes = PATCH_PROBES[modality]
    for index in range(4):
        scene = sample_scene(modality, 0, index, "test")
        found = patch_targets(scene)
        assert found.keys() == probes.keys()
        if modality == "image":
            views = [scene.objects]
        else:
            views = [
                [thing for thing in shot.objects if first in seen_frames(shot, thing)]
                for shot in scene.shots
                for first in range(shot.first, shot.last, 2)
            ]
        assert {own.shape for own in found.values()} == {(len(views), 64 if modality == "image" else 36)}
        for number, objects in enumerate(views):
            told = {probes["shape"][value] for value in found["shape"][number]} - {"nothing"}
            assert told <= {item.shape for item in objects}
            # A large object fills patches, unless it is hidden.
            assert {item.shape for item in objects if item.size == "large"} <= told or modality == "image"
            nothing = {name: own[number] == 0 for name, own in found.items()}
            assert all((own == nothing["shape"]).all() for own in nothing.values())


def test_a_picture_has_the_share_of_filled_patches_that_its_objects_cover() -> None:
    scene = sample_scene("image", 0, 2, "test")
    front = layers(scene).front
    filled = (patch_targets(scene)["shape"][0] > 0).sum()
    touched = (front.reshape(8, 16, 8, 16) >= 0).any((1, 3)).sum()
    assert (front >= 0).sum() / 256 < filled + 8
    assert filled <= touched
