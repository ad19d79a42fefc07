"""The language of short questions: what they ask, how they are put, and what their answers say.

A question is about one slot, or about all that is at a place. Who covers whom is asked of two objects
together, so the answer is one of their places. A question about a video names the times of a shot, because whoever has
the caption only knows its segments by their times.

A text may hold lines of a question and its answer, as references that a captioner was asked for do:

    Where does the light come from? left
    What is at the top left? Nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vcap_jax.world import vocabulary as words
from vcap_jax.world.sentences import Form, Sentence, alternatives, capitalised, read_sentences
from vcap_jax.world.slots import compared, question_of
from vcap_jax.world.vocabulary import Claim, Slot

WORDINGS = 3
"""How many ways there are to put each question; the first is the plainest."""

PLACE_FORMS = (
    "What is at the {place}{when}?",
    "What does the {place} show{when}?",
    "What about the {place}{when}?",
)
"""Questions that ask for all there is at a place."""
NOTHING = "Nothing."
"""What is answered to one of them where nothing is."""
_OF_AN_OBJECT = {
    "shape": ("shape", "what shape is at the {place}{when}?"),
    "colour": ("colour", "what colour is at the {place}{when}?"),
    "size": ("size", "what size is at the {place}{when}?"),
    "pattern": ("pattern", "what pattern is at the {place}{when}?"),
    "direction": ("direction", "which way does the one at the {place} point{when}?"),
    "mark": ("mark", "what mark is at the {place}{when}?"),
    "inside": ("colour inside", "what colour is inside the one at the {place}{when}?"),
    "motion": ("motion", "how does the one at the {place} move{when}?"),
    "event": ("event", "what happens to the one at the {place}{when}?"),
    "time": ("time of the event", "when does something happen at the {place}{when}?"),
    "into": ("new colour", "what colour does the one at the {place} turn{when}?"),
}
"""Each kind of fact as a noun, and the plainest question."""
_FORMS: Mapping[str, tuple[str, str, str]] = {
    **{
        kind: (plain, f"what is the {noun} at the {{place}}{{when}}?", f"{noun} at the {{place}}{{when}}?")
        for kind, (noun, plain) in _OF_AN_OBJECT.items()
    },
    "level": (
        "is the one at the {place} higher or lower than the one at the {other}?",
        "is the {place} one higher or lower than the {other} one?",
        "higher or lower, the {place} one beside the {other} one?",
    ),
    "side": (
        "is the one at the {place} further left or further right than the one at the {other}?",
        "is the {place} one further left or right than the {other} one?",
        "further left or right, the {place} one beside the {other} one?",
    ),
    "overlap": (
        "which covers the other, the one at the {place} or the one at the {other}?",
        "which lies in front, the {place} one or the {other} one?",
        "in front, the {place} one or the {other} one?",
    ),
    "objects": ("how many objects are there?", "what is the number of objects?", "number of objects?"),
    "count": ("how many {shapes} are there?", "what is the number of {shapes}?", "number of {shapes}?"),
    "light": ("where does the light come from?", "what is the side of the light?", "side of the light?"),
    "background": (
        "what colour is the background{when}?",
        "what is the background{when}?",
        "background{when}?",
    ),
    "camera": ("what does the camera do{when}?", "how does the camera move{when}?", "camera{when}?"),
    "first": (
        "where does something happen first{when}?",
        "where is the first event{when}?",
        "place of the first event{when}?",
    ),
    "shots": ("how many shots are there?", "what is the number of shots?", "number of shots?"),
    "cut 1": ("when does the scene change first?", "when is the first cut?", "time of the first cut?"),
    "cut 2": ("when does the scene change again?", "when is the second cut?", "time of the second cut?"),
}
_SHAPE_OF = {plural: shape for shape, plural in words.PLURALS.items()}
_FIXED = {
    str(slot[-1]): slot
    for slot in (
        words.BACKGROUND,
        words.LIGHT,
        words.OBJECTS,
        words.CAMERA,
        words.FIRST,
        words.SHOTS,
        *words.CUTS,
    )
}
_PARTS = {
    "place": rf"(?P<place>{alternatives(words.IMAGE_PLACES)})",
    "other": rf"(?P<other>{alternatives(words.IMAGE_PLACES)})",
    "shapes": rf"(?P<shapes>{alternatives(_SHAPE_OF)})",
    "when": r"(?: from (?P<start>\d+\.\d) to (?P<end>\d+\.\d) seconds)?",
}
_READERS = tuple(
    (kind, re.compile(template.replace("?", r"\?").format(**_PARTS)))
    for kind, templates in _FORMS.items()
    for template in templates
)
_PLACE_READERS = tuple(re.compile(form.replace("?", r"\?").format(**_PARTS)) for form in PLACE_FORMS)


@dataclass(frozen=True)
class Asked:
    """What a question is about. span: start and end in seconds of a video's shot, which its slot then lacks."""

    slot: Slot
    span: tuple[float, float] | None = None


