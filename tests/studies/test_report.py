"""From result folders to findings, page and JSON; the folders are made up (``made_up``)."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.studies.made_up import SMALL, make_up
from vcap_jax.report.summary import FactCounts
from vcap_jax.studies import findings
from vcap_jax.studies.case_study import choose_scene
from vcap_jax.studies.claims import all_claims
from vcap_jax.studies.collect import by_row, collect
from vcap_jax.studies.estimates import Interval, over_seeds
from vcap_jax.studies.findings import find
from vcap_jax.studies.report import more_seeds, percent, write_report
from vcap_jax.studies.results import LEVEL, SeedResult, heldout_folder
from vcap_jax.studies.tasks import plan
from vcap_jax.studies.verdicts import Outcome, Verdict
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import sample_scene

QUALITY = {
    "e1": 0.96,
    "e2": 0.97,
    "imitation": 0.5,
    "vqa": 0.6,
    "no_reference": 0.6,
    "cut_1": 0.96,
    "cut_2": 0.96,
}
MISSING = "image/e2/2"


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    made = plan(
        quick=False,
        seeds=(0, 1, 2),
        only=["main", "families", "reference_size"],
        modalities=["image"],
        overrides=SMALL,
    )
    make_up(made, out, QUALITY, skip={MISSING})
    return made, out


def test_results_are_those_of_the_folders(studied):
    made, out = studied
    rows = by_row(made, collect(made, out))["image"]
    assert sorted(rows["e1"]) == [0, 1, 2]
    assert sorted(rows["e2"]) == sorted(rows["references_e2"]) == [0, 1]
    counts = rows["e1"][0].counts
    assert len(counts.facts) == 12
    assert counts.correct.sum() / counts.facts.sum() == pytest.approx(0.96, abs=0.06)
    assert rows["base"][0].counts.correct.sum() < 0.7 * counts.correct.sum()
    assert 0 < rows["e1"][0].reference_size < 0.7 * counts.facts.sum() / counts.captions.sum()
    assert rows["judge"] is not rows["e1"]


@pytest.mark.slow
def test_a_scene_of_which_a_reference_says_nothing_is_compared_as_an_empty_caption(tmp_path):
    made = plan(quick=False, seeds=(0, 1, 2), only=["main"], modalities=["image"], overrides=SMALL)
    make_up(made, tmp_path, QUALITY)
    for seed in (1, 2):
        path = heldout_folder(made.of("e1", "image")[seed].run(tmp_path)) / "references.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:seed] + lines[seed + 1 :]))
    rows = by_row(made, collect(made, tmp_path))["image"]
    counts = rows["references"][2].counts
    assert len(counts.facts) == 12
    assert (counts.claims[2], counts.correct[2]) == (0, 0)
    assert counts.facts[2] > 0
    assert np.delete(counts.claims, 2).all()
    met = rows["e1"][2].meetings
    assert met.scenes == 12
    assert 2 not in met.scene
    found = {f.claim.name: f for f in find(all_claims(), {"image": rows})}
    assert found["image: weak to strong"].tested[0].difference.seeds == 3


def test_verdicts_follow_what_was_made_up(studied):
    made, out = studied
    found = {f.claim.name: f for f in find(all_claims(), by_row(made, collect(made, out)))}
    assert found["image: witness above imitation"].tested[0].outcome.verdict is Verdict.HOLDS
    assert found["image: VQA is bounded by its questions"].verdict is Verdict.HOLDS
    untold = found["image: e1 to e2"]
    assert untold.verdict is Verdict.CANNOT_TELL
    assert all("2 seeds" in tested.outcome.reason for tested in untold.tested)
    absent = found["video: training pays"]
    assert absent.verdict is Verdict.CANNOT_TELL
    assert "no run of e1, base" in absent.tested[0].outcome.reason


def test_why_nothing_can_be_told_is_told() -> None:
    """Rows without a common seed were said to be too short."""
    claim = next(c for c in all_claims() if c.name == "image: VQA is bounded by its questions")
    counts = FactCounts(np.full(8, 20), np.full(8, 10), np.full(8, 8), np.full(8, 1))
    seed = SeedResult(counts=counts, curve=np.full((40, 2), 0.1))
    (found,) = find([claim], {"image": {"e1": {0: seed}, "vqa": {1: seed}}})
    told = found.tested[0]
    assert told.outcome.verdict is Verdict.CANNOT_TELL
    assert (
        told.outcome.reason == f"no seed has a complete run of both {told.test.first} and {told.test.second}"
    )


class Page(HTMLParser):
    """Notes every address that a page would fetch, and whether its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "img", "br", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.slow
