"""What the trainer makes of the judge: its row of metrics, and a clean end where it cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.processes_in_threads import in_threads
from vcap_jax.data.pipeline import GroupBatch
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.records import StepRollout
from vcap_jax.grpo.step_metrics import judge_metrics
from vcap_jax.grpo.trainer import Training
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.reward.errors import FamilyError, JudgeOutage
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import Usage
from vcap_jax.reward.statistics import StatisticsRecorder
from vcap_jax.rollout.slots import SampledGroup
from vcap_jax.run.log import SilentLog
from vcap_jax.system.shutdown import TrainingStopped
from vcap_jax.training.optimizer import TrainState


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def recorded(addresses: tuple[str, ...]) -> StatisticsRecorder:
    clock = Clock()
    recorder = StatisticsRecorder(addresses, clock)
    usage = Usage(prompt_tokens=1000, cached_tokens=900, completion_tokens=50, media_tokens={"image": 600})
    for begin in (0.0, 1.0):  # two overlapping requests to the first: busy for 3 seconds
        clock.now = begin
        recorder.request_begins(addresses[0])
    clock.now = 2.0
    recorder.request(addresses[0], 2.0, None, usage)
    clock.now = 3.0
    recorder.request(addresses[0], 2.0, Failure(reason="timeout", detail=""), None)
    recorder.retry(addresses[0])
    recorder.media(addresses[0], sent=1, named=3)
    clock.now = 10.0
    recorder.request_begins(addresses[-1])
    clock.now = 11.0
    recorder.request(addresses[-1], 1.0, None, usage)
    recorder.judgement(addresses[0], None)
    recorder.judgement(addresses[-1], Failure(reason="no_verdict", detail=""))
    recorder.store_hits(5)
    return recorder


def test_totals_and_a_part_for_each_of_several_endpoints() -> None:
    row = judge_metrics(recorded(("a", "b")).snapshot({"b": 2}, 7.5))
    assert row["judge/requests"] == 3
    assert row["judge/store_hits"] == 5
    assert row["judge/waited_s"] == 7.5
    assert row["judge/rate"] == pytest.approx(3 / 4)
    assert row["judge/cached"] == pytest.approx(0.9)
    assert row["judge/media_named"] == 0.75
    assert (row["judge/errors"], row["judge/failures"], row["judge/outages"]) == (1, 1, 2)
    first = {name.removeprefix("judge/0/"): v for name, v in row.items() if name.startswith("judge/0/")}
    assert (first["requests"], first["retries"], first["errors"], first["failures"]) == (2, 1, 1, 0)
    assert first["latency_mean"] == 2.0
    assert first["rate"] == pytest.approx(2 / 3)
    assert (row["judge/1/requests"], row["judge/1/outages"], row["judge/0/outages"]) == (1, 2, 0)


def test_time_with_requests_under_way_counts_in_the_step_that_it_passes_in() -> None:
    """With rollout.ahead the next step's requests begin before this one's have ended."""
    clock = Clock()
    recorder = StatisticsRecorder(("a", "b"), clock)
    recorder.request_begins("a")
    rates = []
    for _ in range(3):
        before = recorder.snapshot()
        for _ in range(6):
            recorder.request_begins("a")
            clock.now += 0.5
            recorder.request("a", 0.5, None, None)
        row = judge_metrics(recorder.snapshot().since(before))
        rates.append((row["judge/rate"], row["judge/0/rate"], row["judge/1/rate"]))
    assert rates == [(2.0, 2.0, 0.0)] * 3
    recorder.request("a", 9.0, None, None)
    clock.now += 5.0
    assert recorder.snapshot().busy_s == 9.0


def test_a_single_endpoint_has_no_part_of_its_own() -> None:
    row = judge_metrics(recorded(("a",)).snapshot())
    assert row["judge/requests"] == 3
    assert not [name for name in row if name.startswith("judge/0/")]


def test_a_step_without_requests_has_numbers_too() -> None:
    assert all(value == 0 for value in judge_metrics(StatisticsRecorder(("a", "b")).snapshot()).values())


@dataclass
class Checkpoints:
    there: list[int] = field(default_factory=list)
    saved: list[tuple[Any, ...]] = field(default_factory=list)
    waited: int = 0

    def steps(self) -> list[int]:
        return self.there

    def save(self, *what: Any, ahead: Any) -> None:
        assert ahead is None
        self.saved.append(what)

    def wait(self) -> None:
        self.waited += 1


class Data:
    """The samples of steps whose scores nobody gets."""

    skipped_total = 0

    def get_state(self) -> Any:
        return {"place": "before the step"}

    def __next__(self) -> GroupBatch:
        return GroupBatch(examples=(), indices=(), skipped=())


GROUP = SampledGroup(0, np.ones((2, 1), np.int32), np.ones(2, np.int32), np.zeros(2, bool))


def training(
    scored: Callable[..., StepRollout], checkpoints: Checkpoints, step: int, processes: Processes = ALONE
) -> Training:
    """Of which ``step`` is the last."""
    return Training(
        config=GRPOConfig(),
        max_completion_length=1,
        total_steps=step + 1,
        data=Data(),  # type: ignore[arg-type]
        collector=SimpleNamespace(  # type: ignore[arg-type]
            draw=lambda *_: SimpleNamespace(batches=(), groups=[GROUP]),
            judged=lambda draw: draw,
            scored=scored,
            session=SimpleNamespace(statistics=StatisticsRecorder(("judge",)).snapshot),
        ),
        update=SimpleNamespace(fixed=lambda *_, **__: None),  # type: ignore[arg-type]  # no update is done
        own_params=lambda params: params,
        give_up=lambda params: None,
        checkpoints=checkpoints,  # type: ignore[arg-type]
        save_every=1,
        log=SilentLog(),
        processes=processes,
    )


def stopped(checkpoints: Checkpoints, step: int) -> str:
    def scored(*_: Any) -> StepRollout:
        raise JudgeOutage("the judge did not answer for 600 s")

    with pytest.raises(TrainingStopped) as ended:
        training(scored, checkpoints, step).run(TrainState(np.int32(step), {}, ()))
    assert checkpoints.waited == 1
    return str(ended.value)


def test_an_outage_saves_what_was_done_before_the_step_and_says_how_to_go_on() -> None:
    checkpoints = Checkpoints(there=[2])
    message = stopped(checkpoints, 3)
    (saved,) = checkpoints.saved
    assert (saved[0], saved[2]) == (3, {"place": "before the step"})
    assert "step 4: the judge did not answer for 600 s" in message
    assert "--resume" in message


@pytest.mark.parametrize("step", [0, 2])
def test_nothing_is_saved_twice_or_before_the_first_step(step: int) -> None:
    checkpoints = Checkpoints(there=[2])
    stopped(checkpoints, step)
    assert checkpoints.saved == []


def test_a_reward_family_that_fails_in_one_process_stops_all_with_the_same_saved() -> None:
    def work(processes: Processes) -> tuple[str, list[Any]]:
        def scored(*_: Any) -> StepRollout:
            if processes.index == 1:
                raise FamilyError("reward.family 'own:Mine' failed on sample 'a': KeyError: 'x'")
            return StepRollout(batches=(), records=(), rollout_seconds=1.0, judge_seconds=1.0)

        checkpoints = Checkpoints()
        with pytest.raises(TrainingStopped) as ended:
            training(scored, checkpoints, 3, processes).run(TrainState(np.int32(3), {}, ()))
        return str(ended.value), [saved[0] for saved in checkpoints.saved]

    for message, saved in in_threads(2, work):
        assert message.startswith(
            "step 4: process 1: reward.family 'own:Mine' failed on sample 'a': KeyError"
        )
        assert saved == [3]
