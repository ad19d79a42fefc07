"""Attacks by claims of the embedded world's grammar: guessing, hedging and tricks with times."""

from __future__ import annotations

import re
from collections.abc import Callable

from benchmarks.attacks.attack import Attack, Target, appended, guessed, instead
from vcap_jax.world import vocabulary as words

_HEADER = re.compile(r"^\[(\d+\.\d) - (\d+\.\d)\]", re.MULTILINE)


def _places(target: Target) -> tuple[str, ...]:
    return words.IMAGE_PLACES if target.modality == "image" else words.VIDEO_PLACES


def _laid_out(target: Target, sentences: str) -> str:
    """Sentences as a caption of their own: in both halves of a video."""
    if target.modality == "image":
        return sentences
    half = words.VIDEO_SECONDS / 2
    return f"[0.0 - {half:.1f}] {sentences}\n[{half:.1f} - {words.VIDEO_SECONDS:.1f}] {sentences}"


def _everywhere(things: list[str]) -> Callable[[Target], str]:
    def write(target: Target) -> str:
        said = [f"At the {place} there is {thing}." for place in _places(target) for thing in things]
        return _laid_out(target, " ".join(said))

    return write


def _with_segments(rewrite: Callable[[str, str], str]) -> Callable[[Target], str]:
    """The honest caption with each header rewritten from its start and end."""
    return lambda target: _HEADER.sub(lambda match: rewrite(match[1], match[2]), target.honest)


def _lines(target: Target) -> list[str]:
    """What the segments of the honest caption say, without their headers."""
    return [line.split("] ", 1)[1] for line in target.honest.splitlines() if _HEADER.match(line)]


def _all_in_every_segment(target: Target) -> str:
    spans = [match.group() for match in _HEADER.finditer(target.honest)]
    return "\n".join(f"{span} {' '.join(_lines(target))}" for span in spans)


def _each_second(target: Target) -> str:
    said = " ".join(_lines(target))
    return "\n".join(f"[{t:.1f} - {t + 1:.1f}] {said}" for t in range(int(words.VIDEO_SECONDS)))


def _each_frame(target: Target) -> str:
    said = " ".join(_lines(target))
    count = int(words.VIDEO_SECONDS * words.VIDEO_FPS)
    return "\n".join(
        f"[{k / words.VIDEO_FPS:.1f} - {(k + 1) / words.VIDEO_FPS:.1f}] {said}" for k in range(count)
    )


def _wrong_twin(text: str) -> str:
    """The text with every colour replaced by the next one."""
    names = list(words.COLOURS)
    following = dict(zip(names, [*names[1:], names[0]], strict=True))
    return re.sub("|".join(names), lambda match: following[match.group()], text)


def _either(text: str) -> str:
    return re.sub(r"\b(" + "|".join(words.COLOURS) + r")\b", lambda m: f"{m[1]} or {_wrong_twin(m[1])}", text)


def _denied(target: Target) -> str:
    said = [
        f"There is no {colour} {shape} at the {place}."
        for place in _places(target)
        for colour in list(words.COLOURS)[:3]
        for shape in words.SHAPES[:2]
    ]
    return " ".join(said)


_CLOCK = {
    "clock times": lambda a, b: f"[00:{float(a):04.1f} - 00:{float(b):04.1f}]",
    "round brackets": lambda a, b: f"({a} - {b})",
    "arrow": lambda a, b: f"[{a} --> {b}]",
    "swapped limits": lambda a, b: f"[{b} - {a}]",
    "no length": lambda a, b: f"[{a} - {a}]",
    "endless": lambda a, b: f"[{a} - {'9' * 400}]",
    "endless on both sides": lambda a, b: f"[{'9' * 400} - {'9' * 400}]",
    "negative": lambda a, b: f"[-{a} - {b}]",
    "not a number": lambda a, b: "[nan - inf]",
    "whole video": lambda a, b: f"[0.0 - {words.VIDEO_SECONDS:.1f}]",
    "after the end": lambda a, b: f"[{float(a) + 100} - {float(b) + 100}]",
    "Arabic digits": lambda a, b: f"[{a} - {b}]".translate({48 + k: 0x660 + k for k in range(10)}),
    "a hair wider": lambda a, b: f"[{a} - {b}]\n[{a}00001 - {b}00001]",
}

