"""A judge that shares the policy's devices: asleep outside of its turn, and asked only in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.fake_clock import FakeClock
from tests.patience import GUARD_S, until
from tests.reward.scripted_judge import Reply, ScriptedJudge, verdict
from tests.sleeping import SharedDevices, Sleeper
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig, RewardConfig, SecondJudgeConfig
from vcap_jax.reward.errors import JudgeOutage, JudgeUnavailable
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import GroupForReward
from vcap_jax.reward.scores import Scores, parse_scores
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.templates import QUALITY_KEYS
from vcap_jax.system.turns import Turns


class Picture:
    modality = "image"
    duration = 0.0

    def frames(self, window: Any = None) -> list[Any]:
        from vcap_jax.data.media import JudgeFrame

        return [JudgeFrame(url="data:x")]


def group(name: str, captions: int = 4) -> GroupForReward:
    texts = tuple(f"{name} {i}" for i in range(captions))
    return GroupForReward(
        sample_id=name, step=0, index=0, media=Picture(), reference="A witness.", captions=texts
    )


def read(text: str | None, finish_reason: str | None) -> Scores | Failure:
    return parse_scores(text, QUALITY_KEYS, finish_reason)


def message(text: str) -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


@pytest.fixture
def devices() -> SharedDevices:
    return SharedDevices()


@pytest.fixture
def sharing(devices: SharedDevices) -> Iterator[ScriptedJudge]:
    server = ScriptedJudge(Sleeper("judge", devices))
    yield server
    server.close()
    assert devices.wrong == []


@pytest.fixture
def config(sharing: ScriptedJudge) -> JudgeConfig:
    return JudgeConfig(
        urls=(sharing.url,), sleep_mode=True, backoff_s=0.01, max_backoff_s=0.05, deadline_s=GUARD_S
    )


def test_questions_are_held_until_it_is_the_judges_turn(
    sharing: ScriptedJudge, config: JudgeConfig, devices: SharedDevices, judge: Any, settings: Any
) -> None:
    turns = Turns()
    whole = group("cat")
    with RewardSession(RewardConfig(), config, seed=0, turns=turns) as session:
        assert session.wait_until_ready() == "the-judge"  # a turn of its own
        assert devices.did == ["judge wakes up", "judge sleeps"]
        opened = session.open(whole, 4)
        for place, caption in enumerate(whole.captions):
            opened.end(place, caption)
        submitted = session.submit(group("dog"))
        # Another judge has answered meanwhile, group after group.
        with RewardSession(RewardConfig(), settings(), seed=0) as others:
            for name in "abc":
                others.submit(group(name)).result(GUARD_S)
        assert sharing.bodies == []
        assert not submitted.done()
        with session.turn():
            assert turns.whose == f"the judge at {sharing.url}"
            assert len(opened.scores.result(GUARD_S).rewards) == 4
            assert submitted.result(GUARD_S).sample_id == "dog"
        assert turns.whose is None
        assert not opened.scores.result().candidates[0].failure
        assert session.statistics().judged == 8
    assert devices.did == ["judge wakes up", "judge sleeps"] * 2


def test_scores_are_those_of_a_judge_that_is_always_awake(
    sharing: ScriptedJudge, config: JudgeConfig
) -> None:
    def rewards(judge: JudgeConfig) -> list[float | None]:
        with RewardSession(RewardConfig(), judge, seed=0) as session:
            scores = session.submit(group("cat"))
            with session.turn():
                return list(scores.result(GUARD_S).rewards)

    shared = rewards(config)
    plain = ScriptedJudge()
    try:
        assert shared == rewards(replace(config, urls=(plain.url,), sleep_mode=False))
        assert len(sharing.bodies) == len(plain.bodies)
    finally:
        plain.close()


def test_a_judge_without_sleep_mode_has_no_turns(judge: Any, settings: Any) -> None:
    turns = Turns()
    with RewardSession(RewardConfig(), settings(), seed=0, turns=turns) as session, turns.of("somebody"):
        assert session.asks_judge
        assert not session.takes_turns
        with session.turn():
            assert session.submit(group("cat")).result(GUARD_S).rewards[0] is not None


def test_two_turns_at_once_are_refused(config: JudgeConfig) -> None:
    turns = Turns()
    with (
        RewardSession(RewardConfig(), config, seed=0, turns=turns) as session,
        turns.of("the rollout servers"),
        pytest.raises(RuntimeError, match="the rollout servers"),
        session.turn(),
    ):
        raise AssertionError("never")


def test_media_that_a_server_forgets_in_its_sleep_are_sent_again(
    sharing: ScriptedJudge, config: JudgeConfig
) -> None:
    sharing.owned_by = "vllm"
    with RewardSession(RewardConfig(), config, seed=0) as session:
        for _ in range(2):
            scores = session.submit(group("cat", 2))
            with session.turn():
                assert scores.result(GUARD_S).rewards[0] is not None
        statistics = session.statistics()
    # Neither is named first and then missed.
    assert statistics.media_resent == 0
    assert statistics.media_sent >= 2


class Clients:
    """A client whose turns the test begins, on a clock that it holds."""

    def __init__(self, config: JudgeConfig, clock: FakeClock) -> None:
        self.config, self.clock, self.said = config, clock, list[str]()

    def run(self, work: Callable[[JudgeClient], Any]) -> Any:
        async def inside() -> Any:
            async with JudgeClient(self.config, say=self.said.append, clock=self.clock, turns=True) as client:
                return await work(client)

        return asyncio.run(inside())


def test_a_judge_that_was_killed_in_its_sleep_is_waited_for_as_any_lost_one(
    sharing: ScriptedJudge, config: JudgeConfig, clock: FakeClock, devices: SharedDevices
) -> None:
    assert sharing.sleeper is not None

    def restarted() -> None:
        assert sharing.sleeper is not None
        sharing.sleeper.restart("asleep")  # serve.py has it sleep as soon as it has judged
        sharing.start()

    async def work(client: JudgeClient) -> Any:
        await client.begin_turn()
        await client.end_turn()
        await asyncio.to_thread(sharing.stop)
        asked = asyncio.create_task(client.ask(message("a"), read))
        await client.begin_turn()
        clock.after(30, lambda: threading.Thread(target=restarted).start())
        answer = await asked
        await client.end_turn()
        return answer

    clients = Clients(replace(config, outage_timeout_s=3600), clock)
    answer = clients.run(work)
    assert isinstance(answer.result, Scores)
    assert answer.tries == 1
    assert any("does not answer" in line and "waiting for it" in line for line in clients.said)
    assert any("answers again" in line for line in clients.said)
    assert devices.did == ["judge wakes up", "judge sleeps"] * 2


def test_an_outage_counts_from_the_turn_in_which_it_is_met(
    sharing: ScriptedJudge, config: JudgeConfig, clock: FakeClock
) -> None:
    async def work(client: JudgeClient) -> None:
        await client.begin_turn()
        await asyncio.to_thread(sharing.stop)
        with pytest.raises(JudgeOutage, match="did not answer for 40 s"):
            await client.ask(message("a"), read)
        await client.end_turn()  # nobody is there who could keep memory
        before = clock.now() + 100
        clock.advance(100)
        asked = asyncio.create_task(client.ask(message("b"), read))
        await client.begin_turn()
        with pytest.raises(JudgeOutage):
            await asked
        assert clock.now() >= before + 40

    try:
        Clients(replace(config, outage_timeout_s=40, breaker_failures=1), clock).run(work)
    finally:
        sharing.start()


def test_one_of_two_that_is_lost_in_its_sleep_is_replaced_by_the_other(
    config: JudgeConfig, sharing: ScriptedJudge, devices: SharedDevices, clock: FakeClock
) -> None:
    other = ScriptedJudge(Sleeper("other judge", SharedDevices()))
    clients = Clients(replace(config, urls=(sharing.url, other.url)), clock)

    async def work(client: JudgeClient) -> list[Any]:
        await client.begin_turn()
        await client.end_turn()
        await asyncio.to_thread(other.stop)
        await client.begin_turn()
        answers = [await client.ask(message(str(n)), read, route=str(n)) for n in range(6)]
        await client.end_turn()
        return answers

    try:
        answers = clients.run(work)
    finally:
        other.start()
        other.close()
    assert all(isinstance(answer.result, Scores) for answer in answers)
    assert len(sharing.bodies) == 6
    assert any("the other endpoints take its groups" in line for line in clients.said)


def test_a_judges_first_answer_may_take_as_long_as_it_may_take_to_be_ready(
    sharing: ScriptedJudge, config: JudgeConfig, clock: FakeClock
) -> None:
    clients = Clients(replace(config, deadline_s=120, ready_timeout_s=600), clock)

    async def slowly() -> None:
        clock.advance_threadsafe(200)
        while not clients.said:
            await asyncio.sleep(0.001)

    async def work(client: JudgeClient) -> None:
        for _ in range(2):
            await client.begin_turn()
            await client.end_turn()

    assert sharing.sleeper is not None
    sharing.sleeper.before_info = slowly
    clients.run(work)
    assert clock.now() == 1200  # it is asked once
    assert clients.said == [
        f"waiting for the judge at {sharing.url} for 200 s: it wakes up; giving up after 600 s (judge.ready_timeout_s)"
    ]


def test_a_judge_that_keeps_its_memory_ends_the_run_with_the_remedy(
    config: JudgeConfig, sharing: ScriptedJudge
) -> None:
    assert sharing.sleeper is not None
    with RewardSession(RewardConfig(), config, seed=0) as session:
        scores = session.submit(group("cat"))
        sharing.sleeper.broken = {"/sleep"}
        with (
            pytest.raises(JudgeUnavailable, match=r"does not fall asleep.*serve\.py --sleep-mode"),
            session.turn(),
        ):
            scores.result(GUARD_S)
    # What it has judged is kept all the same.
    assert scores.result().rewards[0] is not None


def test_a_judge_without_the_routes_is_refused_with_the_command(judge: Any, settings: Any) -> None:
    with (
        RewardSession(RewardConfig(), settings(sleep_mode=True), seed=0) as session,
        pytest.raises(JudgeUnavailable, match=r"no sleep mode.*start it with gpu_judge/serve\.py"),
    ):
        session.wait_until_ready()


def test_a_client_that_nobody_gives_turns_is_awake_as_long_as_it_lives(
    config: JudgeConfig, sharing: ScriptedJudge, devices: SharedDevices
) -> None:
    async def ask() -> Any:
        async with JudgeClient(config) as client:
            await client.wait_until_ready(GUARD_S)
            return await client.ask(message("a"), read)

    assert isinstance(asyncio.run(ask()).result, Scores)
    assert devices.did == ["judge wakes up", "judge sleeps"]


def test_a_sleeping_judge_is_named_as_such_where_turns_are_not_asked_for(
    sharing: ScriptedJudge, config: JudgeConfig, clock: FakeClock, devices: SharedDevices
) -> None:
    """vLLM answers nothing while it sleeps."""
    never = asyncio.Event
    sharing.before["greeting"] = lambda: never().wait()
    plain = replace(config, sleep_mode=False, deadline_s=0.2)

    async def ready() -> None:
        async with JudgeClient(plain) as client:
            with pytest.raises(JudgeUnavailable, match=r"is asleep: set judge\.sleep_mode=true"):
                await client.wait_until_ready(GUARD_S)

    asyncio.run(ready())
    devices.wrong.clear()  # it was asked in its sleep, which is what the message is about


def test_a_turn_waits_for_no_answer_longer_than_its_deadline(
    sharing: ScriptedJudge, config: JudgeConfig
) -> None:
    sharing.answer = lambda body, n: Reply(status=503) if n == 0 else verdict()
    with RewardSession(RewardConfig(), config, seed=0) as session:
        scores = session.submit(group("cat", 1))
        with session.turn():
            until(scores.done, "a retried judgement")
    assert scores.result().rewards[0] is not None


@pytest.mark.parametrize("urls", [(), ("http://10.0.0.5:8000",), ("https://judge.example.org",)])
def test_turns_are_for_named_servers_on_loopback(urls: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"judge\.urls as http://127\.0\.0\.1:PORT"):
        JudgeConfig(urls=urls, sleep_mode=True)


def test_a_second_judge_takes_no_turns() -> None:
    with pytest.raises(ValueError, match=r"second_judge\.judge\.sleep_mode"):
        SecondJudgeConfig(judge=JudgeConfig(urls=("http://127.0.0.1:8000",), sleep_mode=True))


def test_a_judge_that_falls_asleep_in_its_own_turn_is_woken_up_again(
    sharing: ScriptedJudge, config: JudgeConfig, devices: SharedDevices
) -> None:
    """As one that serve.py has started anew there, and had sleep."""
    sleeper = sharing.sleeper
    assert sleeper is not None

    def answer(body: dict[str, Any], n: int) -> Reply:
        if n == 0:
            sleeper.state = "asleep"
        reply = verdict()
        reply.hold = lambda: sleeper.state == "awake"
        return reply

    sharing.answer = answer
    impatient = replace(config, deadline_s=0.5, breaker_failures=1, max_tries=4)
    with RewardSession(RewardConfig(), impatient, seed=0) as session:
        scores = session.submit(group("cat"))
        with session.turn():
            assert None not in scores.result(GUARD_S).rewards
    assert devices.did == ["judge wakes up", "judge wakes up", "judge sleeps"]
    devices.wrong.clear()  # it was asked in its sleep, which vLLM leaves unanswered