def test_the_page_needs_nothing_else_and_tells_what_json_tells(studied):
    made, out = studied
    path = write_report(made, out, command="python launch/reproduce.py --full")
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.addresses
    assert all(a.startswith(("data:", "#")) for a in page.addresses)
    assert "@import" not in text
    assert text.count("<svg") == 3 + 2 + 1  # a forest for each study, two curves for m, one calibration
    told = json.loads(path.with_suffix(".json").read_text())
    assert {c["claim"]["name"] for c in told["claims"]} == {
        c.name for c in all_claims() if c.modality == "image" and c.study in made.studies
    }
    for claim in told["claims"]:
        assert claim["claim"]["name"] in text
        for tested in claim["tested"]:
            if tested["difference"] is not None and tested["difference"]["low"] is not None:
                assert f"{100 * tested['difference']['value']:+.1f}" in text
    assert [case["scene"] for case in told["cases"]]
    assert told["made"]["complete"] == len(made.tasks) - 1


@pytest.mark.parametrize(
    ("more", "captions"), [((), 4), (("evaluation.evaluators=[{use: heldout, captions: 2}]",), 2)]
)
def test_how_many_held_out_captions_there_are_is_told(more, captions, tmp_path):
    made = plan(quick=True, seeds=(0,), overrides=[*SMALL, "rollout.group_size=4", *more])
    path = write_report(made, tmp_path, command="python launch/reproduce.py")
    settings = json.loads(path.with_suffix(".json").read_text())["made"]["settings"]["image"]
    assert settings.endswith(f"held-out scenes with {captions} captions each")


@pytest.mark.slow
def test_claims_about_arms_that_were_not_to_be_run_are_not_counted_as_open(tmp_path):
    quick = plan(quick=True, seeds=(0, 1, 2), overrides=SMALL)
    make_up(quick, tmp_path, QUALITY)
    path = write_report(quick, tmp_path, command="python launch/reproduce.py")
    told = json.loads(path.with_suffix(".json").read_text())
    assert told["left_out"] == [
        "image: self-improvement goes on",
        "image: self-improvement settles",
        "image: VQA does not see inventions",
        "image: VQA is bounded by its questions",
    ]
    names = {c["claim"]["name"] for c in told["claims"]}
    assert "image: witness above imitation" in names
    assert not names & set(told["left_out"])
    for tested in (tested for c in told["claims"] for tested in c["tested"]):
        assert "no run of" not in tested["outcome"]["reason"]
    assert "Not among these runs" in path.read_text()


def test_speed_is_read_from_the_curve():
    def result(coverage):
        counts = None
        return SeedResult(counts=counts, curve=np.stack([coverage, np.zeros(len(coverage))], 1))

    rising = result(np.array([0.2, 0.22, 0.26, 0.31, 0.36, 0.37, 0.37, 0.37, 0.37, 0.37]))
    assert LEVEL == 0.3
    assert rising.steps_to_level == 5  # 0.26, 0.31 and 0.36 are 0.31 on average
    assert rising.early_coverage == pytest.approx(0.32)
    low = result(np.full(5, 0.2))
    assert (low.steps_to_level, low.early_coverage) == (None, None)


def test_the_case_has_both_faults_in_its_reference():
    scenes = {f"s{k}": sample_scene("image", 3, k, "train") for k in range(8)}
    rng = np.random.default_rng(0)
    references = {name: [full_caption(scene, rng)] for name, scene in scenes.items()}
    references["s3"] = [
        "The background is white. At the top left is a large red circle. The background is navy."
    ]
    assert choose_scene(scenes, references) == "s3"


def test_how_many_seeds_would_tell_is_said_where_it_is_known():
    def tested(values, needed=None, verdict=Verdict.CANNOT_TELL):
        return findings.Tested(
            test=all_claims()[0].tests[0],
            outcome=Outcome(verdict=verdict, reason=""),
            difference=None if values is None else over_seeds(values),
            seeds_to_tell=needed,
        )

    assert more_seeds(tested([0.0, 0.1, 0.3], 8)) == "; about 8 seeds would tell"
    assert more_seeds(tested([0.0, 0.1, -0.1])) == "; 50 seeds would not tell either"
    assert more_seeds(tested([0.1])) == ""  # of one seed nothing follows
    assert more_seeds(tested(None)) == ""
    assert more_seeds(tested([0.1, 0.1, 0.1], verdict=Verdict.HOLDS)) == ""


def test_numbers_in_words():
    assert percent(None) == "–"
    found = Interval(value=0.5, low=0.4, high=0.6, by_seed=(0.4, 0.5, 0.6))
    assert percent(found) == "50.0 (40.0 to 60.0)"
    assert percent(found, signed=True) == "+50.0 (+40.0 to +60.0)"
    assert percent(Interval(value=0.5, low=math.nan, high=math.nan, by_seed=(0.5,))) == "50.0"
