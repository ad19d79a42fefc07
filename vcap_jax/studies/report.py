"""The report: one HTML page without any other file, and the same figures as JSON."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import jinja2

from vcap_jax.evals.config import HELDOUT
from vcap_jax.report.pages import page_templates, write_page
from vcap_jax.report.progress import duration
from vcap_jax.report.summary import write_summary
from vcap_jax.studies.arms import label
from vcap_jax.studies.case_study import Case, show_case
from vcap_jax.studies.claims import FORMULA
from vcap_jax.studies.collect import by_row, collect
from vcap_jax.studies.estimates import MEASURES, Interval
from vcap_jax.studies.findings import Finding, Tested, asked_claims, find, planned
from vcap_jax.studies.results import EARLY_STEPS, LEVEL, WINDOW, Known, identity, write_results
from vcap_jax.studies.tables import Section, study_sections, theory_section
from vcap_jax.studies.tasks import CANDIDATES, Plan, Task
from vcap_jax.studies.verdicts import MOST_SEEDS, Verdict
from vcap_jax.world.scenes import Modality
from vcap_jax.world.splits import prepare_embedded_data

QUANTITIES: Mapping[str, str] = {
    **{name: text.split(",")[0] for name, text in MEASURES.items()},
    "f1": "F1",
    "early_coverage": f"mean coverage over the first {EARLY_STEPS} steps",
    "recall_rate": "share that covers the reference",
    "collision_free_rate": "share whose errors miss the reference",
}
_SIGNS = {"more": ">", "less": "<", "same": "≈", "apart": "≫"}


@dataclass(frozen=True, kw_only=True)
class Made:
    """How the runs were made. machines, software: of all runs; seconds: by task; complete, planned: runs.

    side_by_side: seconds of all runs as they were made, several at a time.
    """

    command: str
    machines: tuple[str, ...]
    software: tuple[str, ...]
    seeds: tuple[int, ...]
    seconds: Mapping[str, float]
    side_by_side: float
    complete: int
    planned: int
    settings: Mapping[Modality, str]

    @property
    def total(self) -> float:
        """Seconds of all runs, as if one after the other."""
        return sum(self.seconds.values())


def write_report(
    plan: Plan,
    out: Path,
    *,
    command: str,
    known: Known = MappingProxyType({}),
    unused: Plan | None = None,
) -> Path:
    """Writes OUT/report.html and OUT/report.json from the runs that are complete, and what is left of them to
    OUT/results.jsonl; the path of the page.

    known: results of runs that were made elsewhere. unused: the third look's plan (``settle.asking_anew``); its claims
    are told by its seeds alone, which are in no table.
    """
    done = collect(plan, out, known)
    results = by_row(plan, done)
    asked = asked_claims(plan)
    findings = find([claim for claim in asked if planned(claim, plan)], results)
    anew: Mapping[str, Finding] = {}
    if unused is not None:
        of_unused = collect(unused, out, known)
        done = {**done, **of_unused}
        again = [claim for claim in asked if claim.name in unused.settled]
        anew = {finding.claim.name: finding for finding in find(again, by_row(unused, of_unused))}
    findings = [anew.get(finding.claim.name, finding) for finding in findings]
    write_results(out / "results.jsonl", done)
    left_out = [claim.name for claim in asked if not planned(claim, plan)]
    sections = study_sections(results, plan.studies)
    theory = [section for m in results if (section := theory_section(results, m)) is not None]
    cases = [case for m in results if (case := _case(plan, done, out, m)) is not None]
    tasks = [task for one in (plan, unused) if one is not None for task in one.tasks.values()]
    made = _made(plan, tasks, done, command)
    path = out / "report.html"
    write_page(
        path,
        _templates(),
        "reproduction.html",
        findings=findings,
        left_out=left_out,
        counts=_counted(finding.verdict for finding in findings if finding.claim.source == "paper"),
        parts=_counted(tested.outcome.verdict for finding in findings for tested in finding.tested),
        sections=sections,
        theory=theory,
        cases=cases,
        made=made,
        settled=plan.settled,
        anew=anew,
    )
    looks = {"settled": plan.settled, "asked_anew": {} if unused is None else unused.settled}
    data = report_data(findings, [*sections, *theory], cases, made) | looks
    write_summary(path.with_suffix(".json"), data | {"left_out": left_out})
    return path


def _counted(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How often each verdict was given."""
    found = Counter(verdicts)
    return {verdict.value: found[verdict] for verdict in Verdict}


