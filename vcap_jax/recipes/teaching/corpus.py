"""Whatever the policy is taught to say, scene by scene, and the count of how much of a scene any of it states.

It is asked short questions about one thing, each with its true answer: about one fact ("What colour is at the top
left?"), answered by a word, or about one place ("What is at the top left?"), answered by the sentences with which a
caption would tell of it. How many facts an answer states is known.

As tokens many questions about one picture share its opening. A chat is only tokens. The opening of a prompt ends right
after the visual tokens, inside the user's turn, so each continuation is the rest of a chat of its own: the question,
the end of the turn, and the answer. The loss is on the answer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from vcap_jax.models.family import Processor
from vcap_jax.parallel.arrays import ArrayT
from vcap_jax.system.json_values import JsonDict
from vcap_jax.world.asking import NOTHING, PLACE_FORMS, WORDINGS, answer_of, when
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.habits import MOST_STATED, SceneHabit, scene_habit, stated_slots
from vcap_jax.world.image_grammar import say_image
from vcap_jax.world.questions import question
from vcap_jax.world.scenes import ImageScene, Scene, VideoScene, pick, places_of
from vcap_jax.world.sentences import capitalised, draw_wording
from vcap_jax.world.video_grammar import say_shot
from vcap_jax.world.vocabulary import HAPPENINGS, IMAGE_ATTRIBUTES, VIDEO_ATTRIBUTES, Facts, Slot

RELATIONS = ("level", "side", "overlap")
"""Kinds of facts about two objects: their questions are longer than others."""
_TURN = "<|im_end|>\n<|im_start|>assistant\n"


class Lesson(NamedTuple):
    """kind: of the fact that is asked for, "thing" where it is a place. states: facts that the answer tells."""

    kind: str
    question: str
    answer: str
    states: int


def fact_lesson(
    scene: Scene, facts: Facts, slot: Slot, rng: np.random.Generator, *, terse: bool = False
) -> Lesson:
    """The question about one of the scene's facts, in a wording that ``rng`` draws; the shortest one if ``terse``."""
    asked = question(scene, slot, WORDINGS - 1 if terse else int(rng.integers(WORDINGS)))
    return Lesson(str(slot[-1]), asked, answer_of(slot, facts[slot]), 1)


def place_lesson(scene: Scene, facts: Facts, owner: Slot, rng: np.random.Generator) -> Lesson:
    """The question about one of ``places_of``, answered in a wording that ``rng`` draws."""
    kinds = IMAGE_ATTRIBUTES if isinstance(scene, ImageScene) else (*VIDEO_ATTRIBUTES, "motion", *HAPPENINGS)
    place = str(owner[-1])
    span = scene.shots[int(owner[0])].seconds if isinstance(scene, VideoScene) else None
    asked = pick(rng, PLACE_FORMS).format(place=place, when=when(span))
    wording = draw_wording(rng)
    told: Facts = {(place, kind): facts[*owner, kind] for kind in kinds if (*owner, kind) in facts}
    if not told:
        return Lesson("thing", asked, NOTHING, 0)
    said = say_image(told, wording) if isinstance(scene, ImageScene) else say_shot(told, wording)
    return Lesson("thing", asked, " ".join(map(capitalised, said)), len(told))


class TooMuchStated(RuntimeError):
    """A text would have told the policy more of a scene than any text may."""


@dataclass
class Stated:
    """What texts stated of their scenes. texts: how many; largest, total: shares of a scene's facts."""

    texts: int = 0
    largest: float = 0.0
    total: float = 0.0

    def count(self, stated: int, facts: int, text: str) -> None:
        """Counts a text. Raises TooMuchStated for one that states more than ``MOST_STATED`` of its scene's facts."""
        share = stated / facts
        if share > MOST_STATED:
            raise TooMuchStated(f"a text states {stated} of its scene's {facts} facts: {text!r}")
        self.texts += 1
        self.largest = max(self.largest, share)
        self.total += share

    def row(self) -> JsonDict:
        """For the card: number of texts, largest and mean share of a scene's facts that one states."""
        return {
            "texts": self.texts,
            "largest_share": round(self.largest, 4),
            "mean_share": round(self.total / max(self.texts, 1), 4),
        }