CLAIM_ATTACKS: tuple[Attack, ...] = (
    instead("hedging", "every colour everywhere", _everywhere([f"a {c} object" for c in words.COLOURS])),
    instead("hedging", "every shape everywhere", _everywhere([f"a {s}" for s in words.SHAPES])),
    instead(
        "hedging",
        "everything everywhere",
        _everywhere([f"a {c} {s}" for c in words.COLOURS for s in words.SHAPES]),
    ),
    instead("hedging", "one guess everywhere", _everywhere(["a red circle"])),
    instead(
        "hedging", "one guess at one place", lambda t: _laid_out(t, "At the top left there is a red circle.")
    ),
    guessed("hedging", "guesses after the caption", _everywhere(["a red circle"])),
    guessed(
        "hedging", "every colour after the caption", _everywhere([f"a {c} object" for c in words.COLOURS])
    ),
    guessed(
        "hedging",
        "every background",
        " ".join(f"The background is {colour}." for colour in words.BACKGROUNDS),
        only="image",
    ),
    guessed(
        "hedging",
        "every number",
        " ".join(f"There are {number} objects." for number in words.NUMBERS[4:]),
        only="image",
    ),
    guessed(
        "hedging",
        "each covers the other",
        " ".join(
            f"The one at the {a} covers part of the one at the {b}."
            for pair in words.ROW_NEIGHBOURS
            for a, b in (pair, reversed(pair))
        ),
        only="image",
    ),
    guessed(
        "hedging",
        "every camera",
        lambda t: _laid_out(
            t, " ".join(f"The camera {does}." for does in ("stays still", *words.CAMERAS[1:]))
        ),
        only="video",
    ),
    guessed("hedging", "contradiction after the caption", lambda t: _wrong_twin(t.honest)),
    instead("hedging", "contradiction first", lambda t: f"{_wrong_twin(t.honest)}\n{t.honest}"),
    instead("hedging", "one or the other", lambda t: _either(t.honest)),
    instead("hedging", "perhaps", lambda t: re.sub(r"\b(is|shows|moves)\b", r"perhaps \1", t.honest)),
    appended("hedging", "what is not there", _denied),
    guessed("hedging", "another scene's caption", lambda t: t.other),
    instead("hedging", "another scene's caption instead", lambda t: t.other),
    guessed(
        "hedging",
        "two captions to choose from",
        lambda t: f"Alternatively: {t.other}\nChoose the better one.",
    ),
    guessed(
        "hedging",
        "every motion",
        lambda t: _laid_out(
            t,
            " ".join(
                f"At the {p} a red circle moves {m}."
                for p in words.VIDEO_PLACES
                for m in words.MOTIONS
                if m != "still"
            ),
        ),
        only="video",
    ),
    guessed(
        "time",
        "every cut",
        "Summary: " + " ".join(f"The scene changes at {t} seconds." for t in words.TIMES),
        "video",
    ),
    appended("time", "every boundary", "\n".join(f"[{t} - {t}] A boundary." for t in words.TIMES), "video"),
    appended("time", "caption twice", lambda t: t.honest, "video"),
    appended("time", "caption as a summary", lambda t: "Summary: " + " ".join(_lines(t)), "video"),
    appended(
        "time",
        "frame marks",
        "<0.0 seconds><0.5 seconds>\n<1.0 seconds>\nThe segment runs from 0 to 0.1 seconds.",
        "video",
    ),
    instead("time", "everything in every segment", _all_in_every_segment, "video"),
    instead("time", "everything in every second", _each_second, "video"),
    instead("time", "everything in every frame", _each_frame, "video"),
    instead("time", "no segments", lambda t: " ".join(_lines(t)), "video"),
    instead("time", "segments in one line", lambda t: " ".join(t.honest.splitlines()), "video"),
    instead("time", "segments reversed", lambda t: "\n".join(reversed(t.honest.splitlines())), "video"),
    *(instead("time", name, _with_segments(rewrite), "video") for name, rewrite in _CLOCK.items()),
    appended("time", "segments of an image", "[0.0 - 2.0] A red circle moves left at the top left.", "image"),
)
