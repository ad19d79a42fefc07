"""Several endpoints: routing, failover, and what happens while none answers."""

import asyncio
from collections.abc import Callable
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
from vcap_jax.reward.templates import QUALITY_KEYS


def read(text: str | None, finish_reason: str | None) -> Scores | Failure:
    return parse_scores(text, QUALITY_KEYS, finish_reason)


def message(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def text_of(body: dict[str, Any]) -> str:
    return body["messages"][0]["content"][-1]["text"]


def groups(urls: tuple[str, ...], each: int) -> list[str]:
    """Routes, ``each`` of them for every address: ports are random, and so is which address a route prefers."""
    routes: dict[int, list[str]] = {index: [] for index in range(len(urls))}
    number = 0
    while min(map(len, routes.values())) < each:
        routes[preference(f"g{number}", urls)[0]].append(f"g{number}")
        number += 1
    return [route for found in routes.values() for route in found[:each]]


class Asked:
    """All questions at once; all time that passes is the clock's. then: called with how many have been answered."""

    def __init__(
        self,
        config: JudgeConfig,
        routes: list[str],
        clock: FakeClock,
        then: Callable[[int], None] | None = None,
    ):
        self.said: list[str] = []

        async def run() -> list[Verdict[Scores]]:
            async with JudgeClient(config, say=self.said.append, clock=clock) as client:
                done = 0

                async def one(route: str, number: int) -> Verdict[Scores]:
                    nonlocal done
                    answer = await client.ask(message(f"{route} {number}"), read, route=route)
                    done += 1
                    if then is not None:
                        then(done)
                    return answer

                answers = await asyncio.gather(*(one(route, n) for n, route in enumerate(routes)))
                self.statistics = client.statistics()
                return list(answers)

        self.answers = asyncio.run(run())

    @property
    def scores(self) -> list[Any]:
        return [answer.result for answer in self.answers]


# Routing


def test_a_group_goes_to_one_endpoint_and_groups_to_all(
    judges: list[Any], settings: Any, clock: FakeClock
) -> None:
    urls = tuple(judge.url for judge in judges)
    asked = Asked(settings(urls=urls), [group for group in groups(urls, 7) for _ in range(4)], clock)
    assert all(isinstance(score, Scores) for score in asked.scores)
    places: dict[str, set[int]] = {}
    for number, judge in enumerate(judges):
        for body in judge.bodies:
            places.setdefault(text_of(body).rsplit(" ", 1)[0], set()).add(number)
    assert len(places) == 21
    assert all(len(where) == 1 for where in places.values())
    assert [len(judge.bodies) for judge in judges] == [28, 28, 28]
    each = asked.statistics.endpoints
    assert [each[url].requests for url in urls] == [len(judge.bodies) for judge in judges]
    assert sum(one.judged for one in each.values()) == asked.statistics.judged == 84


def test_concurrency_is_of_each_endpoint(
    judges: list[Any], settings: Any, replies: Any, clock: FakeClock
) -> None:
    # The first answers wait until all places are taken, and a little longer for who would come beyond them.
    for judge in judges:
        reply = replies.verdict()
        reply.hold, reply.delay = lambda judge=judge: judge.most_running >= 2, 0.05
        judge.answer = lambda body, n, reply=reply: reply
    urls = tuple(judge.url for judge in judges)
    Asked(settings(urls=urls, concurrency=2), groups(urls, 8), clock)
    assert [judge.most_running for judge in judges] == [2, 2, 2]


# Failover


def test_the_groups_of_a_dead_endpoint_go_to_the_next_of_their_order(
    judges: list[Any], settings: Any, clock: FakeClock
) -> None:
    urls = tuple(judge.url for judge in judges)
    judges[1].stop()
    routes = [f"g{k}" for k in range(40)]
    asked = Asked(settings(urls=urls), routes, clock)
    assert all(isinstance(score, Scores) for score in asked.scores)
    for route in routes:
        ranked = preference(route, urls)
        expected = ranked[0] if ranked[0] != 1 else ranked[1]
        assert any(text_of(body).split()[0] == route for body in judges[expected].bodies), route
    assert asked.statistics.outages == asked.statistics.endpoints[urls[1]].outages == 1
    assert len(asked.said) == 1
    assert "the other endpoints take its groups" in asked.said[0]
    judges[1].start()


def test_an_endpoint_that_breaks_connections_is_left_out_and_comes_back(
    judges: list[Any], settings: Any, replies: Any, clock: FakeClock
) -> None:
    urls = tuple(judge.url for judge in judges)
    ill = judges[0]
    broken = replies.Reply(drop=True)
    ill.answer = lambda body, n: broken if n < 6 else replies.verdict()
    routes = groups(urls, 30)[:30]

    async def run() -> None:
        config = settings(urls=urls, breaker_failures=3, concurrency=3)
        async with JudgeClient(config, clock=clock) as client:
            for wave in range(20):
                answers = await asyncio.gather(*(client.ask(message(r), read, route=r) for r in routes))
                assert all(isinstance(answer.result, Scores) for answer in answers)
                mine = client.statistics().endpoints[urls[0]]
                if mine.judged:
                    break
                # Six broken connections are two times the three that make an outage, however fast it is tried again.
                assert mine.outages in (1, 2), wave
                await clock.sleep(0.2)
            assert mine.judged  # its health is good, so it was tried again

    asyncio.run(run())


def test_one_broken_connection_is_tried_elsewhere(
    judges: list[Any], settings: Any, replies: Any, clock: FakeClock
) -> None:
    urls = tuple(judge.url for judge in judges)
    for judge in judges:
        judge.answer = lambda body, n: replies.verdict()
    ranked = preference("g", urls)
    judges[ranked[0]].answer = lambda body, n: replies.Reply(drop=True)
    asked = Asked(settings(urls=urls), ["g"], clock)
    assert asked.answers[0].tries == 2
    assert len(judges[ranked[1]].bodies) == 1
    assert asked.statistics.outages == 0


@pytest.mark.parametrize("kind", ["errors", "hangs"])
def test_what_a_sick_endpoint_does_not_answer_is_tried_elsewhere(
    judges: list[Any], settings: Any, replies: Any, clock: FakeClock, kind: str
) -> None:
    """Its /health is good all the while, as that of a server whose GPU hangs."""
    urls = tuple(judge.url for judge in judges)
    ranked = preference("g", urls)

    def sick(body: dict[str, Any], n: int) -> Any:
        if kind == "errors":
            return replies.Reply(status=500, raw="{}")
        clock.advance_threadsafe(5)
        return replies.Reply(hold=replies.never)

    judges[ranked[0]].answer = sick
    asked = Asked(settings(urls=urls, deadline_s=5.0), ["g"], clock)
    assert isinstance(asked.scores[0], Scores)
    assert asked.answers[0].tries == 2
    assert len(judges[ranked[1]].bodies) == 1


def test_endpoints_must_serve_one_model(judges: list[Any], settings: Any) -> None:
    urls = tuple(judge.url for judge in judges)
    judges[2].models = ["another-judge"]

    async def ready(config: JudgeConfig) -> None:
        async with JudgeClient(config, clock=FakeClock()) as client:
            await client.wait_until_ready(5)

    with pytest.raises(JudgeUnavailable, match=r"serves (another|the)-judge, and the other endpoints serve"):
        asyncio.run(ready(settings(urls=urls)))
    with pytest.raises(JudgeUnavailable, match=r"serves another-judge, and judge\.model names the-judge"):
        asyncio.run(ready(settings(urls=urls, model="the-judge")))


def test_several_models_and_none_named_end_every_question(judge: Any, settings: Any) -> None:
    judge.models = ["a", "b"]

    async def run() -> list[Any]:
        async with JudgeClient(settings()) as client:
            asked = (client.ask(message(f"{k}"), read) for k in range(5))
            return await asyncio.gather(*asked, return_exceptions=True)

    for error in asyncio.run(run()):
        assert isinstance(error, JudgeUnavailable)
        assert "name one in judge.model" in str(error)


def test_addresses_are_checked() -> None:
    with pytest.raises(ValueError, match=r"JudgeConfig\nurls\n.*named twice"):
        JudgeConfig(urls=("http://a:1", "http://a:1/"))
    with pytest.raises(ValueError, match="named twice"):
        JudgeConfig(urls=("http://a:1", "http://a:1/v1"))
    with pytest.raises(ValueError, match="holds a password, which messages would show"):
        JudgeConfig(urls=("http://user:secret@a:1",))
    for tail in ("?api-version=1", "/v1#here"):
        with pytest.raises(ValueError, match=r"leave out \? and #"):
            JudgeConfig(urls=(f"http://a:1{tail}",))
    with pytest.raises(ValueError, match=r"cannot be read \(Invalid IPv6 URL\)"):
        JudgeConfig(urls=("http://[::1:1",))


# Outages


def test_a_killed_judge_is_waited_for_and_no_judgement_is_lost(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    """Every question ends with the score it would have had, though more tries than allowed met a dead server."""
    judge.answer = lambda body, n: replies.verdict(Correctness=int(text_of(body).split()[-1]) % 11)
    config = settings(concurrency=4, max_tries=2, breaker_failures=3, outage_timeout_s=300.0)

    def kill(done: int) -> None:
        if done == 10:
            judge.stop()
            clock.after(62, judge.start)

    asked = Asked(config, ["g"] * 40, clock, then=kill)
    assert [score.correctness for score in asked.scores] == [n % 11 for n in range(40)]
    assert asked.statistics.failed == 0
    assert asked.statistics.outages == 1
    assert asked.statistics.waited_s > 20 * 60
    first, *between, last = asked.said
    address = f"the judge at {judge.url}"
    assert first == (
        f"{address} does not answer (connection refused): waiting for it, at most 300 s (judge.outage_timeout_s)"
    )
    assert between == [
        f"waiting for {address} for {seconds} s: connection refused; giving up after 300 s "
        "(judge.outage_timeout_s)"
        for seconds in (10, 20, 30, 40, 50, 60)
    ]
    assert last.startswith(f"{address} answers again after 6")


def test_a_single_question_survives_an_outage_too(judge: Any, settings: Any, clock: FakeClock) -> None:
    """With fewer tries than it takes to open the breaker: the last of them asks /health first."""
    judge.stop()
    clock.after(0.8, judge.start)
    asked = Asked(settings(max_tries=1, model="the-judge", outage_timeout_s=20.0), ["g"], clock)
    assert isinstance(asked.scores[0], Scores)


def test_a_server_that_is_up_but_unhealthy_is_an_outage(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    """An engine that died behind a live HTTP server: 500 for every request, 503 from /health."""
    judge.health = 503
    judge.answer = lambda body, n: (
        replies.verdict() if judge.health == 200 else replies.Reply(status=500, raw="{}")
    )
    clock.after(1.0, lambda: setattr(judge, "health", 200))
    asked = Asked(settings(max_tries=3, outage_timeout_s=20.0), ["a", "b", "c"], clock)
    assert all(isinstance(score, Scores) for score in asked.scores)
    assert asked.statistics.outages >= 1


@pytest.mark.parametrize("max_tries", [1, 4])
def test_no_question_is_lost_to_a_server_that_is_being_stopped(
    judge: Any, settings: Any, replies: Any, clock: FakeClock, max_tries: int
) -> None:
    """vLLM then finishes what it has begun, answers 500 to all that is new, and is healthy all the while."""
    refused = replies.Reply(status=500, raw='{"error": {"message": "cannot schedule new futures"}}')
    good = replies.verdict()
    begun = replies.verdict()
    stopping = False

    def greetings() -> list[Any]:
        return [body for body in judge.greetings if stopping]

    # Begun before, and answered when the server has been found to be out.
    begun.hold = lambda: len(greetings()) >= 2 or len(judge.bodies) == 24

    def answer(body: dict[str, Any], n: int) -> Any:
        nonlocal stopping
        if n == 4:
            stopping, judge.greeting = True, refused
            return begun if max_tries == 1 else good  # with a request under way no wait of the clock's ends
        return refused if stopping else good

    def back() -> None:
        nonlocal stopping
        stopping, judge.greeting = False, good
        judge.start()

    judge.answer = answer
    clock.after(20, judge.stop)
    clock.after(60, back)
    config = settings(concurrency=2, max_tries=max_tries)
    asked = Asked(config, ["g"] * 24, clock)
    assert all(isinstance(score, Scores) for score in asked.scores)
    assert (asked.statistics.failed, asked.statistics.outages) == (0, 1)
    assert "(/chat/completions answers 500: cannot schedule new futures): waiting for it" in asked.said[0]
    assert [line for line in asked.said if "answers again after" in line] == asked.said[-1:]


@pytest.mark.parametrize("health", [200, 503])
def test_no_question_is_lost_where_all_servers_are_stopped_together(
    judges: list[Any], settings: Any, replies: Any, clock: FakeClock, health: int
) -> None:
    """Each is an outage of its own, and they are more than a question has tries."""
    good, refused = replies.verdict(), replies.Reply(status=500, raw="{}")

    def all_are(answer: Any, health: int) -> None:
        for judge in judges:
            judge.health, judge.greeting, judge.answer = health, answer, lambda body, n: answer

    all_are(refused, health)
    clock.after(60, lambda: all_are(good, 200))
    urls = tuple(judge.url for judge in judges)
    asked = Asked(settings(urls=urls, max_tries=1), ["g"] * 4, clock)
    assert all(isinstance(score, Scores) for score in asked.scores)


def test_a_question_that_alone_is_answered_with_an_error_fails(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    error = replies.Reply(status=500, raw="{}")
    judge.answer = lambda body, n: error if text_of(body).startswith("poison") else replies.verdict()
    asked = Asked(settings(), ["poison", "fine", "poison", "fine"], clock)
    assert [isinstance(score, Failure) for score in asked.scores] == [True, False, True, False]
    assert {asked.answers[0].tries, asked.answers[2].tries} == {4}
    assert (asked.statistics.outages, asked.said) == (0, [])


def test_overload_is_no_outage(judge: Any, settings: Any, replies: Any, clock: FakeClock) -> None:
    judge.answer = lambda body, n: replies.Reply(status=503, raw="{}") if n < 12 else replies.verdict()
    asked = Asked(settings(max_tries=8, breaker_failures=2), ["g"] * 6, clock)
    assert all(isinstance(score, Scores) for score in asked.scores)
    assert asked.statistics.outages == 0
    assert asked.said == []


@pytest.mark.parametrize("others", [0, 8])
@pytest.mark.parametrize("down_s", [0, 1])
def test_a_question_that_brings_the_server_down_every_time_fails_in_the_end(
    judge: Any, settings: Any, replies: Any, clock: FakeClock, others: int, down_s: float
) -> None:
    """down_s: how long it takes the server to come back. Where there is nobody else to try it then, the same question
    does: that must not go on until the run is given up.
    """

    def answer(body: dict[str, Any], n: int) -> Any:
        if not text_of(body).startswith("poison"):
            return replies.verdict()
        if down_s:
            judge.health = 503
            clock.after_threadsafe(down_s, lambda: setattr(judge, "health", 200))
        return replies.Reply(drop=True)

    judge.answer = answer
    config = settings(max_tries=2, breaker_failures=1, outage_timeout_s=600.0)
    asked = Asked(config, ["poison", *["fine"] * others], clock)
    assert isinstance(asked.scores[0], Failure)
    assert asked.scores[0].reason == "connection"
    assert asked.answers[0].tries <= 5
    assert all(isinstance(score, Scores) for score in asked.scores[1:])


def test_nobody_who_holds_a_place_waits_for_another(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    """An endpoint is found ill while its only place is taken by a question that is answered all the same: what its
    server is must not be asked for again before the answer is read, which takes a place.
    """
    from vcap_jax.reward.encoded_view import EncodedView

    shown = EncodedView(parts=(), key="k", pictures=0)

    async def run() -> Any:
        async with JudgeClient(settings(concurrency=1, breaker_failures=1), clock=clock) as client:
            assert await client.model() == "the-judge"
            (endpoint,) = client._pool.endpoints

            def answer(body: dict[str, Any], n: int) -> Any:
                judge.health = 503
                loop.call_soon_threadsafe(lambda: asyncio.ensure_future(client._pool.examine(endpoint)))
                reply = replies.verdict()
                reply.hold = lambda: endpoint.card is None
                return reply

            judge.answer = answer
            loop = asyncio.get_running_loop()
            return await client.ask(message("a"), read, shown=shown)

    assert isinstance(asyncio.run(run()).result, Scores)


def test_a_judge_that_comes_back_as_another_model_stays_out(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    first = replies.verdict()

    def answer(body: dict[str, Any], n: int) -> Any:
        if n == 0:
            judge.models = ["another"]
            return first
        return replies.Reply(status=404, raw='{"error": {"message": "no such model"}}')

    judge.answer = answer

    async def run() -> None:
        async with JudgeClient(settings(outage_timeout_s=50), clock=clock) as client:
            assert isinstance((await client.ask(message("a"), read)).result, Scores)
            await client.ask(message("b"), read)

    with pytest.raises(JudgeOutage, match="serves another, and the other endpoints serve the-judge"):
        asyncio.run(run())


def test_the_wait_ends_after_its_bound_with_what_was_seen(
    judge: Any, settings: Any, clock: FakeClock
) -> None:
    judge.stop()
    said: list[str] = []

    async def run() -> None:
        async with JudgeClient(settings(outage_timeout_s=6), say=said.append, clock=clock) as client:
            await asyncio.gather(*(client.ask(message(f"{k}"), read) for k in range(8)))

    with pytest.raises(JudgeOutage, match=r"did not answer for 6 s .*connection refused"):
        asyncio.run(run())
    assert clock.now() == 1006
    assert len(said) == 1
    assert judge.url in said[0]
    judge.start()


def test_an_outage_begins_when_the_last_endpoint_drops_out(
    judges: list[Any], settings: Any, clock: FakeClock
) -> None:
    first, second, _ = judges

    async def run() -> None:
        config = settings(urls=(first.url, second.url), outage_timeout_s=60)
        async with JudgeClient(config, say=lambda text: None, clock=clock) as client:
            for judge in (first, second):
                judge.stop()
                # Each prefers the one that has just gone.
                route = groups((first.url, second.url), 1)[judge is second]
                asked = asyncio.create_task(client.ask(message("x"), read, route=route))
                await clock.sleep(50)
            await asked

    with pytest.raises(JudgeOutage, match="did not answer for 60 s"):
        asyncio.run(run())
    assert 1110 <= clock.now() < 1120
    for judge in (first, second):
        judge.start()
