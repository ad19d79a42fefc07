"""What captions of the world are made of: sentences with claims, noun phrases, and the wording that a caption keeps to.

Captions are read sentence by sentence. A sentence either has exactly one of the grammar's forms or claims nothing: half
a sentence, or one with a word too many, says nothing. Whoever writes keeps one wording through a caption; whoever reads
knows all of them.

A noun phrase tells an object's attributes. A large red arrow with stripes that points up is ``{"size": "large",
"pattern": "striped", "colour": "red", "shape": "arrow", "direction": "up"}``, and so is "a big striped red arrow
pointing up". Any subset can be said; without a shape it is "an object".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vcap_jax.world.vocabulary import COLOURS, DIRECTIONS, MARKS, NUMBERS, SHAPES, Claim

Claims = Callable[[re.Match[str]], Sequence[Claim] | None]
"""What a match claims; None if it is no sentence of the world after all."""
Reader = tuple[Iterable[str], Claims]
"""Templates of sentences, such as ``"the background is {colour}."``, and what those of one claim."""
Form = tuple[re.Pattern[str], Claims]
"""One form of sentence: the pattern that it matches as a whole, and what a match claims."""
TOPICS = (
    *("object", "size", "pattern", "direction", "mark", "inside", "gray", "one", "relation", "overlap"),
    *("number", "count", "light", "background", "event", "first", "camera", "shots", "cut"),
)
"""What there are several wordings for."""
_DRAWS = 6
"""Every topic has one, two or three wordings, so that each is as likely as the others."""
REFERENCES = ("the one at the {place}", "the {place} one", "the object at the {place}")
"""How a sentence points to an object that another sentence has described."""
_SIZES = {"small": ("small", "little"), "large": ("large", "big")}
_ADJECTIVES = {"striped": "striped", "dotted": "dotted", "checked": "checked", "checkered": "checked"}
_NOUNS = {"striped": "stripes", "dotted": "dots", "checked": "checks"}
_DIRECTION_FORMS = ("pointing {}", "that points {}")
_MARK_FORMS = ("marked {mark}", "with {article} {mark} on it")
_INSIDE_FORMS = ("with {article} {colour} dot inside", "around {article} {colour} dot")
_SPOKEN_WITH_A_VOWEL = ("8", "A", "X")
_SIZE_WORDS = {word: size for size, words in _SIZES.items() for word in words}
_PATTERN_WORDS = {word: pattern for pattern, word in _NOUNS.items()}
_MARK_WORDS = {mark.lower(): mark for mark in MARKS}


@dataclass(frozen=True)
class Sentence:
    """A piece of a caption and what it claims (nothing, if the grammar does not know its form).

    In a segment of a video caption the slots of ``claims`` lack the shot, which follows from the segment's times.
    empty: a place at which it says that nothing is. That is no claim: no caption is expected to say what is not there.
    """

    text: str
    claims: tuple[Claim, ...]
    empty: str | None = None


@dataclass(frozen=True)
class Wording:
    """Which wording of each topic a caption keeps to: numbers in the order of ``TOPICS``; 0 is the plainest."""

    draws: tuple[int, ...] = (0,) * len(TOPICS)

    def of(self, topic: str, forms: Sequence[str]) -> str:
        """The caption's choice among the forms of a topic. Raises ValueError unless there are one, two or three."""
        if not forms or _DRAWS % len(forms):
            raise ValueError(f"{topic} has {len(forms)} wordings: give it one, two or three")
        return forms[self.draws[TOPICS.index(topic)] % len(forms)]


PLAIN = Wording()


def draw_wording(rng: np.random.Generator) -> Wording:
    """A wording, uniformly; takes the same draws from ``rng`` whatever is to be said."""
    return Wording(tuple(rng.integers(_DRAWS, size=len(TOPICS)).tolist()))


def alternatives(words: Iterable[str]) -> str:
    """A regular expression for any one of ``words``."""
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


def number_of(word: str) -> str:
    """``"six"`` or ``"6"`` -> ``"six"``."""
    return NUMBERS[int(word)] if word.isdigit() else word


NUMBER = f"{alternatives(NUMBERS[2:])}|[2-9]"
"""Numbers that captions may give, from two on, in words or as a digit."""


def reference_pattern(name: str, places: Iterable[str]) -> str:
    """A regular expression for any of ``REFERENCES``, whose place is the group ``name``."""
    return (
        rf"the (?P<{name}_at>(?:one|object) at the )?(?P<{name}>{alternatives(places)})"
        rf"(?({name}_at)| (?:one|object))"
    )


