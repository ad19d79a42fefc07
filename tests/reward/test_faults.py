"""Rewards while the judge goes wrong; benchmarks/judge_faults.py asks thousands of times, this a few hundred."""

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import aiohttp
import pytest

from benchmarks.judge_faults import (
    KINDS,
    endure,
    groups_for,
    judge_config,
    lost_early,
    plan_for,
    true_rewards,
    wrong_advantages,
    wrong_rewards,
)
from gpu_judge.embedded.judge import EmbeddedJudge
from tests.fake_clock import FakeClock
from tests.patience import GUARD_S, until
from tests.reward.fault_server import FAULTS, USABLE, FaultServer
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.errors import JudgeOutage
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import GroupForReward
from vcap_jax.reward.scores import Scores, parse_scores
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.templates import QUALITY_KEYS

# Faults that take a whole deadline, or whose number of tries depends on the clock, are mixed in below only.
_QUICK = [
    kind
    for kind in FAULTS
    if kind not in ("late", "hung", "drip", "white space for ever", "white space, a flood")
]

_BROKEN = ("reset", "closed", "half a body", "half the chunks")


@pytest.fixture(scope="module")
def groups() -> list[GroupForReward]:
    return groups_for(40, seed=3)


@pytest.fixture(scope="module")
def truth(groups: Sequence[GroupForReward]) -> list[list[float | None]]:
    return true_rewards(groups, seed=3)


# Each takes half a second: by default every second one, and what breaks every connection.
@pytest.mark.parametrize(
    "kind",
    [
        kind if number % 2 == 0 or kind in _BROKEN else pytest.param(kind, marks=pytest.mark.slow)
        for number, kind in enumerate(_QUICK)
    ],
)
def test_a_fault_on_every_try_is_never_a_score(
    kind: str, groups: Sequence[GroupForReward], truth: list[list[float | None]], clock: FakeClock
) -> None:
    """One group, every request spoiled: usable answers are the truth, all others end as failures.

    A server that breaks every connection is one that is down: the run is told so.
    """
    with FaultServer(EmbeddedJudge(), lambda question, attempt: kind, deadline_s=0.5) as server:
        config = replace(judge_config(server, deadline_s=20.0), outage_timeout_s=0.3)
        with RewardSession(RewardConfig(), config, seed=3, clock=clock) as session:
            if kind == "another request's answer":
                server.plan = lambda question, attempt: None
                assert session.submit(groups[1]).result(GUARD_S).rewards == truth[1]
                server.plan = lambda question, attempt: kind
            future = session.submit(groups[0])
            if kind in _BROKEN:
                with pytest.raises(JudgeOutage):
                    future.result(GUARD_S)
                return
            found = future.result(GUARD_S).rewards
    assert found == (truth[0] if kind in USABLE else [None] * len(truth[0]))
    if kind not in USABLE:
        tries = Counter(call.question for call in server.calls if call.fault == kind)
        if kind[:3] in ("429", "503"):  # it waits as long as for a judge that is gone, and no try is lost
            assert min(tries.values()) > 4
        else:
            assert set(tries.values()) == {1 if kind == "400" else 4}


@pytest.mark.slow
def test_all_faults_mixed() -> None:
    groups = groups_for(300, seed=0)
    outcome = endure("mixed", groups, KINDS, true_rewards(groups), deadline_s=1.0, limit_s=GUARD_S)
    assert outcome.judgements >= 290
    assert outcome.deadlocked == 0
    assert outcome.wrong_rewards == outcome.wrong_advantages == 0
    assert outcome.savable == 0
    assert len(outcome.faults) > 25
    # A second is short where four processes want the same core: what came too late for that is no fault's doing.
    late = 4 * outcome.unforeseen
    assert outcome.scored + late > 0.9 * (outcome.scored + outcome.lost)


