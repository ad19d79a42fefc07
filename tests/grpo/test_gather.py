"""What processes tell each other of a step comes through exactly, and they stop together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.processes_in_threads import in_threads
from vcap_jax.data.batching import common_sizes
from vcap_jax.data.media import TimeWindow
from vcap_jax.grpo.gather import StepNotDone, end_of_step, longest_of_all, outcome_of_all
from vcap_jax.grpo.records import GroupRecord, GroupResult, StepRollout
from vcap_jax.models.buckets import PaddedSizes
from vcap_jax.parallel.processes import ALONE, DistributedConfig, Processes
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import CandidateScore, GroupScores
from vcap_jax.reward.scores import Scores
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.rollout.slots import SampledGroup

VERDICT = Scores(
    analysis="Sieht “gut” aus.\n", correctness=9, completeness=7, third=10, third_key="Text Quality"
)


def record(index: int) -> GroupRecord:
    rng = np.random.default_rng(index)
    good = CandidateScore(
        reward=float(rng.random()),
        components={"correctness": 9.0, "local/completeness": float(rng.random())},
        notes={"analysis": "…"},
        verdicts={"global": VERDICT},
        keys={"global": "k", "local": None},
    )
    bad = CandidateScore(reward=None, failure=Failure(reason="timeout", detail="60 s"))
    return GroupRecord(
        index=index,
        sample_id=f"sample {index}",
        captions=("ein Bär", ""),
        lengths=np.array([3, 1], np.int32),
        truncated=np.array([True, False]),
        scores=GroupScores(
            sample_id=f"sample {index}",
            step=1,
            candidates=(good, bad),
            full_reward=0.1,
            window=TimeWindow(start=0.0, end=1.5),
        ),
        example=SimpleNamespace(),  # type: ignore[arg-type]  # stays where it is
        reference=None,
        tokens=np.zeros((2, 3), np.int32),
    )


def rollout(indices: list[int], seconds: float) -> StepRollout:
    records = tuple(record(index) for index in indices)
    return StepRollout(batches=(), records=records, rollout_seconds=seconds, judge_seconds=1 / seconds)


def test_every_process_knows_all_groups_as_the_one_that_drew_them() -> None:
    alone = outcome_of_all(ALONE, rollout([0, 1, 2, 3], 2.0))

    def work(processes: Processes) -> Any:
        return outcome_of_all(
            processes, rollout([processes.index, processes.index + 2], 1.0 + processes.index)
        )

    for outcome in in_threads(2, work):
        assert (outcome.rollout_seconds, outcome.judge_seconds) == (2.0, 1.0)
        for ours, theirs in zip(outcome.results, alone.results, strict=True):
            assert (ours.index, ours.sample_id, ours.captions) == (
                theirs.index,
                theirs.sample_id,
                theirs.captions,
            )
            assert ours.scores == theirs.scores
            np.testing.assert_array_equal(ours.lengths, theirs.lengths)
            np.testing.assert_array_equal(ours.truncated, theirs.truncated)
            assert (ours.lengths.dtype, ours.truncated.dtype) == (np.int32, np.bool_)
            assert type(ours) is GroupResult


def test_a_step_that_one_process_cannot_do_is_done_by_none() -> None:
    def work(processes: Processes) -> str:
        mine = rollout([0], 1.0) if processes.index != 1 else RuntimeError("no judge answers")
        with pytest.raises(StepNotDone) as raised:
            outcome_of_all(processes, mine)
        return str(raised.value)

    assert in_threads(3, work) == ["process 1: no judge answers"] * 3
    with pytest.raises(StepNotDone, match=r"^no judge answers$"):
        outcome_of_all(ALONE, RuntimeError("no judge answers"))


def test_captions_are_padded_to_the_longest_of_any_process_unless_one_has_none() -> None:
    def drawn(*lengths: int) -> list[SampledGroup]:
        tokens = np.zeros((2, 9), np.int32)
        return [SampledGroup(0, tokens, np.array([1, n], np.int32), np.zeros(2, bool)) for n in lengths]

    def work(processes: Processes) -> int:
        return longest_of_all(processes, drawn(3, 7) if processes.index else drawn(5, 2))

    assert in_threads(2, work) == [7, 7]
    assert longest_of_all(ALONE, drawn(4)) == 4

    def fails(processes: Processes) -> BaseException | None:
        error = RuntimeError("the server is gone")
        with pytest.raises(StepNotDone, match=r"^process 1: the server is gone$") as raised:
            longest_of_all(processes, error if processes.index else drawn(3))
        return raised.value.__cause__

    ours, theirs = in_threads(2, fails)
    assert ours is None
    assert isinstance(theirs, RuntimeError)


def test_batches_are_padded_to_what_the_largest_prompt_of_any_process_needs() -> None:
    small = PaddedSizes(tokens=64, frames=1, patches=36, numbers=12)

    def work(processes: Processes) -> list[PaddedSizes]:
        return common_sizes(
            processes, [replace(small, tokens=128), small] if processes.index else [small, small]
        )

    assert in_threads(2, work) == [[replace(small, tokens=128), small]] * 2


def test_counts_of_the_judge_add_up_and_a_signal_to_one_stops_all() -> None:
    part = JudgeStatistics(
        requests=3,
        busy_s=2.0,
        latency_max_s=1.0,
        errors={"timeout": 1},
        endpoints={"a": JudgeStatistics(judged=2)},
    )

    def work(processes: Processes) -> tuple[JudgeStatistics, bool]:
        mine = replace(part, busy_s=5.0, errors={"timeout": 2, "connection": 1}) if processes.index else part
        return end_of_step(processes, mine, stop=processes.index == 1)

    for judge, stop in in_threads(2, work):
        assert stop
        assert (judge.requests, judge.busy_s, judge.latency_max_s) == (6, 5.0, 1.0)
        assert judge.errors == {"timeout": 3, "connection": 1}
        assert judge.endpoints["a"].judged == 4
    assert end_of_step(ALONE, part, stop=False) == (part, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coordinator": "a:1"}, "not processes and process_id"),
        ({"coordinator": "a:1", "processes": 2, "process_id": 2}, "process_id is 2 of 2"),
        ({"coordinator": "a", "processes": 2, "process_id": 1}, "give HOST:PORT"),
        ({"automatic": True, "processes": 2}, "automatic finds processes out itself"),
        ({"local_devices": (1,)}, r"local_devices is \[1\], .* this run has one: leave it empty"),
        ({"peer_timeout_s": 1}, "peer_timeout_s\n.*greater than or equal to 5"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DistributedConfig(**settings)


def test_shares_are_all_of_it_in_order() -> None:
    for count in (1, 2, 3, 7):
        shares = [Processes(index, count).share(20) for index in range(count)]
        assert [item for share in shares for item in share] == list(range(20))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
