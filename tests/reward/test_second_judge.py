"""The second judge: who is asked, what agreement is, and that nothing of it reaches the run."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_clock import FakeClock
from tests.patience import until
from vcap_jax.data.media import JudgeFrame, TimeWindow
from vcap_jax.reward.config import JudgeConfig, RewardConfig, SecondJudgeConfig
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.second_judge import SecondJudge, agreement, is_held_out
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import read_candidates, read_judgements


class Picture:
    modality = "image"
    duration = 0.0

    def frames(self, window: TimeWindow | None = None) -> list[JudgeFrame]:
        return [JudgeFrame(url="data:image/png;base64,AAAA")]


def group(sample: str, captions: int = 8) -> GroupForReward:
    texts = tuple(f"caption {k} of {sample}" for k in range(captions))
    return GroupForReward(
        sample_id=sample, step=3, index=0, media=Picture(), reference="A witness.", captions=texts
    )  # type: ignore[arg-type]


def candidate(reward: float | None, correctness: int = 5, third: int = 5) -> CandidateScore:
    failure = Failure(reason="timeout", detail="late") if reward is None else None
    components = {"correctness": float(correctness), "completeness": 5.0, "text_quality": float(third)}
    return CandidateScore(reward=reward, components=components, failure=failure)


def test_the_share_is_held_and_depends_on_nothing_but_names() -> None:
    def chosen(share: float) -> set[tuple[str, int]]:
        return {
            (f"s{n}", k)
            for n in range(300)
            for k in range(8)
            if is_held_out(share, seed=1, step=2, sample_id=f"s{n}", candidate=k)
        }

    some, more = chosen(0.05), chosen(0.2)
    assert some == chosen(0.05)
    assert some < more
    assert 80 < len(some) < 165
    assert len(chosen(1.0)) == 2400


def test_the_first_of_several_processes_asks_for_all_of_them() -> None:
    config = SecondJudgeConfig(share=0.3, judge=JudgeConfig(urls=("http://127.0.0.1:9",)))
    assert [config.of_one(count).share for count in (1, 2, 8)] == [0.3, 0.6, 1.0]


def test_agreement_of_equal_and_of_opposite_judges() -> None:
    first = [candidate(r, c) for r, c in ((0.1, 1), (0.5, 5), (0.9, 9), (0.2, 2))]
    same = agreement(list(zip(first, first, strict=True)))
    assert same["second_judge/count"] == 4
    assert same["second_judge/difference_reward"] == same["second_judge/difference_correctness"] == 0
    assert same["second_judge/pearson"] == pytest.approx(1.0)
    assert same["second_judge/spearman"] == pytest.approx(1.0)
    second = [candidate(1 - (r.reward or 0), 9, 8) for r in first]
    opposite = agreement(list(zip(first, second, strict=True)))
    assert opposite["second_judge/pearson"] == pytest.approx(-1.0)
    assert opposite["second_judge/difference_correctness"] == pytest.approx((8 + 4 + 0 + 7) / 4)
    assert opposite["second_judge/difference_text_quality"] == 3


def test_ranks_of_ties_are_shared() -> None:
    rewards = [(0.1, 0.3), (0.2, 0.3), (0.2, 0.5), (0.9, 0.4)]
    row = agreement([(candidate(a), candidate(b)) for a, b in rewards])
    ranks = np.corrcoef([0, 1.5, 1.5, 3], [0.5, 0.5, 3, 2])[0, 1]
    assert row["second_judge/spearman"] == pytest.approx(ranks)


def test_rewards_that_rounding_alone_tells_apart_are_equal() -> None:
    same = [candidate(r) for r in (0.05 * 8 + 0.04 * 5, 0.05 * 4 + 0.04 * 10, 0.6)]
    assert len({one.reward for one in same}) > 1
    row = agreement([(one, candidate(0.1 * k)) for k, one in enumerate(same)])
    assert not {"second_judge/pearson", "second_judge/spearman"} & row.keys()


def test_what_is_not_defined_is_left_out() -> None:
    assert agreement([]) == {"second_judge/count": 0}
    assert agreement([(candidate(None), candidate(0.5))]) == {"second_judge/count": 0}
    assert "second_judge/pearson" not in agreement([(candidate(0.1), candidate(0.2))] * 2)
    constant = agreement([(candidate(0.1 * k), candidate(0.2)) for k in range(5)])
    assert "second_judge/pearson" not in constant
    assert "second_judge/difference_reward" in constant


@pytest.mark.parametrize(
    "bad", [{"share": 0.0}, {"share": 1.1}, {"max_pending": 0}, {"judge": JudgeConfig()}]
)
def test_settings_that_make_no_sense_are_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"SecondJudgeConfig\n.*{next(iter(bad))}"):
        SecondJudgeConfig(**{"judge": JudgeConfig(urls=("http://127.0.0.1:9",)), **bad})


def test_it_sees_its_share_and_its_scores_stay_out_of_the_reward(
    judge: Any, settings: Any, replies: Any
) -> None:
    def answer(body: dict[str, Any], n: int) -> Any:
        return replies.verdict(Correctness=2 if body["model"] == "second" else 9)

    judge.answer, judge.models = answer, ["first", "second"]
    second = SecondJudgeConfig(share=0.25, judge=settings(model="second", media_uuid="never"))
    first = settings(model="first", media_uuid="never")
    groups = [group(f"s{n}") for n in range(6)]
    with (
        RewardSession(RewardConfig(), first, seed=0) as session,
        SecondJudge(second, RewardConfig(), seed=0, references={}) as other,
    ):
        futures = [session.submit(one) for one in groups]
        for one, future in zip(groups, futures, strict=True):
            other.consider(one, future)
        rewards = {r for future in futures for r in future.result().rewards}
        row: dict[str, Any] = {"second_judge/count": 0}

        def all_back() -> bool:
            fresh = other.metrics()
            row["second_judge/count"] += fresh["second_judge/count"]
            row.update({k: v for k, v in fresh.items() if "difference" in k})
            return fresh["second_judge/pending"] == 0

        until(all_back, "the answers of the second judge")
    assert rewards == {0.45 + 0.32 + 0.07}
    asked = [body for body in judge.bodies if body["model"] == "second"]
    expected = sum(
        is_held_out(0.25, seed=0, step=3, sample_id=one.sample_id, candidate=k)
        for one in groups
        for k in range(8)
    )
    assert 0 < expected == len(asked) == row["second_judge/count"]
    assert row["second_judge/difference_correctness"] == 7
    assert row["second_judge/difference_reward"] == pytest.approx(0.35)


def test_each_caption_is_compared_with_what_the_first_judge_gave_that_caption(
    judge: Any, settings: Any, replies: Any
) -> None:
    """Some of a group are asked about, and all of it has the first judge's scores: the right ones are to be found."""
    judge.answer = lambda body, n: replies.verdict(Correctness=int(replies.candidate_of(body).split()[1]))
    first: Future[GroupScores] = Future()
    given = tuple(candidate(0.05 * k + 0.32 + 0.07, k) for k in range(8))
    first.set_result(GroupScores(sample_id="s0", step=3, candidates=given))
    config = SecondJudgeConfig(share=0.4, judge=settings())
    with SecondJudge(config, RewardConfig(), seed=0, references={}) as other:
        other.consider(group("s0"), first)
        row: dict[str, Any] = {}

        def back() -> bool:
            row.update(other.metrics())
            return row["second_judge/pending"] == 0

        until(back, "the answers of the second judge")
    assert 2 <= row["second_judge/count"] == len(judge.bodies) < 8
    assert row["second_judge/difference_correctness"] == 0
    assert row["second_judge/difference_reward"] == pytest.approx(0)


