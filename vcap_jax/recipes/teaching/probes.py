"""Throw-away linear probes: what the vision tower is first taught by.

A view is what one pass of the tower sees: the picture, or one pair of a clip's frames. A place looks at the visual
tokens with weights of its own, which are learned; one matrix for all places names what was found there. It is what the
decoder will do by attention. A matrix of all tokens side by side learned the pictures by heart instead.

Probes of single patches ask a token which object fills each of its own: with them, shapes were told apart in two thirds
of the steps.

A probe's answer is a single value, like that of a short question. But a view gives hundreds of answers at once, at a
tenth of the computation of a decoder that is asked one after the other. Weights and matrices are then forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vcap_jax.world import vocabulary as words
from vcap_jax.world.backbone import IMAGE_SETTINGS
from vcap_jax.world.drawing import shape_mask
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_facts import layers
from vcap_jax.world.scenes import VIDEO_EDGE, ImageScene, Scene, Shot, VideoScene
from vcap_jax.world.video_facts import seen_frames
from vcap_jax.world.vocabulary import Slot

Array = jax.Array
NOTHING, WITHOUT = "nothing", "without"
"""What is where no object is; what an object has that lacks the attribute."""
UNKNOWN = -1
"""Stands for an answer that is not asked for."""
Readers: TypeAlias = dict[str, Array]
"""Parameters of a modality's probes: the matrix of each, and what "places" and the "whole" look at."""

_VIEW: tuple[Slot, ...] = (("scene",),)
_HEADS = 6
"""Parts of a visual token; a place looks at each with weights of its own."""
_STEEPNESS = 20.0
"""Of a place's first weights: what they lose with the squared distance of a token, in edges of the picture."""
_OPTIONAL = ("pattern", "direction", "mark", "inside")
_OF_ANY = {kind: (NOTHING, *words.VALUES[kind]) for kind in words.VIDEO_ATTRIBUTES}
PATCH_PROBES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "image": _OF_ANY
    | {kind: (NOTHING, WITHOUT, *words.VALUES[kind]) for kind in ("pattern", "direction", "mark")},
    "video": _OF_ANY | {"motion": (NOTHING, *words.MOTIONS)},
}
"""What is asked of a patch, and the answers, by modality."""
_FILLED = 48
"""Pixels of a patch's 256 that an object has, at least, where it fills it."""


@dataclass(frozen=True)
class Probe:
    """owners: what is asked about: places, pairs of places, or the whole view. values: the possible answers."""

    owners: tuple[Slot, ...]
    values: tuple[str, ...]


def _of(places: Sequence[str], values: Sequence[str]) -> Probe:
    return Probe(tuple((place,) for place in places), tuple(values))


IMAGE_PROBES: Mapping[str, Probe] = {
    "shape": _of(words.IMAGE_PLACES, (NOTHING, *words.SHAPES)),
    "colour": _of(words.IMAGE_PLACES, tuple(words.COLOURS)),
    "size": _of(words.IMAGE_PLACES, words.SIZES),
    **{kind: _of(words.IMAGE_PLACES, (NOTHING, *words.VALUES[kind])) for kind in _OPTIONAL},
    **{kind: Probe(pairs, (NOTHING, *values)) for kind, pairs, _, values in words.NEIGHBOURS},
    "covers": _of(words.IMAGE_PLACES, (NOTHING, "something")),
    "covered": _of(words.IMAGE_PLACES, (NOTHING, "partly")),
    **{kind: _of(("scene",), words.VALUES[kind]) for kind in ("background", "light", "objects")},
}
"""What is asked of a picture."""
VIDEO_PROBES: Mapping[str, Probe] = {
    "shape": _of(words.VIDEO_PLACES, (NOTHING, *words.SHAPES)),
    "colour": _of(words.VIDEO_PLACES, tuple(words.COLOURS)),
    "size": _of(words.VIDEO_PLACES, words.SIZES),
    "motion": _of(words.VIDEO_PLACES, words.MOTIONS),
    **{kind: _of(("scene",), words.VALUES[kind]) for kind in ("background", "camera")},
}
"""What is asked of a pair of frames. No event and no cut falls between the two."""
PROBES: Mapping[str, Mapping[str, Probe]] = {"image": IMAGE_PROBES, "video": VIDEO_PROBES}


def targets(scene: Scene) -> dict[str, np.ndarray]:
    """The right answers: by probe, int32 [views, owners], ``UNKNOWN`` where there is none."""
    if isinstance(scene, ImageScene):
        return _numbers(IMAGE_PROBES, [_picture_answers(scene)])
    return _numbers(VIDEO_PROBES, [_pair_answers(scene, first) for first in range(0, words.VIDEO_FRAMES, 2)])


