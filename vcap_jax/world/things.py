"""Noun phrases: an object's attributes to English and back.

A large red arrow with stripes that points up is ``{"size": "large", "pattern": "striped", "colour": "red", "shape":
"arrow", "direction": "up"}``, and so is "a big striped red arrow pointing up". Any subset can be said; without a shape
it is "an object".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from vcap_jax.world.sentences import Wording, alternatives
from vcap_jax.world.vocabulary import COLOURS, DIRECTIONS, MARKS, SHAPES, Claim

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
