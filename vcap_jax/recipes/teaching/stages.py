"""The three stages of a course: the vision tower looks, the decoder answers, and then takes to its habit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np

from vcap_jax.models.family import Features
from vcap_jax.recipes.teaching.corpus import Corpus
from vcap_jax.recipes.teaching.course import STAGES, Course
from vcap_jax.recipes.teaching.jitter import MOST, jittered
from vcap_jax.recipes.teaching.packing import Continuation, batched
from vcap_jax.recipes.teaching.patches import patch_targets
from vcap_jax.recipes.teaching.probes import targets
from vcap_jax.recipes.teaching.pupil import Pupil
from vcap_jax.recipes.teaching.scenery import Scenery
from vcap_jax.recipes.teaching.updates import DecoderUpdates, TowerUpdates, Wanted
from vcap_jax.world.backbone import IMAGE_SETTINGS
from vcap_jax.world.scenes import Modality, pick

Say = Callable[[str], None]
_TELL_EVERY = 200
"""Steps between two lines of progress."""
ASKED: Mapping[Modality, tuple[tuple[str, int], ...]] = {
    "image": (("attributes", 20), ("places", 36), ("relations", 28), ("places", 36)),
    "video": (("attributes", 34), ("places", 56)),
}
"""What the questions of a step are about, drawn anew for each step, and tokens of one with its answer, at most.

