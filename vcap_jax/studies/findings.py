"""Claims put to the test on what was collected; the pure middle between results and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vcap_jax.studies.arms import ACCOMPANY
from vcap_jax.studies.claims import FORMULA, Claim, Test, all_claims
from vcap_jax.studies.collect import Results, in_common
from vcap_jax.studies.estimates import Interval, Measure, Ratio, difference, level, over_seeds, shares
from vcap_jax.studies.results import SeedResult
from vcap_jax.studies.tasks import Plan
from vcap_jax.studies.verdicts import Outcome, Verdict, judge, seeds_to_tell, together
from vcap_jax.world.scenes import Modality

_BEST: Mapping[str, float] = {"coverage": 1.0, "false_claims": 0.0, "f1": 1.0, "early_coverage": 1.0}


@dataclass(frozen=True, kw_only=True)
class Tested:
    """One test with its numbers; the intervals are None where runs are missing.

    seeds_to_tell: of a test that nobody can tell, see there.
    """

    test: Test
    outcome: Outcome
    first: Interval | None = None
    second: Interval | None = None
    difference: Interval | None = None
    seeds_to_tell: int | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim, its tests and the verdict."""

    claim: Claim
    tested: tuple[Tested, ...]
    verdict: Verdict


def find(claims: Sequence[Claim], results: Results) -> list[Finding]:
    """Findings of all claims; those whose runs are missing cannot be told."""
    findings = []
    for claim in claims:
        tested = tuple(_test(test, claim.modality, results) for test in claim.tests)
        verdict = together([one.outcome for one in tested])
        findings.append(Finding(claim=claim, tested=tested, verdict=verdict))
    return findings


def asked_claims(plan: Plan) -> list[Claim]:
    """The claims of the plan's studies, in the order of the report."""
    return [claim for claim in all_claims() if claim.modality in plan.studies.get(claim.study, {})]


def planned(claim: Claim, plan: Plan) -> bool:
    """Whether the plan has every row that the claim speaks of: with --quick a study has not all its arms."""
    arms = {arm for by_modality in plan.studies.values() for arm in by_modality.get(claim.modality, ())}
    return arms.issuperset(arms_of(claim))


def arms_of(claim: Claim) -> tuple[str, ...]:
    """The arms that a claim's tests speak of, or whose runs its rows come with; each once."""
    rows = [row for test in claim.tests for row in (test.first, test.second) if row != FORMULA]
    return tuple(dict.fromkeys(ACCOMPANY[row][0] if row in ACCOMPANY else row for row in rows))


def row_level(seeds: Mapping[int, SeedResult], measure: Measure) -> Interval:
    """A measure of a row of a table."""
    return level([shares(result.counts, measure) for result in seeds.values()])


def _test(test: Test, modality: Modality, results: Results) -> Tested:
    rows = results.get(modality, {})
    missing = [name for name in (test.first, test.second) if name != FORMULA and not rows.get(name)]
    apart = not missing and test.second != FORMULA and not in_common(rows[test.first], rows[test.second])[0]
    numbers = None if missing or apart else _numbers(test, rows)
    if numbers is None:
        reason = f"the runs are too short for {test.quantity}"
        if missing:
            reason = f"no run of {', '.join(dict.fromkeys(missing))} is complete"
        elif apart:
            reason = f"no seed has a complete run of both {test.first} and {test.second}"
        return Tested(test=test, outcome=Outcome(Verdict.CANNOT_TELL, reason))
    first, second, gap = numbers
    best = _BEST.get(test.quantity)
    outcome = judge(test.kind, gap, first, second, margin=test.margin, best=best)
    needed = None
    if outcome.verdict is Verdict.CANNOT_TELL:
        needed = seeds_to_tell(test.kind, gap, first, second, margin=test.margin, best=best)
    return Tested(
        test=test, outcome=outcome, first=first, second=second, difference=gap, seeds_to_tell=needed
    )


def _numbers(
    test: Test, rows: Mapping[str, Mapping[int, SeedResult]]
) -> tuple[Interval, Interval, Interval] | None:
    """first, second and first - second, over the seeds that both have, at least one; None where a quantity is not
    there."""
    if test.second == FORMULA:
        results = list(rows[test.first].values())
        pairs = [_rates(result, test.quantity) for result in results]
        if any(pair is None for pair in pairs):
            return None
        measured, predicted = zip(*(pair for pair in pairs if pair is not None), strict=True)
        return level(measured), level(predicted), difference(measured, predicted)
    first, second = in_common(rows[test.first], rows[test.second])
    if test.quantity == "early_coverage":
        a, b = ([result.early_coverage for result in arm] for arm in (first, second))
        if any(value is None for value in (*a, *b)):
            return None
        x, y = ([float(value) for value in arm if value is not None] for arm in (a, b))
        return over_seeds(x), over_seeds(y), over_seeds([p - q for p, q in zip(x, y, strict=True)])
    assert test.quantity in ("coverage", "false_claims", "f1")
    one, other = ([shares(result.counts, test.quantity) for result in arm] for arm in (first, second))
    return level(one), level(other), difference(one, other)


def _rates(result: SeedResult, quantity: str) -> tuple[Ratio, Ratio] | None:
    """Measured and predicted pass rates of one run's held-out captions."""
    meetings = result.meetings
    if meetings is None or not len(meetings.scene):
        return None
    if quantity == "recall_rate":
        return meetings.by_scene(meetings.covered), meetings.by_scene(meetings.recall)
    return meetings.by_scene(meetings.clear), meetings.by_scene(meetings.collision_free())