def test_what_the_run_keeps_of_its_captions_stays_where_both_judges_share_a_store(
    judge: Any, settings: Any, replies: Any, tmp_path: Path
) -> None:
    judge.answer = lambda body, n: replies.verdict(Correctness=2 if body["model"] == "second" else 9)
    judge.models = ["first", "second"]
    store = str(tmp_path / "judgements.sqlite")
    second = SecondJudgeConfig(share=0.5, judge=settings(model="second", media_uuid="never", store=store))
    first = settings(model="first", media_uuid="never", store=store)
    with (
        RewardSession(RewardConfig(), first, seed=0) as session,
        SecondJudge(second, RewardConfig(), seed=0, references={}) as other,
    ):
        future = session.submit(group("s0"))
        future.result()
        other.consider(group("s0"), future)
        until(lambda: other.metrics()["second_judge/pending"] == 0, "the answers of the second judge")
    kept = list(read_candidates(store))
    assert [row.index for row, _ in kept] == list(range(8))
    assert {row.reward for row, _ in kept} == {0.45 + 0.32 + 0.07}
    assert len({key.model for key, _ in read_judgements(store)}) == 2


def test_one_that_is_not_there_disturbs_nobody(judge: Any, settings: Any, clock: FakeClock) -> None:
    said: list[str] = []
    dead = settings(urls=("http://127.0.0.1:9",), model="dead", outage_timeout_s=20, max_tries=1)
    config = SecondJudgeConfig(share=1.0, judge=dead, max_pending=16)
    with RewardSession(RewardConfig(), settings(), seed=0) as session:
        other = SecondJudge(config, RewardConfig(), seed=0, references={}, say=said.append, clock=clock)
        for n in range(3):
            one = group(f"s{n}")
            future = session.submit(one)
            other.consider(one, future)
            assert all(reward is not None for reward in future.result().rewards)
        seen = {"second_judge/failed": 0, "second_judge/passed_over": 0}

        def given_up() -> bool:
            row = other.metrics()
            assert row["second_judge/count"] == 0
            for name in seen:
                seen[name] += int(row[name])
            return sum(seen.values()) == 24

        until(given_up, "the second judge to be given up")
        other.close()
        assert seen["second_judge/failed"] >= 16
    assert len(said) == 1
    assert said[0].startswith("second judge: the second judge at http://127.0.0.1:9/v1 does not answer")


