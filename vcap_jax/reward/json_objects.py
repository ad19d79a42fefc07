"""JSON objects in what a model really writes.

Accepted around them: code fences, prose before and after, a ``<think>`` block, a comma after the last entry, raw line
breaks inside strings. Lone surrogates become question marks. An answer that the server reports as cut off, filtered or
aborted is refused, and so is one that stops inside an object or holds one that does not parse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import CUT_OFF, STOPPED, THOUGHT, THOUGHT_END, writable
from vcap_jax.system.json_values import JsonDict, JsonValue

_OBJECT_BEGINS = re.compile(r"""\{\s*["']""")  # the second as Python would write it
_SHOWN = 160
"""Characters of a text in a message."""


class _Pairs(list[tuple[str, object]]):
    """A parsed JSON object with its repeated keys kept; a type of its own to tell it from a JSON list."""


def one_object(text: str | None, finish_reason: str | None, keys: Collection[str]) -> JsonDict | Failure:
    """The one object of an answer that has any of ``keys``; a Failure for none and several, and for a repeated key.

    text: the content of the answer; objects inside others, and those of its thoughts, do not count. finish_reason: as
    the server gave it; None where it gives none. Lone surrogates, which an escape can write and no file can hold,
    become question marks.
    """
    objects = _read(text, finish_reason)
    if isinstance(objects, Failure):
        return objects
    found = [pairs for pairs in objects if any(key in keys for key, _ in pairs)]
    if len(found) != 1:
        detail = f"{len(found)} JSON objects with {', '.join(keys)} in: {head(text or '')}"
        return Failure(reason="ambiguous" if found else "no_verdict", detail=detail)
    try:
        plain = _plain(found[0])
    except RecursionError:
        return Failure(reason="broken_json", detail=f"the answer is nested too deep: {head(text or '')}")
    assert isinstance(plain, dict | Failure)
    return plain


def _plain(value: object) -> JsonValue | Failure:
    """Pairs as objects, all the way down; a Failure where a key is repeated."""
    if isinstance(value, _Pairs):
        found: JsonDict = {}
        for key, inner in value:
            name, plain = writable(key), _plain(inner)
            if name in found:
                return Failure(reason="repeated_key", detail=f"the key {name!r} is there twice")
            if isinstance(plain, Failure):
                return plain
            found[name] = plain
        return found
    if isinstance(value, list):
        several = [_plain(inner) for inner in value]
        return next((one for one in several if isinstance(one, Failure)), several)  # type: ignore[return-value]
    assert value is None or isinstance(value, bool | int | float | str)
    return writable(value) if isinstance(value, str) else value


def _read(text: str | None, finish_reason: str | None) -> list[_Pairs] | Failure:
    """The outermost objects of an answer, without those of its thoughts."""
    if finish_reason in CUT_OFF:
        return Failure(reason="cut_off", detail=f"the answer reached its token limit: {tail(text or '')}")
    if finish_reason in STOPPED:
        return Failure(reason="filtered", detail=f"the server ended the answer with {finish_reason!r}")
    if text is None or not text.strip():
        return Failure(reason="empty_answer", detail="the judge wrote nothing")
    spoken = text if _is_one_object(text) else _without_thought(text)
    if spoken is None:
        return Failure(reason="cut_off", detail=f"the answer ends inside its <think> block: {tail(text)}")
    return _objects(spoken)


def _is_one_object(text: str) -> bool:
    """Whether the whole answer is an object, as under an enforced schema: "</think>" is then a quotation inside it."""
    text = text.strip()
    try:
        return text.startswith("{") and _DECODER.raw_decode(text)[1] == len(text)
    except (ValueError, RecursionError):
        return False


def _without_thought(text: str) -> str | None:
    """The answer after its thoughts; None if it never leaves them.

    Some chat templates put the opening tag into the prompt, so only the closing one need be there.
    """
    _, end, after = text.rpartition(THOUGHT_END)
    spoken = after if end else text
    return None if THOUGHT in spoken.split("{", 1)[0] else spoken


# strict=False: models write raw line breaks into the analysis.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_Pairs)


def _objects(text: str) -> list[_Pairs] | Failure:
    """The outermost JSON objects of the text, or a failure if one of them is broken."""
    found: list[_Pairs] = []
    position = 0
    while (brace := text.find("{", position)) >= 0:
        if not _OBJECT_BEGINS.match(text, brace):  # {}, or a brace in prose
            position = brace + 1
            continue
        end = _object_end(text, brace)
        if end is None:
            return Failure(reason="cut_off", detail=f"the answer stops inside its JSON object: {tail(text)}")
        value = _decoded(text[brace:end])
        if value is None:
            return Failure(reason="broken_json", detail=f"the answer has a broken JSON object: {head(text)}")
        found.append(value)
        position = end
    return found


def _decoded(written: str) -> _Pairs | None:
    # By itself: an error of the decoder counts the lines before it, from the beginning of what it was given.
    plain = _STRING_OR_TRAILING_COMMA.sub(lambda match: match.group(1) or "", written)
    for candidate in (written, plain):
        try:
            pairs: _Pairs = _DECODER.decode(candidate)
            return pairs
        except (ValueError, RecursionError):
            pass
    return None


# An unterminated string counts up to the end of the text, or looking for its end would start at every quote.
_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_TOKEN = re.compile(rf"{_STRING}|[{{}}]", re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*+[}}\]])", re.DOTALL)


def _object_end(text: str, start: int) -> int | None:
    """Index after the brace that closes the one at ``start``, minding strings; None if there is none."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token.group() == "{":
            depth += 1
        elif token.group() == "}":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def head(text: str) -> str:
    """The beginning of a text, for messages."""
    text = " ".join(text[: 2 * _SHOWN].split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def tail(text: str) -> str:
    """The end of a text, for messages."""
    text = " ".join(text[-2 * _SHOWN :].split())
    return text if len(text) <= _SHOWN else "..." + text[-_SHOWN:]
