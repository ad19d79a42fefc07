"""A second look: more seeds for those claims of the paper that the first ones left open.

The rule is fixed before anything is measured. After ``--seeds`` seeds of every study, each claim of the paper that
cannot be told, and whose report says that at most ``--settle`` seeds in all would tell, gets so many; nothing else
does, and what then comes out starts no third look. Two looks at 95% are a little less sure than one: where nothing were
true, one of them would find something in up to 8% of the cases instead of 5% (Armitage, McPherson and Rowe, 1969).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vcap_jax.studies.collect import by_row
from vcap_jax.studies.findings import Finding, arms_of, asked_claims, find, planned
from vcap_jax.studies.results import Known
from vcap_jax.studies.tasks import Plan, more_of
from vcap_jax.studies.verdicts import Verdict
from vcap_jax.world.scenes import Modality


def settling(first: Plan, done: Known, most: int, overrides: Sequence[str] = ()) -> Plan:
    """The plan with the seeds that the second look needs.

    done: results of all the runs of ``first``; those of others do not count. overrides: those that ``first`` was made
    with.
    """
    asked = [claim for claim in asked_claims(first) if planned(claim, first)]
    seeds: dict[tuple[Modality, str], int] = {}
    settled: dict[str, int] = {}
    for finding in find(asked, by_row(first, done)):
        needed = _needed(finding)
        if needed is None or needed > most:
            continue
        settled[finding.claim.name] = needed
        for arm in arms_of(finding.claim):
            of_arm = (finding.claim.modality, arm)
            seeds[of_arm] = max(needed, seeds.get(of_arm, 0))
    return dataclasses.replace(more_of(first, seeds, overrides), settled=settled)


def _needed(finding: Finding) -> int | None:
    """How many seeds would tell every test that is open; None if the claim is none of the paper's, or told."""
    if finding.claim.source != "paper" or finding.verdict is not Verdict.CANNOT_TELL:
        return None
    needed = [
        tested.seeds_to_tell for tested in finding.tested if tested.outcome.verdict is Verdict.CANNOT_TELL
    ]
    told = [seeds for seeds in needed if seeds is not None]
    return max(told) if len(told) == len(needed) else None
