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
from vcap_jax.system.json_values import JsonDict, JsonValue

_OBJECT_BEGINS = re.compile(r"""\{\s*["']""")  # the second as Python would write it
_THOUGHT_END = "</think>"
_CUT_OFF = ("length", "max_tokens")
_STOPPED = {"content_filter": "filtered", "abort": "filtered", "error": "filtered", "refusal": "filtered"}


class KeyedPairs(list[tuple[str, object]]):
    """A parsed JSON object with its repeated keys kept; a type of its own to tell it from a JSON list."""


def read_objects(text: str | None, finish_reason: str | None) -> list[KeyedPairs] | Failure:
    """The outermost objects of an answer, without those of its thoughts; none if it has none.

    text: the content of the answer. finish_reason: as the server gave it; None where it gives none.
    """
    if finish_reason in _CUT_OFF:
        return Failure(reason="cut_off", detail=f"the answer reached its token limit: {tail(text or '')}")
    if finish_reason in _STOPPED:
        return Failure(reason="filtered", detail=f"the server ended the answer with {finish_reason!r}")
    if text is None or not text.strip():
        return Failure(reason="empty_answer", detail="the judge wrote nothing")
    spoken = text if _is_one_object(text) else _without_thought(text)
    if spoken is None:
        return Failure(reason="cut_off", detail=f"the answer ends inside its <think> block: {tail(text)}")
    return _objects(spoken)


def one_object(text: str | None, finish_reason: str | None, keys: Collection[str]) -> JsonDict | Failure:
    """The one object of an answer that has any of ``keys``; a Failure for none and several, and for a repeated key.
    Lone surrogates, which an escape can write and no file can hold, become question marks."""
    objects = read_objects(text, finish_reason)
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
    if isinstance(value, KeyedPairs):
        found: JsonDict = {}
        for key, inner in value:
            if key in found:
                return Failure(reason="repeated_key", detail=f"the key {key!r} is there twice")
            plain = _plain(inner)
            if isinstance(plain, Failure):
                return plain
            found[key] = plain
        return found
    if isinstance(value, list):
        several = [_plain(inner) for inner in value]
        return next((one for one in several if isinstance(one, Failure)), several)  # type: ignore[return-value]
    assert value is None or isinstance(value, bool | int | float | str)
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


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
    _, end, after = text.rpartition(_THOUGHT_END)
    spoken = after if end else text
    return None if "<think>" in spoken.split("{", 1)[0] else spoken


def _pairs(pairs: list[tuple[str, object]]) -> KeyedPairs:
    return KeyedPairs((_writable_text(key), _writable(value)) for key, value in pairs)


def _writable(value: object) -> object:
    """The same; objects inside it are ``_pairs``' already."""
    if isinstance(value, str):
        return _writable_text(value)
    if isinstance(value, list) and not isinstance(value, KeyedPairs):
        return [_writable(inner) for inner in value]
    return value


def _writable_text(text: str) -> str:
    """Without lone surrogates: an escape can write one, and whoever writes the answer to a file would fail."""
    return text.encode("utf-8", "replace").decode("utf-8")


# strict=False: models write raw line breaks into the analysis.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_pairs)


def _objects(text: str) -> list[KeyedPairs] | Failure:
    """The outermost JSON objects of the text, or a failure if one of them is broken."""
    found: list[KeyedPairs] = []
    position = 0
    while (brace := text.find("{", position)) >= 0:
        if not _OBJECT_BEGINS.match(text, brace):  # {}, or a brace in prose
            position = brace + 1
            continue
        decoded = _decode(text, brace)
        if decoded is None:
            cut = _object_end(text, brace) is None
            detail = (
                "stops inside its JSON object: " + tail(text)
                if cut
                else "has a broken JSON object: " + head(text)
            )
            return Failure(reason="cut_off" if cut else "broken_json", detail=f"the answer {detail}")
        value, position = decoded
        found.append(value)
    return found


def _decode(text: str, start: int) -> tuple[KeyedPairs, int] | None:
    end = _object_end(text, start)
    if end is None:
        return None
    # By itself: an error of the decoder counts the lines before it, from the beginning of what it was given.
    written = text[start:end]
    for candidate in (written, _without_trailing_commas(written)):
        try:
            return _DECODER.decode(candidate), end
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


def _without_trailing_commas(text: str) -> str:
    return _STRING_OR_TRAILING_COMMA.sub(lambda match: match.group(1) or "", text)


def head(text: str, limit: int = 160) -> str:
    """The beginning of a text, for messages."""
    text = " ".join(text[: 2 * limit].split())
    return text if len(text) <= limit else text[:limit] + "..."


def tail(text: str, limit: int = 160) -> str:
    """The end of a text, for messages."""
    text = " ".join(text[-2 * limit :].split())
    return text if len(text) <= limit else "..." + text[-limit:]
