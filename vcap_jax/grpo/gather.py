"""What the processes of a run tell each other in a step, and how it is written down for the way.

Texts, scores and counts travel as JSON. Numbers come through exactly, so every process computes the same advantages and
totals as a single one would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import pydantic

from vcap_jax.grpo.records import GroupResult, StepOutcome, StepRollout
from vcap_jax.parallel.processes import Processes
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.rollout.slots import SampledGroup

T = TypeVar("T")


class StepNotDone(RuntimeError):
    """Some process could not collect its groups; the message says which, and why."""


_RESULTS = pydantic.TypeAdapter(list[GroupResult])  # of a GroupRecord, what every process gets to know
_STATISTICS = pydantic.TypeAdapter(JudgeStatistics)


def longest_of_all(processes: Processes, drawn: Sequence[SampledGroup] | Exception) -> int:
    """Tokens of the longest caption that any process has drawn. drawn: this process's groups, or why there are none.

    Raises StepNotDone in all processes if one has none.
    """
    told = _told_by_all(
        processes,
        "captions",
        drawn,
        lambda groups: {"longest": max(int(group.lengths.max()) for group in groups)},
    )
    return max(int(share["longest"]) for share in told)


def outcome_of_all(processes: Processes, rollout: StepRollout | Exception) -> StepOutcome:
    """The step as all processes have done it. rollout: this process's part, or why there is none.

    Raises StepNotDone in all processes if one has none.
    """

    def share(rollout: StepRollout) -> dict[str, Any]:
        seconds = {"seconds": [rollout.rollout_seconds, rollout.judge_seconds]}
        if processes.count == 1:
            return seconds
        return {**seconds, "results": _RESULTS.dump_python(list(rollout.records), mode="json")}

    told = _told_by_all(processes, "captions and scores", rollout, share)
    results: Iterable[GroupResult]
    if processes.count == 1:
        assert isinstance(rollout, StepRollout)
        results = rollout.records
    else:
        results = [result for share in told for result in _RESULTS.validate_python(share["results"])]
    return StepOutcome(
        results=tuple(sorted(results, key=lambda result: result.index)),
        rollout_seconds=max(share["seconds"][0] for share in told),
        judge_seconds=max(share["seconds"][1] for share in told),
    )


def _told_by_all(
    processes: Processes, what: str, mine: T | Exception, share: Callable[[T], dict[str, Any]]
) -> list[dict[str, Any]]:
    """What every process shares of its part of a step. Raises StepNotDone if one has no part, because of ``mine`` if it
    is this one."""
    failed = mine if isinstance(mine, Exception) else None
    told = processes.all_gather_objects(
        what, {"problem": str(mine)} if isinstance(mine, Exception) else share(mine)
    )
    problems = [(peer, share["problem"]) for peer, share in enumerate(told) if "problem" in share]
    if problems:
        named = processes.count > 1
        listed = "; ".join(f"process {peer}: {why}" if named else why for peer, why in problems)
        raise StepNotDone(listed) from failed
    return told


def end_of_step(processes: Processes, judge: JudgeStatistics, stop: bool) -> tuple[JudgeStatistics, bool]:
    """What the judges had to do for all processes, and whether any process has been asked to stop.

    Counts are sums; the time with requests under way is the busiest process's.
    """
    if processes.count == 1:
        return judge, stop
    told = processes.all_gather_objects("end of step", [_STATISTICS.dump_python(judge, mode="json"), stop])
    return _sum([_STATISTICS.validate_python(share) for share, _ in told]), any(stop for _, stop in told)


def _sum(parts: list[JudgeStatistics]) -> JudgeStatistics:
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, Any] = {}
    for field in fields(JudgeStatistics):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "endpoints":
            names = dict.fromkeys(name for value in values for name in value)
            joined[field.name] = {name: _sum([v[name] for v in values if name in v]) for name in names}
        elif isinstance(values[0], int | float):
            joined[field.name] = max(values) if field.name in ("busy_s", "latency_max_s") else sum(values)
        else:
            reasons = dict.fromkeys(reason for value in values for reason in value)
            joined[field.name] = {reason: sum(v.get(reason, 0) for v in values) for reason in reasons}
    return JudgeStatistics(**joined)
