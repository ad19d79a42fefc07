"""The second look: who gets more seeds, how many, and that nothing else moves. Results are made up (``made_up``)."""

from __future__ import annotations

import json

import pytest

from tests.studies.made_up import SMALL, make_up
from vcap_jax.commands.reproduce import main
from vcap_jax.studies.collect import by_row, collect
from vcap_jax.studies.findings import arms_of, asked_claims, find
from vcap_jax.studies.settle import settling
from vcap_jax.studies.tasks import plan
from vcap_jax.studies.verdicts import MOST_SEEDS, Verdict

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
    more = settling(made, done, needed, OVERRIDES)
    assert more.settled[name] == needed
    assert set(more.of("vqa", "image")) == set(more.of("e1", "image")) == set(range(needed))
    # Made as the first ones were, the plan's own words included.
    assert more.configs["image/vqa/3"].max_steps == 7
    assert more.tasks["image/vqa/3"].after == ("image/e1/3",)
    assert {key: more.tasks[key] for key in made.tasks} == made.tasks
    assert more.seeds == made.seeds
    assert name not in settling(made, done, needed - 1, OVERRIDES).settled


def test_told_claims_those_beyond_reach_and_our_own_get_none(first, findings):
    made, _, done = first
    more = settling(made, done, MOST_SEEDS, OVERRIDES)
    for name, finding in findings.items():
        untold = [t for t in finding.tested if t.outcome.verdict is Verdict.CANNOT_TELL]
        reachable = finding.verdict is Verdict.CANNOT_TELL and all(t.seeds_to_tell for t in untold)
        assert (name in more.settled) == (reachable and finding.claim.source == "paper")
    settled = [f.claim for name, f in findings.items() if name in more.settled]
    extended = {task.arm for key, task in more.tasks.items() if key not in made.tasks}
    assert extended <= {arm for claim in settled for arm in arms_of(claim)} | {"e1", "no_reference"}


def test_results_of_the_second_look_start_no_third(first):
    made, out, done = first
    once = settling(made, done, 6, OVERRIDES)
    assert len(once.tasks) > len(made.tasks)
    make_up(once, out, QUALITY | {"vqa": 0.2}, skip=set(made.tasks))
    again = settling(made, collect(once, out), 6, OVERRIDES)
    assert (again.settled, set(again.tasks)) == (once.settled, set(once.tasks))


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