def test_a_slow_one_is_not_waited_for_and_its_queue_is_bounded(
    judge: Any, settings: Any, replies: Any
) -> None:
    judge.answer = lambda body, n: replies.Reply(content="{}", hold=replies.never)
    config = SecondJudgeConfig(share=1.0, judge=settings(), max_pending=10)
    done: Future[GroupScores] = Future()
    done.set_result(GroupScores(sample_id="x", step=3, candidates=(candidate(0.5),) * 8))
    other = SecondJudge(config, RewardConfig(), seed=0, references={})
    for n in range(3):
        other.consider(group(f"s{n}"), done)
    row = other.metrics()
    assert (row["second_judge/pending"], row["second_judge/passed_over"]) == (8, 16)
    other.close()


def test_a_family_that_asks_no_judge_has_no_second_one(settings: Any) -> None:
    with pytest.raises(FamilyError, match=r"imitation.*leave out second_judge"):
        SecondJudge(
            SecondJudgeConfig(judge=settings()), RewardConfig(family="imitation"), seed=0, references={}
        )


def test_its_family_has_the_reference_pool_of_the_first_ones(settings: Any) -> None:
    reward = RewardConfig(family="tests.reward.own_families:PoolSize")
    pool = {"s0": ("A witness.", "Another."), "s1": ("A third.",)}
    config = SecondJudgeConfig(share=1.0, judge=settings())
    with (
        RewardSession(reward, settings(), seed=0, references=pool) as session,
        SecondJudge(config, reward, seed=0, references=pool) as other,
    ):
        future = session.submit(group("s0"))
        assert {one.components["references"] for one in future.result().candidates} == {3.0}
        other.consider(group("s0"), future)
        row: dict[str, Any] = {}

        def back() -> bool:
            row.update(other.metrics())
            return row["second_judge/pending"] == 0

        until(back, "the scores of the second judge's family")
    assert (row["second_judge/count"], row["second_judge/difference_references"]) == (8, 0)
