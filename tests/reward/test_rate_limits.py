"""A judge that says that too much is asked of it: questions wait, none is lost to it, and none waits for ever."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.fake_clock import FakeClock
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.errors import JudgeOutage
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.question import Verdict
from vcap_jax.reward.scores import Scores, parse_scores
from vcap_jax.reward.templates import QUALITY_KEYS

BUSY = '{"error": {"message": "rate limit reached"}}'


class Asked:
    """Questions by their texts, put one beside the other."""

    def __init__(self, config: JudgeConfig, clock: FakeClock, *texts: str) -> None:
        self.said: list[str] = []

        async def run() -> list[Verdict[Scores]]:
            async with JudgeClient(config, rng=random.Random(0), clock=clock, say=self.said.append) as client:
                return list(await asyncio.gather(*(client.ask(question(text), read) for text in texts)))

        self.began = clock.now()
        self.answers = asyncio.run(run())
        self.took = clock.now() - self.began


def question(text: str) -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def read(text: str | None, finish_reason: str | None) -> Scores | Failure:
    return parse_scores(text, QUALITY_KEYS, finish_reason)


@pytest.fixture
def config(settings: Any) -> JudgeConfig:
    """With the waits that are the default."""
    usual = JudgeConfig()
    found: JudgeConfig = settings(backoff_s=usual.backoff_s, max_backoff_s=usual.max_backoff_s)
    return found


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("headers", [{}, {"Retry-After": "1"}])
def test_questions_wait_for_minutes_and_lose_no_try(
    judge: Any, config: JudgeConfig, replies: Any, clock: FakeClock, headers: dict[str, str], status: int
) -> None:
    open_at = clock.now() + 300
    busy = replies.Reply(status=status, raw=BUSY, headers=headers)
    judge.answer = lambda body, n: replies.verdict() if clock.now() >= open_at else busy
    found = Asked(config, clock, "a", "b", "c")
    assert all(isinstance(answer.result, Scores) for answer in found.answers)
    assert 300 <= found.took <= 300 + config.max_backoff_s + 1
    # Twice a second is no way to ask a server that has enough: the waits grow.
    assert max(answer.tries for answer in found.answers) < 40
    # Once in these minutes, in the server's words, with what helps.
    (said,) = found.said
    assert f"{status}: rate limit reached" in said
    assert "judge.concurrency" in said


@pytest.mark.parametrize("status", [429, 503])
def test_all_refused_for_too_long_is_an_outage_that_a_run_goes_on_after(
    judge: Any, config: JudgeConfig, replies: Any, clock: FakeClock, status: int
) -> None:
    judge.answer = lambda body, n: judge.greeting
    judge.greeting = replies.Reply(status=status, raw=BUSY)
    with pytest.raises(
        JudgeOutage, match=rf"refused all questions for 6\d\d s.*{status}: rate limit reached.*limits"
    ):
        Asked(config, clock, "a", "b")
    assert 600 <= clock.now() - 1000 <= 600 + config.max_backoff_s


def test_a_question_that_alone_is_refused_is_a_failure(
    judge: Any, config: JudgeConfig, replies: Any, clock: FakeClock
) -> None:
    """Such as one of more tokens than a minute may have: it must not end the run, which would meet it again."""
    busy = replies.Reply(status=429, raw=BUSY)
    judge.answer = lambda body, n: busy if replies.prompt_text(body) == "long" else replies.verdict()
    found = Asked(config, clock, "long", "short")
    result = found.answers[0].result
    assert isinstance(result, Failure)
    assert result.detail == "429: rate limit reached"
    assert isinstance(found.answers[1].result, Scores)
    assert 600 <= found.took <= 600 + config.max_backoff_s


def test_no_outage_is_told_of_a_judge_that_answers_others(
    judge: Any, config: JudgeConfig, replies: Any, clock: FakeClock
) -> None:
    """Though it has no room for a greeting at the moment at which one question has waited for too long."""
    busy = replies.Reply(status=429, raw=BUSY)
    judge.greeting = busy

    def answer(body: dict[str, Any], n: int) -> Any:
        return busy if replies.prompt_text(body) == "long" or clock.now() < 1300 else replies.verdict()

    judge.answer = answer
    long, short = Asked(config, clock, "long", "short").answers
    assert isinstance(long.result, Failure)
    assert isinstance(short.result, Scores)


def test_busy_and_not_well_is_an_outage(
    judge: Any, config: JudgeConfig, replies: Any, clock: FakeClock
) -> None:
    """A proxy whose server is gone says 503 as well, and says it of its health too."""
    judge.health = 503
    judge.answer = lambda body, n: (
        replies.verdict() if judge.health == 200 else replies.Reply(status=503, raw=BUSY)
    )
    clock.after(60.0, lambda: setattr(judge, "health", 200))
    found = Asked(config, clock, "a", "b")
    assert all(isinstance(answer.result, Scores) for answer in found.answers)
    assert any("does not answer" in line for line in found.said)
    assert not any("limits how much" in line for line in found.said)


def test_unusable_answers_count_as_before(
    judge: Any, config: JudgeConfig, replies: Any, clock: FakeClock
) -> None:
    busy, bad = replies.Reply(status=429, raw=BUSY), replies.Reply(content="no verdict")
    judge.answer = lambda body, n: bad if n % 3 == 2 else busy
    result = Asked(config, clock, "a").answers[0]
    assert isinstance(result.result, Failure)
    assert result.result.reason == "no_verdict"
    assert result.tries == 3 * config.max_tries


def test_that_a_server_does_not_answer_in_time_is_told_once_a_minute(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    """As of one whose engine hangs, which is healthy all the while."""

    def hangs(body: dict[str, Any], n: int) -> Any:
        clock.advance_threadsafe(20)
        return replies.Reply(hold=replies.never)

    judge.answer = hangs
    found = Asked(settings(deadline_s=20.0, max_tries=4, backoff_s=0.0), clock, "a")
    assert isinstance(found.answers[0].result, Failure)
    assert found.took == pytest.approx(80)
    first, second = found.said
    assert first == second
    assert "has not answered a question within 20 s (judge.deadline_s)" in first
    assert "at most 4 times (judge.max_tries)" in first