@dataclass
class Corpus:
    """Lessons and captions of scenes, drawn anew at every visit and counted as they are handed out."""

    scenes: Sequence[Scene]
    answers: Stated = field(default_factory=Stated)
    captions: Stated = field(default_factory=Stated)
    _facts: dict[int, Facts] = field(default_factory=dict)
    _habits: dict[int, SceneHabit] = field(default_factory=dict)

    def lessons(self, index: int, about: str, count: int, rng: np.random.Generator) -> list[Lesson]:
        """So many questions about a scene with their answers: about its "places", or about facts ("relations" of two
        objects, or all other "attributes"), where each kind is drawn as often. A scene without relations is asked about
        the rest. "first" questions are about what single objects look like, in one short wording."""
        if index not in self._facts:
            self._facts[index] = scene_facts(self.scenes[index])
        scene, facts = self.scenes[index], self._facts[index]
        drawn = [self._lesson(scene, facts, about, rng) for _ in range(count)]
        for lesson in drawn:
            self.answers.count(lesson.states, len(facts), lesson.answer)
        return drawn

    def _lesson(self, scene: Scene, facts: Facts, about: str, rng: np.random.Generator) -> Lesson:
        if about == "places":
            return place_lesson(scene, facts, pick(rng, places_of(scene)), rng)
        if about == "first":
            looks = [slot for slot in facts if slot[-1] in IMAGE_ATTRIBUTES]
            return fact_lesson(scene, facts, pick(rng, looks), rng, terse=True)
        of_kind: dict[str, list[Slot]] = {}
        for slot in facts:
            of_kind.setdefault(str(slot[-1]), []).append(slot)
        related = sorted(kind for kind in of_kind if kind in RELATIONS)
        others = sorted(kind for kind in of_kind if kind not in RELATIONS)
        kind = pick(rng, related if about == "relations" and related else others)
        return fact_lesson(scene, facts, pick(rng, of_kind[kind]), rng)

    def habitual(self, index: int, count: int, rng: np.random.Generator) -> list[str]:
        """So many captions by the habit."""
        if index not in self._habits:
            self._habits[index] = scene_habit(self.scenes[index])
        habit = self._habits[index]
        texts = [habit.caption(rng) for _ in range(count)]
        for text in texts:
            stated = stated_slots(habit.facts, caption_claims(habit.scene, text))
            self.captions.count(len(stated), len(habit.facts), text)
        return texts

    def rows(self) -> JsonDict:
        """What answers and captions have stated since ``forget``, for the card."""
        return {"answers": self.answers.row(), "captions": self.captions.row()}

    def forget(self) -> None:
        """Begins to count anew."""
        self.answers, self.captions = Stated(), Stated()


class Continuation(NamedTuple):
    """Tokens that follow an opening or a prompt; those from ``answer`` on are learned, the last ends the turn."""

    tokens: tuple[int, ...]
    answer: int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LessonBatch(Generic[ArrayT]):
    """Continuations of B openings, G of each. starts, lengths: where the answer begins and ends; both 0 for none."""

    tokens: Int[ArrayT, "B G T"]
    starts: Int[ArrayT, "B G"]
    lengths: Int[ArrayT, "B G"]


class Packer:
    """Texts to tokens, each text once."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._known: dict[str, tuple[int, ...]] = {}

    def tokens(self, text: str) -> tuple[int, ...]:
        """The tokens of a text."""
        if text not in self._known:
            found = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
            self._known[text] = tuple(found)
        return self._known[text]

    def lesson(self, lesson: Lesson) -> Continuation:
        """Question and answer after an opening."""
        asked = (*self.tokens(lesson.question), *self.tokens(_TURN))
        return Continuation((*asked, *self.caption(lesson.answer).tokens), len(asked))

    def caption(self, text: str) -> Continuation:
        """A caption after a whole prompt."""
        return Continuation((*self.tokens(text), self._processor.eos_token_ids[0]), 0)


def batched(groups: Sequence[Sequence[Continuation]], width: int) -> LessonBatch[np.ndarray]:
    """Continuations [b][g], as many for each b, padded to ``width`` tokens. Raises ValueError for a longer one."""
    shape = (len(groups), len(groups[0]))
    tokens = np.zeros((*shape, width), np.int32)
    starts, lengths = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for b, group in enumerate(groups):
        for g, continuation in enumerate(group):
            size = len(continuation.tokens)
            if size > width:
                raise ValueError(f"a lesson has {size} tokens, there is room for {width}: give it more")
            tokens[b, g, :size] = continuation.tokens
            starts[b, g], lengths[b, g] = continuation.answer, size
    return LessonBatch(tokens, starts, lengths)
