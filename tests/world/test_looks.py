"""What stands out in a scene."""

from __future__ import annotations

from dataclasses import replace

from vcap_jax.world.image_facts import layers
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.looks import HIDDEN, looks
from vcap_jax.world.scenes import ImageScene
from vcap_jax.world.video_scenes import sample_video_scene


def test_small_hidden_and_faint_objects_do_not_stand_out() -> None:
    kinds = set()
    for index in range(30):
        scene = sample_image_scene(0, index)
        seen, hidden = looks(scene), layers(scene).hidden_share
        assert list(seen) == [(thing.place,) for thing in scene.objects]
        for thing, share in zip(scene.objects, hidden, strict=True):
            look = seen[thing.place,]
            kinds.add(look.kind)
            assert (look.kind == "small") == (thing.size == "small")
            assert look.hidden == share
            if look.kind == "standing_out":
                assert share < HIDDEN
    assert kinds == {"standing_out", "small", "hidden", "faint"}


def test_faint_is_what_resembles_the_background() -> None:
    scene = sample_image_scene(0, 0)
    thing = replace(scene.objects[0], size="large", colour="green")

    def kind(colour: str, background: str) -> str:
        alone: ImageScene = replace(scene, objects=(replace(thing, colour=colour),), background=background)
        return looks(alone)[thing.place,].kind

    assert kind("green", "brown") == kind("purple", "gray") == kind("yellow", "beige") == "faint"
    assert kind("green", "white") == kind("red", "black") == "standing_out"


def test_in_a_clip_what_is_seen_for_longer_is_larger() -> None:
    longer = 0
    for index in range(40):
        scene = sample_video_scene(0, index)
        for (shot, place), look in looks(scene).items():
            (thing,) = [thing for thing in scene.shots[int(shot)].objects if thing.place == place]
            frames = look.area / thing.extent**2
            assert 0 < round(frames) <= scene.shots[int(shot)].last - scene.shots[int(shot)].first
            longer += frames > 4
    assert longer
