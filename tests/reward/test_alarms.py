"""Alarms: what is counted, when it is said, and that a resumed run says the same."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from vcap_jax.grpo.advantages import AdvantageConfig, group_advantages
from vcap_jax.reward.alarms import AlarmConfig, AlarmWatch, raised, step_alarms
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import CandidateScore, GroupScores
from vcap_jax.reward.scores import Scores


def scores(correctness: int = 5, completeness: int = 5, third: int = 5, analysis: str = "Fine.") -> Scores:
    return Scores(
        analysis=analysis,
        correctness=correctness,
        completeness=completeness,
        third=third,
        third_key="Text Quality",
    )


def group(*candidates: CandidateScore, full: float | None = 1.0) -> GroupScores:
    return GroupScores(sample_id="x", step=0, candidates=candidates, full_reward=full)


def candidate(value: Scores, local: Scores | None = None) -> CandidateScore:
    verdicts = {"global": value} if local is None else {"global": value, "local": local}
    return CandidateScore(reward=value.correctness / 10, verdicts=verdicts)


FULL = candidate(scores(10, 10, 10))
GOOD = candidate(scores(9, 10, 10))
FAILED = CandidateScore(reward=None, failure=Failure(reason="timeout", detail="late"))


def flat(groups: Sequence[GroupScores]) -> list[bool]:
    """Of those that can be compared, as a run has it from its advantages."""
    told = [
        group_advantages(rewards, np.isfinite(rewards), AdvantageConfig())
        for rewards in (np.array([group.rewards], float) for group in groups)
    ]
    return [bool(one.flat[0]) for one in told if not one.skipped[0]]


def alarms(groups: Sequence[GroupScores], captions: Sequence[Sequence[str]]) -> dict[str, object]:
    return dict(step_alarms(groups, captions, flat(groups)))


def test_saturation_counts_full_rewards_among_the_scored_of_groups_that_know_one() -> None:
    row = alarms([group(FULL, GOOD, FAILED)], [["a", "b", "c"]])
    assert row["alarms/saturated"] == 0.5
    assert alarms([group(FULL, FULL, full=1.1)], [["a", "b"]])["alarms/saturated"] == 0.0
    assert "alarms/saturated" not in alarms([group(FULL, FULL, full=None)], [["a", "b"]])
    shares = sum(share * 1.0 for share in (0.7, 0.2, 0.1))  # as a family may add up what is full
    assert shares < 1.0
    assert alarms([group(CandidateScore(reward=shares), GOOD)], [["a", "b"]])["alarms/saturated"] == 0.5


def test_groups_without_spread_are_told_from_groups_that_cannot_be_compared() -> None:
    groups = [group(FULL, FULL), group(FULL, GOOD), group(FULL, FAILED)]
    assert alarms(groups, [["a", "b"]] * 3)["alarms/no_spread"] == 0.5


def test_rewards_that_differ_by_rounding_alone_are_no_spread() -> None:
    """Two verdicts that earn the same, as the paper's weights sum them up."""
    one, other = (
        CandidateScore(reward=reward) for reward in (0.04 * 6 + 0.01 * 4, 0.05 * 4 + 0.04 * 1 + 0.01 * 4)
    )
    assert one.reward != other.reward
    assert alarms([group(one, other)], [["a", "b"]])["alarms/no_spread"] == 1.0


