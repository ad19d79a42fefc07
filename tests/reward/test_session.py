"""The synchronous face of the reward."""

import json
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.fake_clock import FakeClock
from tests.patience import GUARD_S, until
from vcap_jax.data.media import JudgeFrame, TimeWindow
from vcap_jax.reward.config import InstructionPaths, JudgeConfig, RewardConfig
from vcap_jax.reward.errors import JudgeOutage, JudgeUnavailable
from vcap_jax.reward.group import GroupForReward
from vcap_jax.reward.restudy import restudy
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.templates import TemplateError


class Picture:
    modality: Literal["image", "video"] = "image"
    duration = 0.0

    def frames(self, window: TimeWindow | None = None) -> Sequence[JudgeFrame]:
        return [JudgeFrame(url="data:x")]


def group(name: str, captions: int = 4) -> GroupForReward:
    texts = tuple(f"{name} {i}" for i in range(captions))
    return GroupForReward(
        sample_id=name, step=0, index=0, media=Picture(), reference="A witness.", captions=texts
    )


def test_groups_are_scored_while_others_are_still_made(judge: Any, settings: Any, replies: Any) -> None:
    released = threading.Event()

    def answer(body: dict[str, Any], n: int) -> Any:
        reply = replies.verdict()
        if replies.candidate_of(body).startswith("slow"):
            reply.hold = released.is_set
        return reply

    judge.answer = answer
    with RewardSession(RewardConfig(), settings(), seed=0) as session:
        assert session.wait_until_ready() == "the-judge"
        slow, quick = session.submit(group("slow")), session.submit(group("quick"))
        assert quick.result(GUARD_S).sample_id == "quick"
        assert not slow.done()
        released.set()
        assert len(slow.result(GUARD_S).rewards) == 4
        assert session.statistics().judged == 8


