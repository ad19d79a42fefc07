"""What can stand behind the judge's address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol


class Judge(Protocol):
    """Answers the body of a chat completion request with the JSON object that its instruction asks for."""

    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The verdict; raises ``BadRequest`` where the request cannot be judged."""
        ...


class BackendUnavailable(RuntimeError):
    """The backend cannot run here; the message says what to do instead."""


def _embedded() -> Judge:
    from gpu_judge.embedded.judge import EmbeddedJudge

    return EmbeddedJudge()


def _vllm() -> NoReturn:
    raise BackendUnavailable(
        "the vllm backend is not built yet: serve the judge model with any OpenAI-compatible server (for "
        "instance `vllm serve`) and give its address to the trainer as judge.url, or use --backend embedded"
    )


BACKENDS: Mapping[str, Callable[[], Judge]] = {"embedded": _embedded, "vllm": _vllm}
MODEL_NAMES: Mapping[str, str] = {"embedded": "embedded-judge", "vllm": "vllm-judge"}
