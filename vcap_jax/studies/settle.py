"""Second and third looks: more seeds for those claims of the paper that the first ones left open.

The rules are fixed before anything is measured. After ``--seeds`` seeds of every study, each claim of the paper that
cannot be told, and whose report says that at most ``--settle`` seeds in all would tell, gets so many. All seeds of an
arm count in every claim about it, so other claims about these arms are judged by more seeds too. With ``--anew`` each
claim that is open still, by the same rule, is asked anew of as many seeds that no look has used: these alone decide it
then, they count for nothing else, and no further look follows.

Looks at 95% are together less sure than one. Where nothing is true, two find something in 8% of the cases instead of
5%, if five seeds come first and eleven are the most; in 11% if it is three and fifty. The third shares no seed with
them: it finds something in at most 5% of the cases that they left open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from vcap_jax.studies.collect import by_row
from vcap_jax.studies.findings import Finding, arms_of, asked_claims, find, planned
from vcap_jax.studies.results import Known
from vcap_jax.studies.tasks import Plan, more_of
from vcap_jax.studies.verdicts import Verdict
from vcap_jax.world.scenes import Modality

Arms = dict[tuple[Modality, str], int]


def settling(first: Plan, done: Known, most: int) -> Plan:
    """The plan with the seeds that the second look needs. done: results of all the runs of ``first``; others do
    not count."""
    settled, seeds = _within_reach(first, done, most)
    return dataclasses.replace(more_of(first, seeds), settled=settled)


def asking_anew(second: Plan, done: Known, most: int) -> Plan:
    """A plan of seeds that no look has used, for the third; without a task if there is nothing to ask.

    Arguments as ``settling`` takes them.
    """
    last = max(task.seed for task in second.tasks.values())
    settled, seeds = _within_reach(second, done, most)
    unused = dataclasses.replace(second, tasks={}, configs={}, seeds=(last,))
    beyond = {arm: last + 1 + count for arm, count in seeds.items()}
    return dataclasses.replace(more_of(unused, beyond), settled=settled)


def _within_reach(plan: Plan, done: Known, most: int) -> tuple[Mapping[str, int], Arms]:
    """The open claims that at most so many seeds would tell, with how many; and how many their arms need."""
    seeds: Arms = {}
    settled: dict[str, int] = {}
    asked = [claim for claim in asked_claims(plan) if planned(claim, plan)]
    for finding in find(asked, by_row(plan, done)):
        needed = _needed(finding)
        if needed is None or needed > most:
            continue
        settled[finding.claim.name] = needed
        for arm in arms_of(finding.claim):
            of_arm = (finding.claim.modality, arm)
            seeds[of_arm] = max(needed, seeds.get(of_arm, 0))
    return settled, seeds


def _needed(finding: Finding) -> int | None:
    """How many seeds would tell every test that is open; None if the claim is none of the paper's, or told."""
    if finding.claim.source != "paper" or finding.verdict is not Verdict.CANNOT_TELL:
        return None
    needed = [
        tested.seeds_to_tell for tested in finding.tested if tested.outcome.verdict is Verdict.CANNOT_TELL
    ]
    told = [seeds for seeds in needed if seeds is not None]
    return max(told) if len(told) == len(needed) else None