def report_data(
    findings: list[Finding], sections: list[Section], cases: list[Case], made: Made
) -> dict[str, object]:
    """Everything in the report but its pictures."""
    return {
        "claims": findings,
        "tables": [
            {name: part for name, part in vars(section).items() if name != "figures"} for section in sections
        ],
        "cases": [{"modality": c.modality, "scene": c.scene, "captions": c.captions} for c in cases],
        "made": vars(made) | {"total_seconds": made.total},
    }


def _case(plan: Plan, done: Known, out: Path, modality: Modality) -> Case | None:
    """Of the first seed, once its e1 and e2 are complete."""
    task = plan.of("e2", modality).get(plan.seeds[0])
    result = None if task is None else done.get(identity(task))
    if task is None or result is None or result.case is None:
        return None
    world = prepare_embedded_data(
        out / "worlds" / task.world / "data", modality, plan.configs[task.key].world
    )
    return show_case(result.case, modality, world)


def _made(plan: Plan, tasks: Sequence[Task], done: Known, command: str) -> Made:
    results = {task.key: done[identity(task)] for task in tasks if identity(task) in done}
    taken = {key: result.seconds for key, result in results.items() if result.seconds is not None}
    settings = {}
    for task in plan.tasks.values():
        config = plan.configs[task.key]
        told = [
            e.captions for e in config.evaluation.evaluators if e.use == HELDOUT and e.captions is not None
        ]
        settings[task.modality] = (
            f"{config.max_steps} steps of {config.grpo.groups_per_step} groups of {config.rollout.group_size} "
            f"captions, {config.world.train_scenes} training scenes, {config.world.heldout_scenes} held-out scenes "
            f"with {told[0] if told else config.rollout.group_size} captions each"
        )
    return Made(
        command=command,
        machines=tuple(sorted({result.machine for result in results.values()})),
        software=tuple(sorted({result.software for result in results.values()})),
        seeds=plan.seeds,
        seconds=taken,
        side_by_side=sum(seconds / results[key].workers for key, seconds in taken.items()),
        complete=len(results),
        planned=len(tasks),
        settings=settings,
    )


def percent(interval: Interval | None, *, signed: bool = False) -> str:
    """An interval in per cent, "51.2 (49.0 to 53.4)"; a dash where there is none."""
    if interval is None or math.isnan(interval.value):
        return "–"
    sign = "+" if signed else ""
    text = f"{100 * interval.value:{sign}.1f}"
    if math.isnan(interval.low):
        return text
    return f"{text} ({100 * interval.low:{sign}.1f} to {100 * interval.high:{sign}.1f})"


def cell(interval: Interval | None, heading: str) -> str:
    """As ``percent`` where the heading is a share, else a plain number."""
    if heading in ("N", "m", "c", "n - c", "facts in a reference, m", "steps to 30%"):
        if interval is None:
            return "–"
        text = f"{interval.value:.1f}"
        return text if math.isnan(interval.low) else f"{text} ({interval.low:.1f} to {interval.high:.1f})"
    return percent(interval)


def test_words(tested: Tested) -> str:
    """The test itself: "VCap e1 > base, facts covered"."""
    test = tested.test
    second = "the formula" if test.second == FORMULA else label(test.second)
    return f"{label(test.first)} {_SIGNS[test.kind]} {second}, {QUANTITIES[test.quantity]}"


def more_seeds(tested: Tested) -> str:
    """How many seeds would tell what these cannot, "; about 8 seeds would tell"; nothing where that is not known."""
    if tested.seeds_to_tell is not None:
        return f"; about {tested.seeds_to_tell} seeds would tell"
    open_still = tested.outcome.verdict is Verdict.CANNOT_TELL
    # Of one seed there is no spread to tell from.
    known = tested.difference is not None and tested.difference.seeds > 1
    return f"; {MOST_SEEDS} seeds would not tell either" if open_still and known else ""


def seen_with(finding: Finding) -> int:
    """Seeds that a claim is told by: those that the rows of each of its tests have in common."""
    return min((one.difference.seeds for one in finding.tested if one.difference is not None), default=0)


@functools.cache
def _templates() -> jinja2.Environment:
    environment = page_templates("vcap_jax.studies")
    environment.filters.update(
        percent=percent,
        cell=cell,
        duration=duration,
        test_words=test_words,
        more_seeds=more_seeds,
        seen_with=seen_with,
    )
    environment.globals.update(
        measures=MEASURES,
        early=EARLY_STEPS,
        level=LEVEL,
        window=WINDOW,
        candidates=CANDIDATES,
    )
    return environment
