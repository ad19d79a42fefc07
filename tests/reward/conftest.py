"""A scripted judge, settings for it, and the clock of whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
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
from tests.reward.stored import judgement, key
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.store import JudgementStore, StoredCandidate


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


@pytest.fixture
def studied(tmp_path: Path) -> Path:
    """An image candidate, one judged failed, an empty text, and two of a video."""
    path = tmp_path / "s"
    whole, local = key(1), key(2)

    def row(
        index: int, verdicts: dict[str, str | None], reward: float | None, **more: Any
    ) -> StoredCandidate:
        named = {"step": 0, "group": 3, "sample_id": "a", "caption": "x", "family": "judge", "components": {}}
        return StoredCandidate(index=index, verdicts=verdicts, reward=reward, **{**named, **more})

    with JudgementStore(path) as store:
        store.put(whole, judgement(9, 8, 7))
        store.put(local, judgement(4, 3, 2))
        for group in (
            [
                row(0, {"global": whole.digest}, 0.84),
                row(1, {"global": ""}, None),
                row(2, {"global": None}, 0.0),
            ],
            [
                row(0, {"global": whole.digest, "local": local.digest}, 0.874, step=1),
                row(1, {"global": whole.digest, "local": None}, 0.84, step=1),
                row(2, {"global": whole.digest, "local": ""}, None, step=1),
            ],
        ):
            store.put_group(group).result(GUARD_S)
    return path
