"""A question as it is put to a chat endpoint, and its end: values that the client carries from try to try. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.encoded_view import EncodedView
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import Usage
from vcap_jax.reward.prompts import ChatMessage
from vcap_jax.system.json_values import JsonObject

T = TypeVar("T")
NEWER_LENGTH = "max_completion_tokens"
"""What newer models of OpenAI call ``max_tokens``, which they refuse; other servers may not know the name."""
Reader = Callable[[str | None, str | None], T | Failure]
"""Turns (content, finish_reason) of an answer into a value, or a Failure to be tried again."""


@dataclass(frozen=True, kw_only=True)
class Verdict(Generic[T]):
    """The end of one question: what came of a text.

    result: what the reader made of the answer, or the last failure. seconds: spent inside HTTP requests, all tries
    together, without the waits between them and for a place. tries: HTTP requests sent; those repeated with media that
    the server had lost are not counted. usage: tokens of the last answer. All three also of an answer that the store
    knew. key: of the answer in the store; None for a text that nobody was asked about, "" for one that failed or was
    not stored.
    """

    result: T | Failure
    seconds: float = 0.0
    tries: int = 0
    usage: Usage = field(default_factory=Usage)
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How an answer is drawn, where the judge's settings do not say.

    temperature: of the first try; after an unusable answer it is at least ``judge.retry_temperature``. max_tokens: of
    the answer. seed: sent along where one is given, a different one for each try, so that none repeats another.
    None: as the settings have it, and no seed.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


AS_CONFIGURED = Drawing()


@dataclass(frozen=True, kw_only=True)
class Question:
    """What stays the same through all tries. prefix: what its group shares. shown: None for plain messages."""

    messages: Sequence[ChatMessage]
    response_format: JsonObject | None
    route: str
    prefix: str | None
    shown: EncodedView | None
    drawing: Drawing

    def temperature(self, config: JudgeConfig) -> float:
        """Of the first try."""
        return config.temperature if self.drawing.temperature is None else self.drawing.temperature

    def body(
        self, config: JudgeConfig, model: str, temperature: float, attempt: int, *, vllm: bool = False
    ) -> dict[str, object]:
        """The body of a chat completion request. attempt: from 0, for a seed of its own. vllm: the server is one."""
        drawing = self.drawing
        body: dict[str, object] = {
            "model": model,
            "messages": self.messages,
            "temperature": temperature,
            "max_tokens": config.max_tokens if drawing.max_tokens is None else drawing.max_tokens,
        }
        if drawing.seed is not None:
            body["seed"] = drawing.seed + attempt
        if self.shown is not None:
            body |= {**self.shown.fields, **(self.shown.of_vllm if vllm else {})}
        if self.response_format is not None and config.response_format != "none":
            plain = config.response_format == "json_object"
            body["response_format"] = {"type": "json_object"} if plain else self.response_format
        return body


def wants_newer_length(message: str) -> bool:
    """Whether a server says that it wants ``NEWER_LENGTH``. That an answer of so many tokens is too long is said with
    that name as well, by servers that take both."""
    return NEWER_LENGTH in message and re.search("support|instead", message, re.IGNORECASE) is not None


def newer_length(body: Mapping[str, object]) -> dict[str, object]:
    """The body with ``NEWER_LENGTH`` for ``max_tokens``."""
    return {NEWER_LENGTH if key == "max_tokens" else key: value for key, value in body.items()}
