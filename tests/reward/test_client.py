"""The judge client over real HTTP: what is retried, what is not, and that every question ends."""

import asyncio
import json
import random
from typing import Any

import pytest

from tests.fake_clock import FakeClock
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.errors import JudgeOutage, JudgeUnavailable
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.question import Verdict
from vcap_jax.reward.routing import preference
from vcap_jax.reward.scores import Scores, parse_scores
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.reward.templates import QUALITY_KEYS

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "judge this"}]}]


def read(text: str | None, finish_reason: str | None) -> Scores | Failure:
    return parse_scores(text, QUALITY_KEYS, finish_reason)


class Outcome:
    def __init__(
        self, answers: list[Verdict[Scores]], statistics: JudgeStatistics, clock: FakeClock, began: float
    ) -> None:
        self.answers, self.statistics, self.waits = answers, statistics, clock.slept
        self.took = clock.now() - began
        self.answer = answers[0]


def ask(config: JudgeConfig, times: int = 1, clock: FakeClock | None = None, **options: Any) -> Outcome:
    """All time that passes is the clock's."""
    held = FakeClock() if clock is None else clock
    began = held.now()

    async def run() -> Outcome:
        async with JudgeClient(config, rng=random.Random(0), clock=held) as client:
            answers = await asyncio.gather(*(client.ask(MESSAGES, read, **options) for _ in range(times)))
            return Outcome(list(answers), client.statistics(), held, began)

    return asyncio.run(run())


def failure_of(outcome: Outcome) -> Failure:
    assert isinstance(outcome.answer.result, Failure), outcome.answer
    return outcome.answer.result


def test_a_good_answer(judge: Any, settings: Any, replies: Any, clock: FakeClock) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}}
    reply = replies.verdict()
    reply.usage = usage

    def answer(body: dict[str, Any], n: int) -> Any:
        clock.advance_threadsafe(3.0)
        return reply

    judge.answer = answer
    outcome = ask(settings(temperature=0.0, max_tokens=321), clock=clock)
    assert isinstance(outcome.answer.result, Scores)
    assert outcome.answer.tries == 1
    assert outcome.answer.seconds == 3.0
    (body,) = judge.bodies
    assert body == {"model": "the-judge", "messages": MESSAGES, "temperature": 0.0, "max_tokens": 321}
    seen = outcome.statistics
    assert (seen.requests, seen.retries, seen.judged, seen.failed) == (1, 0, 1, 0)
    assert (seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens) == (100, 64, 9)
    assert seen.latency_sum_s == seen.latency_max_s == seen.busy_s == 3.0


@pytest.mark.parametrize("kind", ["json_schema", "json_object", "none"])
def test_response_format_as_configured(judge: Any, settings: Any, kind: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {}}}
    ask(settings(response_format=kind), response_format=schema)
    expected = {"json_schema": schema, "json_object": {"type": "json_object"}, "none": None}[kind]
    assert judge.bodies[0].get("response_format") == expected


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_passing_troubles_are_retried(judge: Any, settings: Any, replies: Any, status: int) -> None:
    busy = replies.Reply(status=status, raw='{"error": {"message": "busy"}}')
    judge.answer = lambda body, n: busy if n < 2 else replies.verdict()
    outcome = ask(settings())
    assert isinstance(outcome.answer.result, Scores)
    assert outcome.answer.tries == 3
    assert (outcome.statistics.requests, outcome.statistics.retries) == (3, 2)
    assert outcome.statistics.errors == {"http_status": 2}
    assert outcome.statistics.failures == {}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_our_own_mistakes_are_not_retried_and_carry_the_servers_words(
    judge: Any, settings: Any, replies: Any, status: int
) -> None:
    judge.answer = lambda body, n: replies.Reply(
        status=status, raw='{"error": {"message": "at most 2 images"}}'
    )
    outcome = ask(settings())
    failure = failure_of(outcome)
    assert failure.reason == "http_status"
    assert failure.detail == f"{status}: at most 2 images"
    assert len(judge.bodies) == 1
    assert outcome.statistics.failures == {"http_status": 1}


