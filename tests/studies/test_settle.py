"""Second and third looks: who gets more seeds, how many, and that nothing else moves. Results are made up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.studies.made_up import SMALL, make_up
from vcap_jax.commands import reproduce
from vcap_jax.commands.reproduce import main
from vcap_jax.studies import schedule, settle
from vcap_jax.studies.collect import by_row, collect
from vcap_jax.studies.estimates import Interval, over_seeds
from vcap_jax.studies.findings import Finding, arms_of, asked_claims, find
from vcap_jax.studies.report import write_report
from vcap_jax.studies.results import read_results
from vcap_jax.studies.settle import asking_anew, settling
from vcap_jax.studies.tasks import Plan, plan
from vcap_jax.studies.verdicts import MOST_SEEDS, Outcome, Verdict, judge, seeds_to_tell

QUALITY = {"e1": 0.9, "imitation": 0.5, "vqa": 0.86, "no_reference": 0.87}
OVERRIDES = [*SMALL, "world.heldout_scenes=6", "max_steps=7"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A plan of three seeds, the folder of its results, and these."""
    out = tmp_path_factory.mktemp("out")
    made = plan(quick=False, seeds=(0, 1, 2), only=["families"], modalities=["image"], overrides=OVERRIDES)
    make_up(made, out, QUALITY)
    return made, out, collect(made, out)


@pytest.fixture(scope="module")
def findings(first):
    made, _, done = first
    return {f.claim.name: f for f in find(asked_claims(made), by_row(made, done))}


def test_an_open_claim_of_the_paper_gets_as_many_seeds_as_would_tell_it(first, findings):
    made, _, done = first
    name = "image: VQA does not see inventions"
    assert findings[name].verdict is Verdict.CANNOT_TELL
    needed = findings[name].tested[0].seeds_to_tell
    assert 3 < needed < MOST_SEEDS
    more = settling(made, done, needed)
    assert more.settled[name] == needed
    assert set(more.of("vqa", "image")) == set(more.of("e1", "image")) == set(range(needed))
    # Made as the first ones were, the plan's own words included.
    assert more.configs["image/vqa/3"].max_steps == 7
    assert more.tasks["image/vqa/3"].after == ("image/e1/3",)
    assert {key: more.tasks[key] for key in made.tasks} == made.tasks
    assert more.seeds == made.seeds
    assert name not in settling(made, done, needed - 1).settled


def test_told_claims_those_beyond_reach_and_our_own_get_none(first, findings):
    made, _, done = first
    more = settling(made, done, MOST_SEEDS)
    for name, finding in findings.items():
        untold = [t for t in finding.tested if t.outcome.verdict is Verdict.CANNOT_TELL]
        reachable = finding.verdict is Verdict.CANNOT_TELL and all(t.seeds_to_tell for t in untold)
        assert (name in more.settled) == (reachable and finding.claim.source == "paper")
    settled = [f.claim for name, f in findings.items() if name in more.settled]
    extended = {task.arm for key, task in more.tasks.items() if key not in made.tasks}
    assert extended <= {arm for claim in settled for arm in arms_of(claim)} | {"e1", "no_reference"}


def test_a_claim_needs_what_the_last_of_its_open_parts_needs(first, findings, monkeypatch):
    made, _, done = first
    name = "image: VQA does not see inventions"
    (part,) = findings[name].tested
    told = replace(part, outcome=Outcome(verdict=Verdict.HOLDS, reason=""), seeds_to_tell=None)

    def needing(*needed: int | None, **of_claim: str) -> Finding:
        tested = (told, *(replace(part, seeds_to_tell=seeds) for seeds in needed))
        return replace(findings[name], claim=replace(findings[name].claim, **of_claim), tested=tested)

    def settled(*found: Finding) -> Plan:
        monkeypatch.setattr(settle, "find", lambda *_: found)
        return settling(made, done, 6)

    assert settled(needing(6, 4)).settled == {name: 6}
    assert not settled(needing(4, None)).settled
    assert not settled(needing(6, 4, source="ours")).settled
    # An arm of two claims gets as many as the one needs that needs the more.
    both = settled(needing(6), needing(4, name="another"))
    assert set(both.of("vqa", "image")) == set(range(6))


def test_results_of_the_second_look_start_no_third(first):
    made, out, done = first
    once = settling(made, done, 6)
    assert len(once.tasks) > len(made.tasks)
    make_up(once, out, QUALITY | {"vqa": 0.2}, skip=set(made.tasks))
    again = settling(made, collect(once, out), 6)
    assert (again.settled, set(again.tasks)) == (once.settled, set(once.tasks))


def test_what_is_open_still_is_asked_anew_of_seeds_that_no_look_has_used(first, findings):
    made, _, done = first
    name = "image: VQA does not see inventions"
    needed = findings[name].tested[0].seeds_to_tell
    anew = asking_anew(made, done, needed)
    assert anew.settled[name] == needed
    assert set(anew.of("vqa", "image")) == set(anew.of("e1", "image")) == set(range(3, 3 + needed))
    assert anew.tasks["image/vqa/4"].after == ("image/e1/4",)
    assert anew.configs["image/vqa/4"].max_steps == 7
    # Seeds of a second look are used too, and what would need more is not asked.
    more = settling(made, done, needed)
    assert min(t.seed for t in asking_anew(more, done, needed).tasks.values()) == needed
    nothing = asking_anew(made, done, needed - 1)
    assert name not in nothing.settled
    assert "image/vqa/3" not in nothing.tasks