def test_duplicates_are_counted_inside_groups() -> None:
    row = alarms([group(FULL, GOOD, GOOD, GOOD)] * 2, [["a", "a", "a", "b"], ["a", "b", "c", "d"]])
    assert row["alarms/duplicates"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_groups_of_one_and_the_same_caption_are_told_whatever_their_size(size: int) -> None:
    row = alarms([group(*[GOOD] * size)], [["a"] * size])
    assert row["alarms/duplicates"] == 1.0
    assert "100% of the captions after" in raised(row, AlarmConfig())["duplicates"]
    assert "alarms/duplicates" not in alarms([group(GOOD)], [["a"]])


def test_nothing_scored_leaves_its_shares_out() -> None:
    row = alarms([group(FAILED, FAILED)], [["a", "b"]])
    assert set(row) == {"alarms/duplicates"}


def test_contradictions_are_counted_over_all_passes() -> None:
    strange = scores(10, 5, 5, analysis="The dog is misidentified as a cat.")
    row = alarms([group(candidate(strange, scores()), GOOD)], [["a", "b"]])
    assert row["alarms/mismatch"] == pytest.approx(1 / 3)


def test_a_limit_is_reached_by_its_own_value_and_null_switches_off() -> None:
    config = AlarmConfig(saturated=0.5, duplicates=None)
    found = raised({"alarms/saturated": 0.5, "alarms/duplicates": 1.0, "alarms/mismatch": 0.0}, config)
    assert list(found) == ["saturated"]
    assert "50%" in found["saturated"]
    assert "alarms.saturated" in found["saturated"]


@pytest.mark.parametrize(
    "bad",
    [
        {"saturated": 0},
        {"mismatch": 1.5},
        {"length_ratio": 1.0},
        {"engine_mismatch": 1.0},
        {"every_steps": 0},
        {"baseline_steps": 0},
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"AlarmConfig\n{next(iter(bad))}\n"):
        AlarmConfig(**bad)  # type: ignore[arg-type]


def lengths(config: AlarmConfig, values: list[float]) -> list[tuple[dict[str, object], list[str]]]:
    watch = AlarmWatch(config)
    return [said(watch, k, {"length/mean": value}) for k, value in enumerate(values, 1)]


def said(watch: AlarmWatch, step: int, measured: dict[str, float]) -> tuple[dict[str, object], list[str]]:
    row, lines = watch.step(step, [group(GOOD, FULL)], [["a", "b"]], [False], measured)
    return dict(row), lines


def test_length_is_compared_with_the_first_steps_only() -> None:
    steps = lengths(AlarmConfig(baseline_steps=2, length_ratio=2.0), [10, 30, 20, 39, 40, 400, 20])
    assert [row.get("alarms/length_ratio") for row, _ in steps] == [None, None, 1.0, 1.95, 2.0, 20.0, 1.0]
    assert [len(lines) for _, lines in steps] == [0, 0, 0, 0, 1, 0, 0]
    assert "2.0 times as long" in steps[4][1][0]


def test_an_engine_that_drifts_from_the_trainer_is_told_from_rounding() -> None:
    watch = AlarmWatch(AlarmConfig(baseline_steps=2))
    steps = [
        said(watch, k, {"length/mean": 10, "rollout/mismatch_mean": value})
        for k, value in enumerate([2e-3, 4e-3, 9e-3, 2e-2], 1)
    ]
    assert [row.get("alarms/engine_mismatch") for row, _ in steps] == [
        None,
        None,
        pytest.approx(3),
        pytest.approx(20 / 3),
    ]
    assert [len(lines) for _, lines in steps] == [0, 0, 0, 1]
    assert "takes the new weights" in steps[3][1][0]
    exact = AlarmWatch(AlarmConfig(baseline_steps=1))
    assert [said(exact, k, {"rollout/mismatch_mean": x})[1] for k, x in enumerate([1e-7, 4e-4], 1)] == [
        [],
        [],
    ]


def test_an_engine_that_computes_something_else_from_the_first_step_on_is_told() -> None:
    watch = AlarmWatch(AlarmConfig(baseline_steps=2))
    steps = [said(watch, k, {"rollout/mismatch_mean": 0.3}) for k in (1, 2, 3)]
    assert [row.get("alarms/engine_mismatch") for row, _ in steps] == [None, None, pytest.approx(15)]
    assert [len(lines) for _, lines in steps] == [0, 0, 1]


def test_adapters_that_the_rollout_servers_do_not_hold_are_told_with_the_remedy() -> None:
    watch = AlarmWatch(AlarmConfig())
    steps = [said(watch, 1, {}), said(watch, 2, {"rollout/adapters_kept": 0.28})]
    steps.append(said(watch, 3, {"rollout/adapters_kept": 1.003}))
    assert [row.get("alarms/adapters_lost") for row, _ in steps] == [None, pytest.approx(0.72), 0.0]
    assert [len(lines) for _, lines in steps] == [0, 1, 0]
    assert "72% of what the adapters add" in steps[1][1][0]
    assert "model.dtype=float32" in steps[1][1][0]


def test_captions_that_are_cut_off_are_told_with_what_to_look_at() -> None:
    """Three quarters of a step's captions once ended in noise, at a reward that hardly fell."""
    watch = AlarmWatch(AlarmConfig())
    rows = [watch.step(n, [], [], [], {"length/truncated": share}) for n, share in ((1, 0.1), (2, 0.75))]
    assert [(row["alarms/truncated"], row["alarms/raised"]) for row, _ in rows] == [(0.1, 0), (0.75, 1)]
    assert rows[0][1] == []
    (line,) = rows[1][1]
    assert line.startswith("alarm: 75% of the captions were cut off: see in samples.html")
    assert line.endswith("(alarms.truncated is 0.25)")
    assert AlarmWatch(AlarmConfig(truncated=None)).step(1, [], [], [], {"length/truncated": 1.0})[1] == []


def test_an_alarm_that_stays_is_said_again_after_every_steps() -> None:
    steps = lengths(AlarmConfig(baseline_steps=1, length_ratio=2.0, every_steps=3), [10] + [20] * 8)
    assert [bool(lines) for _, lines in steps] == [False, True, False, False, True, False, False, True, False]
    assert [row["alarms/raised"] for row, _ in steps] == [0] + [1] * 8


def test_a_resumed_run_raises_and_says_what_an_undisturbed_one_does() -> None:
    config = AlarmConfig(baseline_steps=3, length_ratio=2.0, every_steps=4, saturated=0.6)
    groups = [[group(GOOD, FULL)], [group(FULL, FULL)]]
    values = [10.0, 12.0, 11.0, 25.0, 30.0, 20.0, 40.0, 41.0, 9.0, 50.0, 60.0, 61.0]

    def go_on(watch: AlarmWatch, first: int, last: int) -> tuple[list[dict[str, object]], list[list[str]]]:
        rows, said = [], []
        for step in range(first, last):
            now = groups[step % 2]
            row, lines = watch.step(step, now, [["a", "b"]], flat(now), {"length/mean": values[step - 1]})
            rows.append({"step": step, "length/mean": values[step - 1], **row})
            said.append(lines)
        return rows, said

    whole_rows, whole_said = go_on(AlarmWatch(config), 1, len(values) + 1)
    assert any(whole_said)
    for stop in itertools.chain(range(1, len(values) + 1)):
        before, said_before = go_on(AlarmWatch(config), 1, stop)
        after, said_after = go_on(AlarmWatch(config, before), stop, len(values) + 1)
        assert before + after == whole_rows
        assert said_before + said_after == whole_said
