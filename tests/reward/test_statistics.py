"""The judge's counts and times, step by step."""

import pytest

from vcap_jax.reward.statistics import JudgeStatistics


def test_statistics_of_a_step_are_differences() -> None:
    earlier = JudgeStatistics(requests=3, failures={"timeout": 1}, latency_sum_s=1.0, prompt_tokens=5)
    later = JudgeStatistics(
        requests=5,
        failures={"timeout": 1, "cut_off": 2},
        latency_sum_s=1.5,
        latency_max_s=0.9,
        prompt_tokens=9,
    )
    step = later.since(earlier)
    assert (step.requests, step.failures, step.prompt_tokens) == (2, {"cut_off": 2}, 4)
    assert step.latency_sum_s == pytest.approx(0.5)
