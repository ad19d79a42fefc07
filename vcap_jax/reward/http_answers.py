"""What OpenAI-compatible servers put into their answers, read without trust. Pure."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

LIMITED = 429
"""The status that says "too many requests"."""
BUSY = frozenset({503, 529})
"""Those of a server that is overloaded (vLLM beyond ``--max-num-queued-reqs``), or gone: its health tells which."""
OVERLOADED = BUSY | {LIMITED}
_PASSING = frozenset({408, 409, LIMITED})
CUT_OFF = ("length", "max_tokens")
"""``finish_reason`` of an answer that reached its limit, as servers call it."""
STOPPED = ("content_filter", "abort", "error", "refusal")
"""That of one which the server ended."""
THOUGHT, THOUGHT_END = "<think>", "</think>"
_SHOWN = 2000


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The ``usage`` of a completion; what a server does not tell is 0 or empty.

    media_tokens: prompt tokens by modality, placeholders with what stands between them (vLLM).
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    media_tokens: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The first choice of a chat completion.

    prompt_token_ids: where they were asked for and the server gives them. id: the server's name for it.
    """

    text: str | None
    finish_reason: str | None
    usage: Usage
    prompt_token_ids: tuple[int, ...] | None = None
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServerCard:
    """What a server's model list says. models: empty where it has no such list. vllm: it names itself so. contexts:
    tokens of a question and its answer, by model, where it tells."""

    models: tuple[str, ...]
    vllm: bool
    contexts: Mapping[str, int] = field(default_factory=dict)


def may_pass(status: int) -> bool:
    """Whether the same request may be answered when it is put again, or elsewhere."""
    return status >= 500 or status in _PASSING


def read_models(raw: bytes) -> ServerCard | None:
    """A model list; None if it is none."""
    try:
        entries = json.loads(raw)["data"]
        contexts = {str(entry["id"]): entry.get("max_model_len") for entry in entries}
        return ServerCard(
            models=tuple(str(entry["id"]) for entry in entries),
            vllm=any(entry.get("owned_by") == "vllm" for entry in entries),
            contexts={name: tokens for name, tokens in contexts.items() if type(tokens) is int},
        )
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None


def read_completion(raw: bytes) -> Completion | None:
    """A chat completion; None if it is none."""
    try:
        payload = json.loads(raw)
        choice = payload["choices"][0]
        content = choice["message"].get("content")
        finish_reason = choice.get("finish_reason")
        usage = payload.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        media = details.get("multimodal_tokens") or {}
        ids = payload.get("prompt_token_ids")
        return Completion(
            text=_text_of(content),
            finish_reason=finish_reason if isinstance(finish_reason, str) else None,
            usage=Usage(
                prompt_tokens=_count(usage.get("prompt_tokens")),
                cached_tokens=_count(details.get("cached_tokens")),
                completion_tokens=_count(usage.get("completion_tokens")),
                media_tokens={str(name): _count(count) for name, count in media.items()},
            ),
            prompt_token_ids=None if ids is None else tuple(int(i) for i in ids),
            id=writable(str(payload.get("id") or "")) or None,
        )
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError):
        return None


_MOST_TOKENS = 2**53


def _count(value: object) -> int:
    """Tokens; 0 where the server does not tell, or tells what no answer has. Raises as ``int`` for what is none."""
    found = int(value or 0)  # type: ignore[call-overload]
    return found if 0 <= found <= _MOST_TOKENS else 0


_TEXT_PARTS = ("text", "output_text")


def _text_of(content: object) -> str | None:
    """Message content as text, without lone surrogates, which no file can hold; some servers give a list of parts, of
    which thoughts and the like are none."""
    if isinstance(content, list):
        parts = [
            part for part in content if isinstance(part, dict) and part.get("type", "text") in _TEXT_PARTS
        ]
        content = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return writable(content) if isinstance(content, str) else None


def writable(text: str) -> str:
    """Without lone surrogates, which an escape can write and no file can hold: servers cut texts in the middle of an
    emoji."""
    return text.encode("utf-8", "replace").decode("utf-8")


def retry_after_seconds(header: str | None) -> float | None:
    """Seconds of a Retry-After header (a number or an HTTP date); None if absent or unreadable."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None


def error_message(raw: bytes) -> str:
    """The message inside an OpenAI-style error body, or the beginning of whatever came."""
    try:
        payload = json.loads(raw)
        error = payload.get("error", payload)
        message = error.get("message") if isinstance(error, dict) else error
        return writable(str(message or payload.get("detail") or payload))[:500]
    except (ValueError, RecursionError, AttributeError):
        return short(raw)


def error_parameter(raw: bytes) -> str | None:
    """The field of the request that an OpenAI-style error body finds fault with; None where it names none."""
    try:
        found = json.loads(raw)["error"]["param"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return found if isinstance(found, str) else None


def short(raw: bytes) -> str:
    """The beginning of a body, for a message; of a web page its title."""
    text = " ".join(raw[:_SHOWN].decode("utf-8", "replace").split())
    if not is_web_page(raw):
        return text[:400] or "an empty body"
    title = re.search(r"<title[^>]*>\s*(.*?)\s*</title>", text, re.IGNORECASE)
    return "a web page" if title is None else f"a web page, {title.group(1)[:100]!r}"


def is_web_page(raw: bytes) -> bool:
    """Whether a body is HTML, whatever its header says."""
    return raw[:_SHOWN].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def base_url(url: str) -> str:
    """``url`` without a trailing slash; a bare host gets ``/v1``."""
    url = url.rstrip("/")
    return url if urlsplit(url).path else f"{url}/v1"