@pytest.mark.parametrize("status", [401, pytest.param(403, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lists_to_all", [True, False])
def test_a_key_that_is_refused_in_the_middle_of_a_run_ends_it_by_name(
    judge: Any, settings: Any, replies: Any, status: int, lists_to_all: bool
) -> None:
    """Its captions would all be masked, and no step would learn from any."""

    def answer(body: dict[str, Any], n: int) -> Any:
        judge.greeting = replies.Reply(status=status, raw='{"error": {"message": "expired"}}')
        if not lists_to_all:
            judge.models_status = status
        return replies.Reply(status=status, raw='{"error": {"message": "expired"}}')

    judge.answer = answer
    with pytest.raises(JudgeUnavailable, match=rf"refuses the key \({status}.*judge\.api_key_env"):
        ask(settings())


@pytest.mark.parametrize("status", [401, 403])
def test_where_one_endpoint_refuses_the_key_another_is_asked(
    judges: list[Any], settings: Any, replies: Any, status: int
) -> None:
    refusing, other = judges[:2]

    def answer(body: dict[str, Any], n: int) -> Any:
        refusing.models_status = status
        return replies.Reply(status=status, raw='{"error": {"message": "expired"}}')

    refusing.answer = answer
    urls = (refusing.url, other.url)
    route = next(f"g{k}" for k in range(100) if preference(f"g{k}", urls)[0] == 0)
    assert isinstance(ask(settings(urls=urls), route=route).answer.result, Scores)
    assert (len(refusing.bodies), len(other.bodies)) == (1, 1)


@pytest.mark.parametrize(
    "reply",
    [
        {"status": 429},
        {"status": 429, "headers": {"Retry-After": "3600"}},
        {"status": 503, "headers": {"Retry-After": "3600"}},
        {"status": 500},
        {"status": 200},
        {"status": 302, "headers": {"Location": "https:///sso/login"}},
        {"status": 400},
        {"status": 402},
        {"status": 413},
    ],
    ids=lambda reply: "-".join(map(str, reply.values())),
)
def test_what_one_endpoint_does_not_answer_another_does_at_once(
    judges: list[Any], settings: Any, replies: Any, reply: dict[str, Any]
) -> None:
    """Also where it asks to wait, and where the other fails once as well. What refuses may be a proxy before it."""
    failing, other = judges[:2]
    failure = replies.Reply(raw='{"error": {"message": "no", "code": 429}}', **reply)
    failing.answer = lambda body, n: failure
    other.answer = lambda body, n: replies.verdict() if n else replies.Reply(status=500)
    urls = (failing.url, other.url)
    route = next(f"g{k}" for k in range(100) if preference(f"g{k}", urls)[0] == 0)
    found = ask(settings(urls=urls), route=route)
    assert isinstance(found.answer.result, Scores)
    assert found.took < 60
    assert len(other.bodies) == 2


@pytest.mark.parametrize(
    "raw", ['{"message": "too long"}', '{"error": "too long"}', '{"detail": "too long"}', "too long", ""]
)
def test_error_bodies_of_all_kinds_are_read(judge: Any, settings: Any, replies: Any, raw: str) -> None:
    judge.answer = lambda body, n: replies.Reply(status=400, raw=raw)
    assert failure_of(ask(settings())).detail == ("400: too long" if raw else "400: an empty body")


def test_retry_after_is_honoured(judge: Any, settings: Any, replies: Any, clock: FakeClock) -> None:
    times: list[float] = []

    def answer(body: dict[str, Any], n: int) -> Any:
        times.append(clock.now())
        return replies.verdict() if n else replies.Reply(status=429, raw="{}", headers={"Retry-After": "30"})

    judge.answer = answer
    outcome = ask(settings(), clock=clock)
    assert isinstance(outcome.answer.result, Scores)
    assert 30 < times[1] - times[0] <= 30.01
    assert outcome.answer.seconds == 0  # waiting is not the judge's time


def test_retry_after_as_a_date_and_beyond_the_limit(judge: Any, settings: Any, replies: Any) -> None:
    far = replies.Reply(status=503, raw="{}", headers={"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"})
    judge.answer = lambda body, n: far
    outcome = ask(settings())
    assert failure_of(outcome).reason == "http_status"
    assert len(judge.bodies) == 1
    past = replies.Reply(status=503, raw="{}", headers={"Retry-After": "Fri, 01 Jan 1999 00:00:00 GMT"})
    judge.answer = lambda body, n: replies.verdict() if n > 1 else past
    assert isinstance(ask(settings()).answer.result, Scores)


def test_waits_grow_with_jitter_and_are_bounded(judge: Any, settings: Any, replies: Any) -> None:
    judge.answer = lambda body, n: replies.Reply(status=500, raw="{}")
    config = settings(max_tries=8, backoff_s=1.0, max_backoff_s=10.0)
    waits = ask(config).waits
    assert len(waits) == 7
    for attempt, wait in enumerate(waits):
        full = min(10.0, 2.0**attempt)
        assert full / 2 <= wait <= full
    assert ask(config).waits == waits  # the seed decides


def test_an_unusable_answer_is_asked_for_again_less_rigidly(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    def answer(body: dict[str, Any], n: int) -> Any:
        clock.advance_threadsafe(2.0)
        return replies.verdict() if n == 2 else replies.Reply(content="Nice caption!")

    judge.answer = answer
    outcome = ask(settings(retry_temperature=0.4), clock=clock)
    assert isinstance(outcome.answer.result, Scores)
    assert (outcome.answer.tries, outcome.answer.seconds) == (3, 6.0)
    assert [body["temperature"] for body in judge.bodies] == [0.0, 0.4, 0.4]
    assert outcome.statistics.retries == 2


def test_nothing_is_asked_for_again_at_a_lower_temperature(judge: Any, settings: Any, replies: Any) -> None:
    """Some models take no other than 1."""
    judge.answer = lambda body, n: replies.verdict() if n == 1 else replies.Reply(content="Nice caption!")
    ask(settings(temperature=1.0, retry_temperature=0.3))
    assert [body["temperature"] for body in judge.bodies] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"content": "garbage"}, "no_verdict"),
        ({"content": '{"Analysis": "', "finish_reason": "length"}, "cut_off"),
        ({"content": ""}, "empty_answer"),
        ({"content": None}, "empty_answer"),
        ({"raw": "<html>proxy</html>"}, "bad_response"),
        ({"raw": "[]"}, "bad_response"),
        ({"raw": '{"choices": []}'}, "bad_response"),
        ({"raw": '{"choices": [{"message": null}]}'}, "bad_response"),
        ({"drop": True}, "connection"),
        ({"hold": lambda: False}, "timeout"),
    ],
)
def test_every_trouble_ends_as_a_failure(
    judge: Any, settings: Any, replies: Any, clock: FakeClock, change: dict[str, Any], reason: str
) -> None:
    def answer(body: dict[str, Any], n: int) -> Any:
        if reason == "timeout":
            clock.advance_threadsafe(20)
        return replies.Reply(**change)

    judge.answer = answer
    outcome = ask(settings(max_tries=2, deadline_s=20), clock=clock)
    assert failure_of(outcome).reason == reason
    assert outcome.answer.tries == 2
    assert outcome.statistics.failures == {reason: 1}
    assert outcome.statistics.failed == 1
    assert outcome.took == pytest.approx(sum(outcome.waits) + (2 * 20 if reason == "timeout" else 0))