def capitalised(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def split_sentences(text: str) -> list[str]:
    """Pieces of a text, each up to and including its full stop; the last may lack one, none is blank.

    A full stop before a digit belongs to a number.
    """
    return [piece.strip() for piece in re.split(r"(?<=[.!?])(?![\d.!?])", text) if piece.strip()]


def read_sentences(text: str, forms: Sequence[Form]) -> tuple[Sentence, ...]:
    """The sentences of a text with what they claim by the first of ``forms`` that each has.

    A sentence may run over several lines. Where it claims nothing as a whole and one of its lines does, the lines are
    sentences of their own: what stands on the line before a sentence does not hide it.
    """
    found: list[Sentence] = []
    for piece in split_sentences(text):
        whole = Sentence(piece, _claims(piece, forms))
        lines = [Sentence(line.strip(), _claims(line, forms)) for line in piece.splitlines() if line.strip()]
        alone = not whole.claims and len(lines) > 1 and any(line.claims for line in lines)
        found += lines if alone else [whole]
    return tuple(found)


def normalised(sentence: str) -> str:
    """Lower case, single spaces."""
    return " ".join(sentence.lower().split())


def distinct(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims without repetitions, in order of first appearance."""
    return tuple(dict.fromkeys(claims))


def forms_of(parts: Mapping[str, str], readers: Iterable[Reader]) -> tuple[Form, ...]:
    """The forms of sentences of all ``readers``. parts: regular expressions for what templates leave open."""
    return tuple(
        (re.compile(template.replace(".", r"\.").format(**parts)), claims)
        for templates, claims in readers
        for template in templates
    )


def _claims(sentence: str, forms: Sequence[Form]) -> tuple[Claim, ...]:
    """Nothing where the sentence has none of the forms."""
    plain = normalised(sentence)
    for pattern, claims in forms:
        if (match := pattern.fullmatch(plain)) is not None and (found := claims(match)) is not None:
            return tuple(found)
    return ()


_COLOUR = alternatives(COLOURS)
_HEAD = re.compile(
    rf"an? (?:(?P<size>{alternatives(_SIZE_WORDS)}) )?(?:(?P<before>{alternatives(_ADJECTIVES)}) )?"
    rf"(?:(?P<colour>{_COLOUR}) )?(?:(?P<after>{alternatives(_ADJECTIVES)}) )?"
    rf"(?P<shape>{alternatives(SHAPES)}|object)"
)
_MARK = alternatives(_MARK_WORDS)
_TAIL = re.compile(
    rf" (?:with (?P<pattern>{alternatives(_PATTERN_WORDS)})"
    rf"|(?:pointing|that points) (?P<direction>{alternatives(DIRECTIONS)})"
    rf"|marked (?P<mark>{_MARK})|with an? (?P<borne>{_MARK}) on it"
    rf"|with an? (?P<inside>{_COLOUR}) dot inside|around an? (?P<within>{_COLOUR}) dot)(?= |$)"
)


def say_thing(attributes: Mapping[str, str], wording: Wording) -> str:
    """The noun phrase of an object with these attributes, article included."""
    words = []
    tail = []
    if "size" in attributes:
        words.append(wording.of("size", _SIZES[attributes["size"]]))
    if "pattern" in attributes:
        adjective, noun = attributes["pattern"], f"with {_NOUNS[attributes['pattern']]}"
        if wording.of("pattern", ("adjective", "noun")) == "adjective":
            words.append(adjective)
        else:
            tail.append(noun)
    if "colour" in attributes:
        words.append(attributes["colour"])
    words.append(attributes.get("shape", "object"))
    if "inside" in attributes:
        colour = attributes["inside"]
        tail.append(wording.of("inside", _INSIDE_FORMS).format(article=article(colour), colour=colour))
    if "direction" in attributes:
        tail.append(wording.of("direction", _DIRECTION_FORMS).format(attributes["direction"]))
    if "mark" in attributes:
        mark = attributes["mark"]
        before = "an" if mark in _SPOKEN_WITH_A_VOWEL else "a"
        tail.append(wording.of("mark", _MARK_FORMS).format(article=before, mark=mark))
    return " ".join([article(words[0]), *words, *tail])


def article(word: str) -> str:
    """ "an" before a vowel, else "a"."""
    return "an" if word[0] in "aeiou" else "a"


def read_thing(text: str, known: Collection[str]) -> dict[str, str] | None:
    """The attributes of a noun phrase in lower case, "object" being no shape; None if it is not one.

    known: attributes that may occur in it; with any other, or one said twice, it is no noun phrase.
    """
    head = _HEAD.match(text)
    if head is None:
        return None
    found: list[tuple[str, str]] = []
    if head["size"]:
        found.append(("size", _SIZE_WORDS[head["size"]]))
    found += [("pattern", _ADJECTIVES[head[group]]) for group in ("before", "after") if head[group]]
    if head["colour"]:
        found.append(("colour", head["colour"]))
    if head["shape"] != "object":
        found.append(("shape", head["shape"]))
    at = head.end()
    while at < len(text):
        tail = _TAIL.match(text, at)
        if tail is None:
            return None
        found.append(_tail_attribute(tail))
        at = tail.end()
    attributes = dict(found)
    if len(attributes) < len(found) or not attributes.keys() <= set(known):
        return None
    return attributes


def thing_claims(match: re.Match[str], kinds: Collection[str]) -> list[Claim] | None:
    """What a sentence says of the ``thing`` at its ``place``; None if that is no noun phrase of these ``kinds``."""
    attributes = read_thing(match["thing"], kinds)
    if attributes is None:
        return None
    return [((match["place"], kind), attributes[kind]) for kind in kinds if kind in attributes]


def _tail_attribute(tail: re.Match[str]) -> tuple[str, str]:
    match tail.lastgroup:
        case "pattern":
            return "pattern", _PATTERN_WORDS[tail["pattern"]]
        case "mark" | "borne" as group:
            return "mark", _MARK_WORDS[tail[group]]
        case "inside" | "within" as group:
            return "inside", tail[group]
        case _:
            return "direction", tail["direction"]