@pytest.mark.slow
def test_a_third_look_is_told_by_its_own_seeds_and_moves_nothing_else(tmp_path, first, findings):
    made, out, done = first
    name = "image: VQA does not see inventions"
    needed = findings[name].tested[0].seeds_to_tell
    anew = asking_anew(made, done, needed)
    make_up(anew, out, QUALITY | {"vqa": 0.2})
    known = collect(anew, out)

    def report(unused: Plan | None) -> dict:
        write_report(made, tmp_path, command="", known={**done, **known}, unused=unused)
        return json.loads((tmp_path / "report.json").read_text())

    before, after = report(None), report(anew)
    told = {claim["claim"]["name"]: claim for claim in after["claims"]}
    assert len(told[name]["tested"][0]["difference"]["by_seed"]) == needed
    assert told[name]["verdict"] == "holds"
    same = [old == told[old["claim"]["name"]] for old in before["claims"]]
    assert same.count(False) == len(anew.settled)
    assert before["tables"] == after["tables"]
    assert after["asked_anew"] == anew.settled
    assert before["asked_anew"] == {}
    assert after["made"]["planned"] == len(made.tasks) + len(anew.tasks)
    kept, others = read_results([tmp_path / "results.jsonl"])
    assert len(kept) == len(made.tasks) + len(anew.tasks)
    assert not others
    assert f"asked anew, {needed} seeds" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_report_of_a_third_look_under_way_has_everything(tmp_path, first, monkeypatch):
    made, out, _ = first
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    seen = []

    def work(wanted: Plan, out: Path, *, on_done: Callable[[object], None], **_: object) -> schedule.Outcome:
        # Whatever is made up next is told by the report that is due then.
        make_up(wanted, out, QUALITY, skip={key for key, t in wanted.tasks.items() if t.complete(out)})
        on_done(None)
        seen.append(json.loads((out / "report.json").read_text())["made"]["planned"])
        return schedule.Outcome(failed={}, blocked=())

    monkeypatch.setattr(schedule, "work", work)
    monkeypatch.setattr(reproduce, "NowAndThen", lambda: lambda act: act())
    monkeypatch.setattr(settle, "settling", lambda studies, *_: studies)
    command = ["--full", "--only", "families", "--modality", "image", "--seeds", "3", *OVERRIDES]
    main([*command, "--settle", "6", "--anew", "--out", str(tmp_path)])
    assert seen[0] == len(made.tasks) < seen[-1]


def test_a_second_look_at_a_single_seed_is_refused(tmp_path, capsys):
    """How they differ is not known, and so neither how many would tell."""
    with pytest.raises(SystemExit):
        main(["--seeds", "1", "--settle", "6", "--list", "--out", str(tmp_path)])
    assert "--settle 6: how many seeds tell a claim shows from --seeds 2 on" in capsys.readouterr().err


def test_a_third_look_waits_for_the_second(tmp_path, capsys):
    studies = ["--full", "--only", "families", "--modality", "image", "--out", str(tmp_path), *OVERRIDES]
    assert main([*studies, "--anew", "--list"]) == 2
    assert "give --settle SEEDS too" in capsys.readouterr().err
    assert main([*studies, "--settle", "6", "--anew", "--list"]) == 0
    assert "--anew has to wait" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_tells_what_it_looks_at_again(tmp_path, first, capsys):
    made, out, _ = first
    studies = ["--full", "--only", "families", "--modality", "image", "--seeds", "3"]
    command = [*studies, "--settle", "6", *OVERRIDES]
    assert main([*command, "--list", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "--settle has to wait" in told.err
    assert "image/e1/3" not in told.out

    assert main([*command, "--list", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "looked at again with 6 seeds: image: VQA does not see inventions" in told.out
    assert "image/vqa/5" in told.out
    assert not told.err
    assert main([*studies, "--settle", "3", *OVERRIDES, "--list", "--out", str(out)]) == 0
    assert "up to 3 seeds would tell none" in capsys.readouterr().out
    assert main([*command, "--report-only", "--out", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["made"]["planned"] > len(made.tasks)
    page = (out / "report.html").read_text()
    assert "Second look" in page
    assert report["settled"]["image: VQA does not see inventions"] == 6
    assert "looked at again, " in page


@pytest.mark.long
@pytest.mark.parametrize(("seeds", "most", "error"), [(5, 11, 0.08), (3, MOST_SEEDS, 0.11)])
def test_two_looks_find_what_is_not_there_as_often_as_is_said(seeds: int, most: int, error: float) -> None:
    """Two arms without a difference, whose seeds alone vary; the second look as ``settling`` orders it."""
    rng, studies, found = np.random.default_rng(0), 800, 0
    for _ in range(studies):
        one, other = 0.4 + rng.normal(0, 0.05, (2, most))

        def look(count: int, one: np.ndarray = one, other: np.ndarray = other) -> tuple[Interval, ...]:
            return tuple(over_seeds(list(x[:count])) for x in (one - other, one, other))

        intervals = look(seeds)
        if judge("more", *intervals, margin=0.01).verdict is Verdict.CANNOT_TELL:
            needed = seeds_to_tell("more", *intervals, margin=0.01)
            if needed is not None and needed <= most:
                intervals = look(needed)
        found += intervals[0].low > 0 or intervals[0].high < 0
    assert found / studies == pytest.approx(error, abs=3 * (error * (1 - error) / studies) ** 0.5)