@pytest.mark.parametrize("kind", ["hung", "drip", "white space for ever", "white space, a flood"])
def test_the_deadline_ends_what_never_ends(kind: str, clock: FakeClock) -> None:
    """Answers that hang, drip, or send white space for ever cost their deadline and no more."""

    def plan(question: str, attempt: int) -> str:
        clock.advance_threadsafe(5)
        return kind

    async def ask(server: FaultServer) -> tuple[list[Failure | Scores], float]:
        config = replace(judge_config(server, deadline_s=5), max_tries=2)
        async with JudgeClient(config, clock=clock) as client:
            # One after the other: the clock goes on for one request at a time.
            answers = [await client.ask(_question(n), _read) for n in range(3)]
            return [answer.result for answer in answers], client.statistics().latency_max_s

    with FaultServer(_Nine(), plan, deadline_s=0.5) as server:
        results, longest = asyncio.run(ask(server))
    assert all(isinstance(r, Failure) and r.reason in ("timeout", "bad_response") for r in results)
    assert longest <= 5 + 1e-6
    assert len(server.calls) == 6


def test_a_late_answer_is_never_read_by_the_next_request(clock: FakeClock) -> None:
    """The connection whose answer came too late is not used again."""

    def plan(question: str, attempt: int) -> str | None:
        if attempt:
            return None
        clock.advance_threadsafe(5)
        return "late"

    async def ask(server: FaultServer) -> list[int]:
        config = judge_config(server, deadline_s=5, concurrency=1)
        async with JudgeClient(config, clock=clock) as client:
            found = []
            for n in range(6):
                answer = await client.ask(_question(n), _read)
                assert isinstance(answer.result, Scores), answer.result
                found.append(answer.result.correctness)
                await asyncio.sleep(0.1)  # in which the late answer is sent
            return found

    with FaultServer(_Nine(), plan, deadline_s=0.05) as server:
        assert asyncio.run(ask(server)) == [9] * 6  # a late answer says 1
        assert {call.attempt for call in server.calls} >= {0, 1}


class _Nine:
    """A judge that gives nines."""

    def answer(self, body: object) -> dict[str, object]:
        return {"Analysis": "", **dict.fromkeys(QUALITY_KEYS, 9)}


def _question(number: int) -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"type": "text", "text": f"question {number}"}]}]


def _read(text: str | None, finish_reason: str | None) -> Scores | Failure:
    return parse_scores(text, QUALITY_KEYS, finish_reason)


def test_the_plan_spoils_its_share_whatever_the_order() -> None:
    plan = plan_for(KINDS, rate=0.3, seed="x")
    names = [f"question {n}" for n in range(4000)]
    first = {name: plan(name, 0) for name in names}
    assert first == {name: plan(name, 0) for name in reversed(names)}
    assert 0.27 < sum(fault is not None for fault in first.values()) / len(names) < 0.33
    assert set(first.values()) == {None, *FAULTS}
    refused = [name for name in names if first[name] == "400"]
    assert refused
    assert all(plan(name, attempt) == "400" for name in refused for attempt in range(4))


def test_the_counts_see_what_they_are_for() -> None:
    truth = [[0.5, 0.6, 0.7]]
    assert wrong_rewards([[0.5, None, 0.7]], truth) == 0
    assert wrong_rewards([[0.5, None, 0.8]], truth) == 1
    assert wrong_advantages([[0.5, None, 0.7]], truth) == 0
    assert wrong_advantages([[0.5, None, 0.8]], truth) > 0
    plan = ["500", "500", "500", "500"]
    with FaultServer(_Nine(), lambda question, attempt: plan[attempt]) as server:

        async def post(times: int) -> None:
            async with aiohttp.ClientSession() as session:
                for _ in range(times):
                    async with session.post(
                        f"{server.url}/v1/chat/completions", json={"messages": _question(0)}
                    ):
                        pass

        asyncio.run(post(3))
        assert lost_early(server, lost=1) == (1, 1)  # a fourth try was due
        asyncio.run(post(1))
        assert lost_early(server, lost=1) == (0, 0)
        assert lost_early(server, lost=2) == (1, 1)  # the server knows of one only


def test_refusals_come_from_the_operating_system() -> None:
    with FaultServer(_Nine(), refuse_every=1, refuse_s=2 * GUARD_S) as server:

        async def post() -> None:
            url = f"{server.url}/v1/chat/completions"
            async with (
                aiohttp.ClientSession() as session,
                session.post(url, json={"messages": _question(0)}) as reply,
            ):
                assert reply.status == 200

        def refused() -> bool:
            with socket.socket() as attempt:
                return attempt.connect_ex(("127.0.0.1", server.port)) != 0

        asyncio.run(post())
        until(refused, "a refusal")