def _numbers(probes: Mapping[str, Probe], views: Sequence[Mapping[Slot, str]]) -> dict[str, np.ndarray]:
    """answers of each view: by owner and probe."""
    found = {}
    for name, probe in probes.items():
        rows = [
            [
                probe.values.index(view[key]) if (key := (*owner, name)) in view else UNKNOWN
                for owner in probe.owners
            ]
            for view in views
        ]
        found[name] = np.array(rows, np.int32)
    return found


def _picture_answers(scene: ImageScene) -> dict[Slot, str]:
    facts = scene_facts(scene)
    answers: dict[Slot, str] = {(place, "shape"): NOTHING for place in words.IMAGE_PLACES}
    there = {item.place for item in scene.objects}
    for item in scene.objects:
        answers |= {(item.place, kind): NOTHING for kind in (*_OPTIONAL, "covers", "covered")}
        # A shape that cannot be told is not to be guessed.
        del answers[item.place, "shape"]
    for kind, pairs, *_ in words.NEIGHBOURS:
        answers |= {(*pair, kind): NOTHING for pair in pairs if there.issuperset(pair)}
    for slot, value in facts.items():
        if slot[-1] == "overlap":
            answers[slot[0], "covers"], answers[slot[1], "covered"] = "something", "partly"
        elif slot[-1] in IMAGE_PROBES:
            answers[slot] = value
    return answers


def _pair_answers(scene: VideoScene, first: int) -> dict[Slot, str]:
    shot = _shown(scene, first)
    answers: dict[Slot, str] = {(place, "shape"): NOTHING for place in words.VIDEO_PLACES}
    answers |= {("scene", "background"): shot.background, ("scene", "camera"): shot.camera}
    for thing in shot.objects:
        if first in seen_frames(shot, thing):
            told = {**vars(thing), "colour": thing.colour_at(first)}
            answers |= {(thing.place, kind): told[kind] for kind in (*words.VIDEO_ATTRIBUTES, "motion")}
    return answers


def _shown(scene: VideoScene, first: int) -> Shot:
    """The shot that a pair of frames shows."""
    return next(shot for shot in scene.shots if shot.first <= first < shot.last)


def new_readers(probes: Mapping[str, Probe], grid: tuple[int, int], width: int) -> Readers:
    """The parameters of probes that know nothing yet, but where in a view its places are.

    grid: rows and columns of a view's visual tokens. width: numbers of a token.
    """
    places = _places(probes)
    rows = 3 if places == words.IMAGE_PLACES else 2
    centres = np.stack(np.divmod(np.arange(len(places)), rows), -1) + 0.5
    tokens = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]), -1) + 0.5
    apart = centres[:, None] / rows - tokens[None] / grid
    near = -_STEEPNESS * np.square(apart).sum(-1)
    readers = {
        "places": jnp.asarray(np.repeat(near[:, None], _HEADS, 1), jnp.float32),
        "whole": jnp.zeros((1, _HEADS, len(tokens)), jnp.float32),
        "row": jnp.zeros((width, grid[0]), jnp.float32),
        "column": jnp.zeros((width, grid[1]), jnp.float32),
    }
    for name, probe in probes.items():
        readers[name] = jnp.zeros((width * len(probe.owners[0]), len(probe.values)), jnp.float32)
    return readers


def new_patch_readers(values: Mapping[str, Sequence[str]], merge: int, width: int) -> Readers:
    """The parameters of the probes of single patches, ``merge**2`` to a visual token of so many numbers."""
    return {name: jnp.zeros((width, merge**2 * len(own)), jnp.float32) for name, own in values.items()}


