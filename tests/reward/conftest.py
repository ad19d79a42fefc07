"""A scripted judge, settings for it, and the clock of whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fake_clock import FakeClock
from tests.patience import GUARD_S
from tests.reward.scripted_judge import (
    GLOBAL,
    QUALITY,
    Reply,
    ScriptedJudge,
    asks_globally,
    candidate_of,
    never,
    prompt_text,
    verdict,
)
from vcap_jax.reward.config import JudgeConfig


@pytest.fixture
def clock() -> FakeClock:
    """Give it to whoever waits for the judge."""
    return FakeClock()


@pytest.fixture
def judge() -> Iterator[ScriptedJudge]:
    server = ScriptedJudge()
    yield server
    server.close()


@pytest.fixture
def judges() -> Iterator[list[ScriptedJudge]]:
    """Three of them."""
    servers = [ScriptedJudge() for _ in range(3)]
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def settings(judge: ScriptedJudge) -> Callable[..., JudgeConfig]:
    """JudgeConfig for the scripted judge, with short waits between tries and a deadline that only a hang meets."""

    def make(**changes: Any) -> JudgeConfig:
        return JudgeConfig(
            **{
                "urls": (judge.url,),
                "backoff_s": 0.01,
                "max_backoff_s": 0.05,
                "deadline_s": GUARD_S,
                **changes,
            }
        )

    return make


class Replies:
    """What tests need from here without importing this file."""

    Reply = Reply
    never = staticmethod(never)
    QUALITY = QUALITY
    GLOBAL = GLOBAL
    verdict = staticmethod(verdict)
    prompt_text = staticmethod(prompt_text)
    candidate_of = staticmethod(candidate_of)
    asks_globally = staticmethod(asks_globally)


@pytest.fixture
def replies() -> type[Replies]:
    return Replies