def test_many_groups_from_several_threads(judge: Any, settings: Any) -> None:
    with RewardSession(RewardConfig(), settings(concurrency=16), seed=0) as session:
        futures: list[Any] = []

        def submit(first: int) -> None:
            futures.extend(session.submit(group(f"g{first + i}")) for i in range(8))

        threads = [threading.Thread(target=submit, args=(8 * t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD_S)
        results = [future.result(GUARD_S) for future in futures]
    assert len({result.sample_id for result in results}) == 32
    assert all(reward is not None for result in results for reward in result.rewards)
    assert judge.most_running <= 16


def test_what_two_groups_ask_at_once_has_one_answer_and_that_is_the_stored_one(
    judge: Any, settings: Any, replies: Any, tmp_path: Path
) -> None:
    def answer(body: dict[str, Any], n: int) -> Any:
        reply = replies.verdict(Correctness=len(judge.bodies))
        reply.hold = lambda: len(judge.bodies) == 2
        return reply

    judge.answer = answer
    store = str(tmp_path / "judgements.sqlite")
    one = group("twice", captions=1)
    with RewardSession(RewardConfig(), settings(media_uuid="never", store=store), seed=0) as session:
        futures = [session.submit(replace(one, index=index)) for index in range(2)]
        earned = [future.result(GUARD_S).rewards[0] for future in futures]
    assert len(judge.bodies) == 2
    assert earned[0] == earned[1]
    assert [row.reward for row in restudy(store, RewardConfig().weights)] == earned


def test_a_verdict_on_one_picture_is_none_on_another(
    judge: Any, settings: Any, replies: Any, tmp_path: Path
) -> None:
    """Two pictures with the same reference, and a caption that the policy writes of both."""

    class Other(Picture):
        def frames(self, window: TimeWindow | None = None) -> Sequence[JudgeFrame]:
            return [JudgeFrame(url="data:y")]

    def answer(body: dict[str, Any], n: int) -> Any:
        return replies.verdict(Correctness=9 if '"data:x"' in json.dumps(body["messages"]) else 1)

    judge.answer = answer
    one = group("one", captions=1)
    config = settings(media_uuid="never", store=str(tmp_path / "judgements.sqlite"))
    with RewardSession(RewardConfig(), config, seed=0) as session:
        for media, correctness in ((Picture(), 9), (Other(), 1), (Picture(), 9)):
            (found,) = session.submit(replace(one, media=media)).result(GUARD_S).candidates
            assert found.components["correctness"] == correctness
    assert len(judge.bodies) == 2


def test_a_caption_is_judged_while_others_of_its_group_are_still_drawn(judge: Any, settings: Any) -> None:
    whole = group("cat", captions=3)
    with RewardSession(RewardConfig(), settings(), seed=0) as session:
        opened = session.open(whole, 3)
        opened.end(1, whole.captions[1])
        until(lambda: session.statistics().judged == 1, "the first verdict")
        assert not opened.scores.done()
        opened.end(2, whole.captions[1])  # the same text again
        opened.end(0, whole.captions[0])
        scores = opened.scores.result(GUARD_S)
        expected = session.submit(
            replace(whole, captions=(whole.captions[0], whole.captions[1], whole.captions[1]))
        ).result(GUARD_S)
        assert session.statistics().judged == 4
    assert len(judge.bodies) == 4
    assert scores.candidates == expected.candidates
    assert (scores.full_reward, scores.weights) == (expected.full_reward, expected.weights)


def test_a_family_that_compares_candidates_gets_whole_groups() -> None:
    own = RewardConfig(family="tests.reward.own_families:Length", options={"most": 4})
    with RewardSession(own, JudgeConfig(), seed=0) as session:
        opened = session.open(group("x"), 2)
        opened.end(1, "one two")
        opened.end(0, "one two three four")
        assert opened.scores.result(GUARD_S).rewards == [1.0, 0.5]


def test_a_dead_judge_is_waited_for_and_then_ends_the_run(settings: Any, clock: FakeClock) -> None:
    config = settings(urls=("http://127.0.0.1:9/v1",), model="m", max_tries=2, outage_timeout_s=30)
    said: list[str] = []
    with RewardSession(RewardConfig(), config, seed=0, say=said.append, clock=clock) as session:
        with pytest.raises(JudgeOutage):
            session.submit(group("a")).result(GUARD_S)
        assert "does not answer (connection refused): waiting for it, at most 30 s" in said[0]
        assert "for 10 s: connection refused; giving up after 30 s" in said[1]
        with pytest.raises(JudgeUnavailable, match="not ready"):
            session.wait_until_ready(2)


def test_closing_ends_what_is_under_way(judge: Any, settings: Any, replies: Any) -> None:
    reply = replies.verdict()
    reply.hold = replies.never  # a close that waited for the answer would not come back
    judge.answer = lambda body, n: reply
    session = RewardSession(RewardConfig(), settings(), seed=0)
    future = session.submit(group("a"))
    until(lambda: judge.running == 4, "the four questions")
    session.close()
    session.close()
    with pytest.raises(CancelledError):
        future.result(GUARD_S)
    with pytest.raises(RuntimeError, match="closed"):
        session.submit(group("b"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reward session")]


def test_unfit_settings_are_refused_before_anything_starts(tmp_path: Any, settings: Any) -> None:
    with pytest.raises(JudgeUnavailable, match=r"judge\.urls"):
        RewardSession(RewardConfig(), JudgeConfig(), seed=0)
    config = RewardConfig(instructions=InstructionPaths(image=str(tmp_path / "absent.txt")))
    with pytest.raises(TemplateError, match=r"absent\.txt"):
        RewardSession(config, settings(), seed=0)


def test_a_mistake_in_the_group_is_raised_by_its_future(judge: Any, settings: Any) -> None:
    with RewardSession(RewardConfig(), settings(), seed=0) as session:
        wrong = GroupForReward(
            sample_id="x", step=0, index=0, media=Picture(), reference=None, captions=("a",)
        )
        with pytest.raises(ValueError, match="'x' has no reference"):
            session.submit(wrong).result(GUARD_S)
        assert session.submit(group("fine")).result(GUARD_S).rewards[0] is not None