@dataclass(frozen=True)
class Place:
    """A question about all that is at a place. span: as of ``Asked``."""

    place: str
    span: tuple[float, float] | None = None


def put(asked: Asked, wording: int = 0) -> str:
    """The question that asks this, in the wording of this number, below ``WORDINGS``."""
    owner, *others, kind = question_of(asked.slot)
    blanks = {"place": owner, "other": others[0] if others else "", "when": when(asked.span)}
    if kind == "count":
        blanks["shapes"] = words.PLURALS[str(others[0])]
    return capitalised(_FORMS[str(kind)][wording].format(**blanks))


def when(span: tuple[float, float] | None) -> str:
    """How a question names start and end of a shot in seconds; empty for None."""
    return "" if span is None else f" from {span[0]:.1f} to {span[1]:.1f} seconds"


def options_of(slot: Slot) -> tuple[str, ...]:
    """What can be answered to the question about a slot."""
    if slot[-1] == "overlap":
        one, other, _ = question_of(slot)
        return str(one), str(other)
    return words.VALUES[str(slot[-1])]


def answer_of(slot: Slot, value: str) -> str:
    """What a slot's value answers to the question about it: the value, or the place of who covers the other."""
    return str(slot[0]) if slot[-1] == "overlap" else value


def read_question(text: str) -> Asked | None:
    """What a question asks, in any wording; None for one that :func:`put` does not write."""
    plain = text[:1].lower() + text[1:]
    for kind, pattern in _READERS:
        if (match := pattern.fullmatch(plain)) is not None:
            found = match.groupdict()
            return Asked(_slot(kind, found), _span(found))
    return None


def _slot(kind: str, found: Mapping[str, str]) -> Slot:
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == "count":
        return ("scene", _SHAPE_OF[found["shapes"]], kind)
    if "other" in found:
        return (found["place"], found["other"], kind)
    return (found["place"], kind)


@dataclass(frozen=True)
class Answered:
    """A line of a text with a question and its answer."""

    question: str
    asked: Asked | Place
    answer: str

    @property
    def claim(self) -> Claim | None:
        """What the answer claims, without the shot where the question names times; None for an answer that is none of
        the question's options, for one about two places that are not compared, and of a whole place, whose answer is a
        caption."""
        if isinstance(self.asked, Place):
            return None
        slot, said = self.asked.slot, self.answer.rstrip(".").lower()
        told = next((option for option in options_of(slot) if option.lower() == said), None)
        if told is None:
            return None
        if slot[-1] in ("level", "side"):
            return compared(slot[0], slot[1], told)
        if slot[-1] != "overlap":
            return slot, told
        covered = [place for place in slot[:2] if place != told]
        return ((told, *covered, "overlap"), "covers") if covered else None  # it may ask of one and the same

    def sentences(self, forms: Sequence[Form], slots: Collection[Slot]) -> tuple[Sentence, ...]:
        """What stands there, as a caption whose sentences have these forms and are about these slots; without the shot,
        too."""
        line = f"{self.question} {self.answer}"
        if isinstance(self.asked, Asked):
            claim = self.claim
            return (Sentence(line, () if claim is None or claim[0] not in slots else (claim,)),)
        if self.answer == NOTHING:
            return (Sentence(line, (), empty=self.asked.place),)
        return (Sentence(self.question, ()), *read_sentences(self.answer, forms))


def take_answers(text: str, *, timed: bool) -> tuple[str, list[Answered]]:
    """A text without its lines of question and answer, and these. timed: also of questions that name times, as there
    are none about pictures."""
    if "?" not in text:
        return text, []
    found: list[Answered] = []
    rest = []
    for line in text.split("\n"):
        question, mark, answer = (part.strip() for part in line.partition("?"))
        about = read_question(question + mark) or _read_place(question + mark)
        if about is None or not answer or (about.span is not None and not timed):
            rest.append(line)
        else:
            found.append(Answered(question + mark, about, answer))
    return "\n".join(rest), found


def _read_place(text: str) -> Place | None:
    for pattern in _PLACE_READERS:
        if (match := pattern.fullmatch(text)) is not None:
            return Place(match["place"], _span(match.groupdict()))
    return None


def _span(found: Mapping[str, str | None]) -> tuple[float, float] | None:
    start, end = found.get("start"), found.get("end")
    return None if start is None or end is None else (float(start), float(end))