def patch_losses(
    readers: Readers, tokens: Array, wanted: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Cross-entropy (nats) of a token's patches together, mean over tokens and summed over the probes, and the share of
    right answers of each where an object is.

    tokens: [n, tokens, width]. wanted: by probe, [n, patches], 0 where nothing is; the patches of one token stand
    beside each other.
    """
    tokens = _scaled(tokens)
    loss, rights = jnp.zeros(()), {}
    for name, right in wanted.items():
        scores = (tokens @ readers[name]).reshape(*right.shape, -1)
        each = optax.softmax_cross_entropy_with_integer_labels(scores, right)
        loss += each.sum() / (tokens.shape[0] * tokens.shape[1])
        something = right > 0
        rights[name] = (something & (scores.argmax(-1) == right)).sum() / jnp.maximum(something.sum(), 1)
    return loss, rights


def _scaled(tokens: Array) -> Array:
    """The decoder meets these tokens beside embeddings of words: their scale is not what is to be learned here."""
    return tokens * jax.lax.rsqrt(jnp.mean(jnp.square(tokens), axis=-1, keepdims=True) + 1e-6)


def probe_losses(
    probes: Mapping[str, Probe], readers: Readers, tokens: Array, wanted: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Mean cross-entropy (nats), summed over the probes, and the share of right answers of each.

    tokens: the visual tokens of n views, [n, tokens, width]. wanted: by probe, [n, owners]. Where a probe may answer
    ``NOTHING``, its share is that of the answers which are something.

    Each token is asked for its row and column, too. The decoder finds a token by what it says about that: without, it
    had learned the wording of answers after 300 steps, but not where to look.
    """
    views, count, width = tokens.shape
    tokens = _scaled(tokens)
    parts = tokens.reshape(views, count, _HEADS, width // _HEADS)

    def looked(name: str) -> Array:
        weights = jax.nn.softmax(readers[name], axis=-1)
        return jnp.einsum("pht,nthd->nphd", weights, parts).reshape(views, -1, width)

    things, whole, places = looked("places"), looked("whole"), _places(probes)
    loss, rights = jnp.zeros(()), {}
    columns = readers["column"].shape[1]
    for name, own in (("row", np.arange(count) // columns), ("column", np.arange(count) % columns)):
        scores, right = tokens @ readers[name], jnp.broadcast_to(own, (views, count))
        loss += optax.softmax_cross_entropy_with_integer_labels(scores, right).mean()
        rights[name] = (scores.argmax(-1) == right).mean()
    for name, probe in probes.items():
        if probe.owners == _VIEW:
            about = whole
        else:
            where = np.array([[places.index(str(place)) for place in owner] for owner in probe.owners])
            about = things[:, where].reshape(views, len(probe.owners), -1)
        scores, right = about @ readers[name], wanted[name]
        asked = right != UNKNOWN
        each = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.maximum(right, 0))
        loss += jnp.where(asked, each, 0).sum() / jnp.maximum(asked.sum(), 1)
        something = right > (0 if probe.values[0] == NOTHING else UNKNOWN)
        found = something & (scores.argmax(-1) == right)
        rights[name] = found.sum() / jnp.maximum(something.sum(), 1)
    return loss, rights


def _places(probes: Mapping[str, Probe]) -> tuple[str, ...]:
    """The places of a view: those at each of which a shape is asked for."""
    return tuple(str(place) for (place,) in probes["shape"].owners)


def patch_targets(scene: Scene) -> dict[str, np.ndarray]:
    """The right answers: by probe, int32 [views, patches], patches in the order of the vision tower."""
    if isinstance(scene, ImageScene):
        views = [(layers(scene).front, [_values(vars(item)) for item in scene.objects])]
        return _answers("image", views)
    return _answers("video", [_pair(scene, first) for first in range(0, words.VIDEO_FRAMES, 2)])


def _values(attributes: Mapping[str, object]) -> dict[str, str]:
    """Of an object, the values of all that a patch may be asked for."""
    return {key: WITHOUT if value is None else str(value) for key, value in attributes.items()}


def _answers(modality: str, views: list[tuple[np.ndarray, list[dict[str, str]]]]) -> dict[str, np.ndarray]:
    """views: in each, the index of the object in front at each pixel (-1 for none), and the objects' values."""
    filled = [fills(front, len(objects)) for front, objects in views]
    found = {}
    for name, values in PATCH_PROBES[modality].items():
        rows = []
        for owners, (_, objects) in zip(filled, views, strict=True):
            answers = np.array(
                [values.index(NOTHING), *(values.index(own[name]) for own in objects)], np.int32
            )
            rows.append(answers[owners + 1])
        found[name] = np.stack(rows)
    return found


def fills(front: np.ndarray, objects: int) -> np.ndarray:
    """The object that fills each patch, -1 for none: [patches], those of one visual token beside each other.

    front: [H, W], the object in front at each pixel.
    """
    size, merge = IMAGE_SETTINGS.patch_size, IMAGE_SETTINGS.merge_size
    rows, columns = (edge // (size * merge) for edge in front.shape)
    blocks = front.reshape(rows, merge, size, columns, merge, size).transpose(0, 3, 1, 4, 2, 5)
    pixels = blocks.reshape(rows * columns * merge**2, -1)
    counts = np.stack([(pixels == index).sum(1) for index in range(objects)], 1)
    return np.where(counts.max(1) >= _FILLED, counts.argmax(1), -1)


def _pair(scene: VideoScene, first: int) -> tuple[np.ndarray, list[dict[str, str]]]:
    """A pair of frames, its objects where they are in the middle between both."""
    shot = _shown(scene, first)
    front = np.full((VIDEO_EDGE, VIDEO_EDGE), -1)
    for index, thing in enumerate(shot.objects):
        if first in seen_frames(shot, thing):
            middle = first - shot.first + 0.5
            x, y = (start + middle * step for start, step in zip(thing.start, thing.step, strict=True))
            front[shape_mask(thing.shape, (x, y), thing.extent, thing.tilt, VIDEO_EDGE) >= 0.5] = index
    return front, [{**_values(vars(thing)), "colour": thing.colour_at(first)} for thing in shot.objects]