def test_a_complete_verdict_that_ends_by_length_is_still_a_failure(
    judge: Any, settings: Any, replies: Any
) -> None:
    reply = replies.verdict()
    reply.finish_reason = "length"
    judge.answer = lambda body, n: reply
    assert failure_of(ask(settings(max_tries=1))).reason == "cut_off"


def test_content_in_parts_is_joined_without_thoughts(judge: Any, settings: Any, replies: Any) -> None:
    text = json.dumps(replies.QUALITY)
    thought = {"type": "reasoning", "text": '{"correctness": 0'}
    parts = [
        thought,
        {"type": "text", "text": text[:10]},
        {"type": "text", "text": None},
        {"text": text[10:]},
    ]
    payload = {"choices": [{"message": {"content": parts}, "finish_reason": "stop"}], "usage": None}
    judge.answer = lambda body, n: replies.Reply(raw=json.dumps(payload))
    assert isinstance(ask(settings()).answer.result, Scores)


def test_concurrency_is_bounded_and_used(judge: Any, settings: Any, replies: Any) -> None:
    reply = replies.verdict()
    # The first answers wait until all places are taken, and a little longer for who would come beyond them.
    reply.hold, reply.delay = lambda: judge.most_running >= 4, 0.05
    judge.answer = lambda body, n: reply
    outcome = ask(settings(concurrency=4), times=16)
    assert all(isinstance(answer.result, Scores) for answer in outcome.answers)
    assert judge.most_running == 4
    assert outcome.statistics.judged == 16


