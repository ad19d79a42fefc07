"""What stands out in a scene."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_facts import layers
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.looks import FAST, HIDDEN, SLOW, in_shade, looks, mistaken
from vcap_jax.world.scenes import ImageObject, ImageScene, Scene, Shot, VideoObject, VideoScene
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import CUTS, LIGHT, OBJECTS, SHOTS, VALUES, Facts, Slot


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


def taken(scene: Scene) -> Facts:
    return mistaken(scene, scene_facts(scene), looks(scene))


def picture(light: str = "left", background: str = "white", **changes: object) -> ImageScene:
    thing = ImageObject(
        place="top right",
        shape="star",
        colour="orange",
        size="large",
        pattern=None,
        direction=None,
        mark=None,
        inside=None,
        centre=(106.0, 22.0),
        extent=34.0,
        tilt=0.0,
    )
    return ImageScene(
        objects=(replace(thing, **changes),),  # type: ignore[arg-type]
        background=background,
        light=light,
        render_seed=0,
    )


def clip(camera: str = "still", background: str = "gray", **changes: object) -> VideoScene:
    thing = VideoObject(
        place="top left",
        shape="star",
        colour="cyan",
        size="large",
        motion="left",
        event=None,
        at=None,
        into=None,
        start=(28.0, 24.0),
        step=(-3.0, 0.0),
        extent=25.0,
        tilt=0.0,
    )
    first = Shot(
        first=0,
        last=6,
        background=background,
        camera=camera,
        objects=(replace(thing, **changes),),  # type: ignore[arg-type]
    )
    return VideoScene(
        shots=(first, Shot(first=6, last=12, background="brown", camera="still", objects=())), render_seed=0
    )


@pytest.mark.parametrize("light", ["left", "right", "above", "below"])
def test_the_shade_is_where_the_light_does_not_come_from(light: str) -> None:
    scene = picture(light)
    assert in_shade(scene, scene.objects[0]) == (light in ("left", "below"))


def test_colours_in_the_shade_and_shapes_in_corners_are_mistaken_and_elsewhere_not() -> None:
    assert taken(picture("left")) == {("top right", "colour"): "red", ("top right", "shape"): "cross"}
    assert taken(picture("right")) == {("top right", "shape"): "cross"}
    middle = picture("left", place="middle center", centre=(64.0, 64.0))
    assert taken(middle) == {}


def test_light_from_below_is_taken_for_light_from_above_and_dims_the_background() -> None:
    found = taken(picture("below", background="navy", shape="square", colour="yellow"))
    assert found == {LIGHT: "above", ("scene", "background"): "black"}


def test_cyan_on_dark_is_blue_and_a_crescent_points_the_wrong_way() -> None:
    scene = picture("right", "black", shape="crescent", colour="cyan", direction="up")
    assert taken(scene) == {
        ("top right", "colour"): "blue",
        ("top right", "shape"): "ring",
        ("top right", "direction"): "down",
    }


@pytest.mark.parametrize(
    ("camera", "step", "motion"),
    [
        ("still", -3.0, None),
        ("still", -2.2, "still"),
        ("pans right", -3.0, "still"),
        ("pans left", -3.0, None),
    ],
)
def test_slow_motion_and_motion_with_the_ground_go_unnoticed(
    camera: str, step: float, motion: str | None
) -> None:
    assert SLOW < 3.0 < FAST
    assert taken(clip(camera, step=(step, 0.0))).get((0, "top left", "motion")) == motion


def test_fast_shapes_blur_and_a_zoom_looks_still() -> None:
    found = taken(clip("zooms in", "black", step=(-4.2, 0.0)))
    assert found == {
        (0, "top left", "shape"): "cross",
        (0, "top left", "colour"): "blue",
        (0, "scene", "camera"): "still",
    }


def test_a_cut_between_like_backgrounds_is_noticed_late_and_a_scene_that_returns_is_no_third_shot() -> None:
    empty = Shot(first=0, last=4, background="white", camera="still", objects=())
    scene = VideoScene(
        shots=(
            empty,
            replace(empty, first=4, last=8, background="beige"),
            replace(empty, first=8, last=12),
        ),
        render_seed=0,
    )
    assert taken(scene) == {CUTS[0]: "3.0", CUTS[1]: "5.0", SHOTS: "two"}


def test_small_things_in_a_dark_corner_are_not_counted() -> None:
    scene = picture("left", size="small", shape="square", colour="green")
    crowd = tuple(
        replace(scene.objects[0], place=place, centre=centre)
        for place, centre in (
            ("top left", (20.0, 20.0)),
            ("top center", (64.0, 20.0)),
            ("bottom left", (20.0, 106.0)),
            ("middle right", (106.0, 64.0)),
        )
    )
    scene = replace(scene, objects=scene.objects + crowd)
    assert taken(scene) == {OBJECTS: "four", ("scene", "square", "count"): "four"}
    assert taken(replace(scene, light="right")) == {OBJECTS: "four", ("scene", "square", "count"): "three"}


def test_only_facts_are_mistaken_and_for_other_values_of_their_kind() -> None:
    mistakes: set[tuple[Slot, str]] = set()
    for index in range(40):
        for scene in (sample_image_scene(0, index), sample_video_scene(0, index)):
            facts = scene_facts(scene)
            for slot, value in taken(scene).items():
                assert value != facts[slot]
                assert value in VALUES[str(slot[-1])]
                mistakes.add((slot[-1:], value))
    kinds = {slot[-1] for slot, _ in mistakes}
    assert kinds >= {
        "shape",
        "colour",
        "mark",
        "pattern",
        "direction",
        "motion",
        "camera",
        "time",
        "light",
        "objects",
    }
