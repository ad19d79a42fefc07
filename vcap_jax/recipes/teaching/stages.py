"""A course in figures, and its three stages: the vision tower looks, the decoder answers, then takes to its habit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import jax
import numpy as np

from vcap_jax.models.family import Features
from vcap_jax.recipes.teaching.corpus import Continuation, Corpus, batched
from vcap_jax.recipes.teaching.probes import patch_targets, targets
from vcap_jax.recipes.teaching.pupil import Pupil, Scenery
from vcap_jax.recipes.teaching.updates import DecoderUpdates, TowerUpdates, Wanted
from vcap_jax.system.json_values import JsonDict
from vcap_jax.world.backbone import IMAGE_SETTINGS
from vcap_jax.world.scenes import Modality, pick

STAGES = ("look", "answer", "habit")
"""In their order."""
_OF_STAGE = {
    "answer": ("answer_steps", "first_steps", "scenes", "questions"),
    "habit": ("habit_steps", "captions", "habit_peak"),
}
"""Settings that a stage is the first to need; the rest is the first stage's."""
MOST = {"image": 3, "video": 1}
"""Pixels by which a picture is jittered along each axis, at most, by modality."""
_GAIN = 0.03
"""How much brighter or darker a channel becomes, at most."""
_CHANNELS = 3
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


@dataclass(frozen=True, kw_only=True)
class Course:
    """One course of teaching.

    modalities: taught in turn, step by step. pictures, clips: scenes of each modality; check: others of either, to
        measure with.
    look_steps, answer_steps, habit_steps: updates of each stage. look_pictures, look_clips: in an update of the first
        stage; scenes: in one of the other two.
    questions: about one scene in an update. captions: of one scene in an update of the last stage, every other of which
        asks questions instead, so that what can be answered stays so.
    first_steps: of the second stage, how many ask in one short wording what single objects look like. With these first,
        the decoder knew after 150 steps where to look; with all questions from the beginning, not after 1,000.
    peak: Muon's learning rate in the first two stages; habit_peak: in the last.
    seed: of the random weights and of what is drawn.
    """

    modalities: tuple[Modality, ...] = ("image", "image", "video")
    pictures: int = 12_000
    clips: int = 6_000
    check: int = 128
    look_steps: int = 4500
    look_pictures: int = 64
    look_clips: int = 12
    answer_steps: int = 2000
    first_steps: int = 500
    scenes: int = 32
    questions: int = 8
    habit_steps: int = 1400
    captions: int = 2
    peak: float = 2e-2
    habit_peak: float = 1.5e-2
    seed: int = 0

    def until(self, stage: str) -> JsonDict:
        """The settings that decide what the policy is after a stage: those of later ones are not among them."""
        later = STAGES[STAGES.index(stage) + 1 :]
        left_out = {name for other in later for name in _OF_STAGE[other]}
        return {name: value for name, value in asdict(self).items() if name not in left_out}


def jittered(patches: np.ndarray, grid: tuple[int, int], most: int, rng: np.random.Generator) -> np.ndarray:
    """Each picture or clip moved as a whole by up to ``most`` pixels, edges repeated; its channels a little brighter or
    darker. So what they show stays as it is, and they are never quite the same twice.

    Objects keep off the borders of their places by more than they are moved, so no fact changes. Without this the
    vision tower learned 9,000 pictures by heart: shapes that it had met were told apart in 97 of 100 cases, others in
    83.

    patches: uint8 [B, frames, patches, numbers] as the vision tower takes them. grid: rows and columns of a frame's
    visual tokens.
    """
    size, merge = IMAGE_SETTINGS.patch_size, IMAGE_SETTINGS.merge_size
    batch, frames, _, numbers = patches.shape
    depth = numbers // (_CHANNELS * size**2)
    blocks = (batch, frames, *grid, merge, merge, _CHANNELS, depth, size, size)
    # -> picture, frame, channel, time, rows, columns
    pixels = patches.reshape(blocks).transpose(0, 1, 6, 7, 2, 4, 8, 3, 5, 9)
    height, width = (edge * merge * size for edge in grid)
    pixels = pixels.reshape(batch, frames, _CHANNELS, depth, height, width)
    room = [(0, 0)] * 4 + [(most, most)] * 2
    wide = np.pad(pixels, room, mode="edge")
    down, right = rng.integers(0, 2 * most + 1, (2, batch)).tolist()
    moved = np.stack(
        [wide[b, ..., down[b] : down[b] + height, right[b] : right[b] + width] for b in range(batch)]
    )
    gain = rng.uniform(1 - _GAIN, 1 + _GAIN, (batch, 1, _CHANNELS, 1, 1, 1)).astype(np.float32)
    lit = np.clip(np.rint(moved * gain), 0, 255).astype(np.uint8)
    rows, columns = grid
    lit = lit.reshape(batch, frames, _CHANNELS, depth, rows, merge, size, columns, merge, size)
    return lit.transpose(0, 1, 4, 7, 5, 8, 2, 3, 6, 9).reshape(patches.shape)


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
    return _speak("answer", pupil, materials, course, course.answer_steps, course.peak, say)


def habit(pupil: Pupil, materials: Materials, course: Course, say: Say) -> Pupil:
    """Teaches the decoder to caption by habit, questions in between so that what it can answer stays."""
    return _speak("habit", pupil, materials, course, course.habit_steps, course.habit_peak, say)


def _speak(
    stage: str, pupil: Pupil, materials: Materials, course: Course, steps: int, peak: float, say: Say
) -> Pupil:
    features = {name: pupil.looked(material.shown, name) for name, material in materials.items()}
    updates = DecoderUpdates(pupil, steps, peak)
    progress = _Progress(stage, steps, say)
    turns = len(course.modalities)
    for step in range(steps):
        modality = course.modalities[step % turns]
        corpus, prompts = materials[modality].corpus, pupil.prompts[modality]
        chosen, rng = _chosen(course, stage, step, len(corpus.scenes), course.scenes)
        groups: list[list[Continuation]] = []
        if stage == "answer" or step // turns % 3 == 2:
            about, width = pick(rng, ASKED[modality])
            if stage == "answer" and step < course.first_steps:
                about, width = _FIRST[modality]
            for row in chosen.tolist():
                lessons = corpus.lessons(row, about, course.questions, rng)
                groups.append([pupil.packer.lesson(lesson) for lesson in lessons])
            prompt, what = prompts.openings(len(chosen)), "questions"
        else:
            for row in chosen.tolist():
                texts = corpus.habitual(row, course.captions, rng)
                groups.append([pupil.packer.caption(text) for text in texts])
            longest = max(len(caption.tokens) for group in groups for caption in group)
            width = -(-longest // _CAPTION_STEP) * _CAPTION_STEP
            prompt, what = prompts.requests(len(chosen)), "captions"
        loss = updates.update(prompt, _rows(features[modality], chosen), batched(groups, width))
        progress.tell(step, modality, f"{loss:.4f} nats of {what}")
    return pupil.having(rest=updates.rest)


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