def test_waiting_for_a_place_does_not_count_against_the_deadline(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    def answer(body: dict[str, Any], n: int) -> Any:
        clock.advance_threadsafe(4)
        return replies.verdict()

    judge.answer = answer
    outcome = ask(settings(concurrency=1, deadline_s=5, max_tries=1), times=8, clock=clock)
    assert outcome.took == 32
    assert all(isinstance(answer.result, Scores) for answer in outcome.answers)


def test_a_wait_between_tries_gives_its_place_to_others(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    judge.answer = lambda body, n: replies.Reply(status=500, raw="{}") if n == 0 else replies.verdict()
    order: list[int] = []

    async def run() -> None:
        config = settings(concurrency=1, backoff_s=0.4, max_backoff_s=0.4)
        async with JudgeClient(config, rng=random.Random(0), clock=clock) as client:

            async def one(index: int) -> None:
                await client.ask(MESSAGES, read)
                order.append(index)

            await asyncio.gather(one(0), one(1))

    asyncio.run(run())
    assert order == [1, 0]


def test_the_key_is_sent_and_its_absence_is_named(
    judge: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "abc")
    ask(settings(api_key_env="SOME_KEY"))
    assert judge.headers[0]["Authorization"] == "Bearer abc"
    monkeypatch.setenv("SOME_KEY", "abc\r")  # of a file with line ends of Windows
    with pytest.raises(JudgeUnavailable, match=r"SOME_KEY, and the key in it has white space"):
        JudgeClient(settings(api_key_env="SOME_KEY"))
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(JudgeUnavailable, match="SOME_KEY"):
        JudgeClient(settings(api_key_env="SOME_KEY"))
    with pytest.raises(JudgeUnavailable, match=r"judge\.urls"):
        JudgeClient(JudgeConfig())


@pytest.mark.parametrize("model", ["m", None])
def test_a_judge_that_is_gone_ends_all_after_the_bounded_wait(
    settings: Any, clock: FakeClock, model: str | None
) -> None:
    with pytest.raises(
        JudgeOutage, match=r"did not answer for 40 s .*judge\.outage_timeout_s.*connection refused"
    ):
        ask(
            settings(urls=("http://127.0.0.1:9/v1",), model=model, max_tries=2, outage_timeout_s=40),
            clock=clock,
        )
    assert 40 <= clock.now() - 1000 < 41


@pytest.mark.parametrize("where", ["https:///sso/login", "http://127.0.0.1:99999/", "http://a..b/", "/login"])
def test_nobody_is_sent_on(judge: Any, settings: Any, replies: Any, where: str) -> None:
    """A page to log in comes and goes; what is asked is for the judge's eyes."""
    away = replies.Reply(status=302, raw="", headers={"Location": where})
    judge.answer = lambda body, n: away if n < 2 else replies.verdict()
    assert isinstance(ask(settings()).answer.result, Scores)
    judge.answer = lambda body, n: away
    assert failure_of(ask(settings())).detail == f"302: it sends us to {where}"
