"""What is taught, in figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from vcap_jax.system.json_values import JsonDict
from vcap_jax.world.scenes import Modality

STAGES = ("look", "answer", "habit")
"""In their order."""


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


_OF_STAGE = {
    "answer": ("answer_steps", "first_steps", "scenes", "questions"),
    "habit": ("habit_steps", "captions", "habit_peak"),
}
"""Settings that a stage is the first to need; the rest is the first stage's."""