Questions of one length leave little room empty."""
_FIRST: Mapping[Modality, tuple[str, int]] = {"image": ("first", 16), "video": ("first", 28)}
"""The same of the steps with which answering begins."""
_CAPTION_STEP = 16
"""Captions are padded to a multiple of so many tokens."""


@dataclass(frozen=True)
class Material:
    """What one modality is taught with. shown: scenes with their pictures; check: others; corpus: of what is said."""

    shown: Scenery
    check: Scenery
    corpus: Corpus


Materials = Mapping[Modality, Material]


class _Progress:
    """Lines of a stage: what it does, how long it has taken, how long it will."""

    def __init__(self, stage: str, steps: int, say: Say) -> None:
        self._stage, self._steps, self._say = stage, steps, say
        self._begin = time.monotonic()

    def tell(self, step: int, modality: str, what: str) -> None:
        """Tells of steps that are some way apart, the last among them. step: number of the one that is done."""
        if step % _TELL_EVERY < 2 or step >= self._steps - 2:
            spent = time.monotonic() - self._begin
            left = spent / (step + 1) * (self._steps - step - 1)
            self._say(
                f"{self._stage} {step + 1}/{self._steps} {modality}: {what}; {spent:.0f} s, {left:.0f} s left"
            )


def look(pupil: Pupil, materials: Materials, course: Course, say: Say) -> Pupil:
    """Teaches the vision tower by probes; the decoder is not asked."""
    wanted = {name: _targets(material.shown) for name, material in materials.items()}
    grids: dict[str, tuple[int, int]] = {name: pupil.prompts[name].grid[1:] for name in materials}
    merge = IMAGE_SETTINGS.merge_size
    updates = TowerUpdates(pupil, grids, merge, course.look_steps, course.peak)
    progress = _Progress("look", course.look_steps, say)
    for step in range(course.look_steps):
        modality = course.modalities[step % len(course.modalities)]
        shown = materials[modality].shown
        size = course.look_pictures if modality == "image" else course.look_clips
        chosen, rng = _chosen(course, "look", step, len(shown.scenes), size)
        patches = jittered(shown.patches[chosen], grids[modality], MOST[modality], rng)
        seen = updates.update(
            modality, pupil.prompts[modality].whole(patches), _views(wanted[modality], chosen)
        )
        progress.tell(step, modality, _shares(*seen))
    for modality, material in materials.items():
        rows = np.arange(len(material.check.scenes))
        seen = updates.check(
            modality,
            pupil.prompts[modality].whole(material.check.patches),
            _views(_targets(material.check), rows),
        )
        say(f"look, unseen {modality}s: {_shares(*seen)}")
    return pupil.having(visual=updates.visual)


def answer(pupil: Pupil, materials: Materials, course: Course, say: Say) -> Pupil:
    """Teaches the decoder to answer short questions about what the tower sees."""
    features = {name: pupil.looked(material.shown, name) for name, material in materials.items()}
    updates = DecoderUpdates(pupil, course.answer_steps, course.peak)
    progress = _Progress("answer", course.answer_steps, say)
    for step in range(course.answer_steps):
        modality = course.modalities[step % len(course.modalities)]
        loss = _question_step(
            updates, pupil, modality, materials[modality], features[modality], course, "answer", step
        )
        progress.tell(step, modality, f"{loss:.4f} nats")
    return pupil.having(rest=updates.rest)


def habit(pupil: Pupil, materials: Materials, course: Course, say: Say) -> Pupil:
    """Teaches the decoder to caption by habit, questions in between so that what it can answer stays."""
    features = {name: pupil.looked(material.shown, name) for name, material in materials.items()}
    updates = DecoderUpdates(pupil, course.habit_steps, course.habit_peak)
    progress = _Progress("habit", course.habit_steps, say)
    each = len(course.modalities)
    for step in range(course.habit_steps):
        modality = course.modalities[step % each]
        material = materials[modality]
        if step // each % 3 == 2:
            loss = _question_step(
                updates, pupil, modality, material, features[modality], course, "habit", step
            )
            what = "questions"
        else:
            chosen, rng = _chosen(course, "habit", step, len(material.shown.scenes), course.scenes)
            groups = [
                [pupil.packer.caption(text) for text in material.corpus.habitual(row, course.captions, rng)]
                for row in chosen.tolist()
            ]
            prompt = pupil.prompts[modality].requests(len(chosen))
            longest = max(len(caption.tokens) for group in groups for caption in group)
            batch = batched(groups, -(-longest // _CAPTION_STEP) * _CAPTION_STEP)
            loss = updates.update(prompt, _rows(features[modality], chosen), batch)
            what = "captions"
        progress.tell(step, modality, f"{loss:.4f} nats of {what}")
    return pupil.having(rest=updates.rest)


def _question_step(
    updates: DecoderUpdates,
    pupil: Pupil,
    modality: Modality,
    material: Material,
    features: Features,
    course: Course,
    stage: str,
    step: int,
) -> jax.Array:
    chosen, rng = _chosen(course, stage, step, len(material.shown.scenes), course.scenes)
    about, width = pick(rng, ASKED[modality])
    if stage == "answer" and step < course.first_steps:
        about, width = _FIRST[modality]
    groups: list[list[Continuation]] = [
        [pupil.packer.lesson(lesson) for lesson in material.corpus.lessons(row, about, course.questions, rng)]
        for row in chosen.tolist()
    ]
    prompt = pupil.prompts[modality].openings(len(chosen))
    return updates.update(prompt, _rows(features, chosen), batched(groups, width))


def _chosen(
    course: Course, stage: str, step: int, among: int, size: int
) -> tuple[np.ndarray, np.random.Generator]:
    """Rows of different scenes for one step, in order, and the generator of whatever else it draws."""
    rng = np.random.default_rng([course.seed, STAGES.index(stage), step])
    return np.sort(rng.choice(among, size=size, replace=False)), rng


def _rows(features: Features, chosen: np.ndarray) -> Features:
    picked: Features = jax.tree.map(lambda leaf: leaf[chosen], features)
    return picked


def _targets(scenery: Scenery) -> Wanted[np.ndarray]:
    """By probe, [scenes, views, owners or patches]."""
    places, patches = ([ask(scene) for scene in scenery.scenes] for ask in (targets, patch_targets))
    return Wanted(
        {name: np.stack([one[name] for one in places]) for name in places[0]},
        {name: np.stack([one[name] for one in patches]) for name in patches[0]},
    )


def _views(wanted: Wanted[np.ndarray], rows: np.ndarray) -> Wanted[np.ndarray]:
    """Of some scenes, by probe, [views of all, owners or patches]."""
    picked: Wanted[np.ndarray] = jax.tree.map(lambda own: own[rows].reshape(-1, own.shape[-1]), wanted)
    return picked


def _shares(loss: jax.Array, rights: Mapping[str, jax.Array]) -> str:
    return f"{loss:.3f} nats, " + " ".join(f"{name} {share:.3f}" for name, share in rights.items())
