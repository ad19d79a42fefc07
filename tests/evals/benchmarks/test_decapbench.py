"""DeCapBench end to end on two made-up pictures in the public format, with its figures worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evals.benchmarks.by_stage import ByStage, Given, block, endpoint, made
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.evals.benchmarks.decapbench import DeCapBench

ROWS = [
    {
        "image_name": "a.jpg",
        "oracle_caption": "A person's words about a.",
        "oracle_facts": ["cat", "red", "asleep", "sofa"],
    },
    {"image_name": "b.jpg", "oracle_caption": "A person's words about b.", "oracle_facts": ["dog", "runs"]},
]
TRUE = {"cat", "red", "window", "dog", "lovely"}
CAPTIONS = {"a.jpg": "cat red window blue", "b.jpg": "dog lovely"}


@pytest.fixture
def data(tmp_path: Path, paint: Callable[[Path, int], None]) -> Path:
    folder = tmp_path / "decap"
    for number, row in enumerate(ROWS):
        paint(folder / "images" / str(row["image_name"]), 90 * number)
    (folder / "IIW_400_data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def listed(text: str) -> dict[str, str]:
    return {name: fact for name, _, fact in (line.partition(": ") for line in text.splitlines())}


def decompose(prompt: str) -> object:
    words = block(prompt, "caption").split()
    return {"facts": [{"fact": word, "relevance": int(word != "lovely")} for word in words]}


def match(prompt: str) -> object:
    oracle = {fact: name for name, fact in listed(block(prompt, "oracle_facts")).items()}
    return {name: oracle.get(fact, "none") for name, fact in listed(block(prompt, "facts")).items()}


def verify(prompt: str) -> object:
    return {name: str(int(fact in TRUE)) for name, fact in listed(block(prompt, "facts")).items()}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"decompose": decompose, "match": match, "verify": verify})


def f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall)


def test_the_figures_are_those_worked_out_by_hand(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    found = made(DeCapBench, data, endpoint(server)).evaluate(Given(CAPTIONS))
    values = {name: value.value for name, value in found.metrics.items()}
    # a: 3 of 4 right; cat and red are found and the window is extra, of 4 + 1. b: 2 of 2 right; the dog is found and
    # "lovely" is extra, of 2 + 1; without what is not seen 1 of 1, and the dog of 2.
    a, b, relevant_b = (3 / 4, 3 / 5), (1.0, 2 / 3), (1.0, 1 / 2)
    assert values["precision"] == pytest.approx(100 * (a[0] + b[0]) / 2)
    assert values["recall"] == pytest.approx(100 * (a[1] + b[1]) / 2)
    assert values["dcscore"] == pytest.approx(100 * (f1(*a) + (f1(*b) + f1(*relevant_b)) / 2) / 2)
    assert values["average"] == pytest.approx((values["precision"] + values["recall"]) / 2)
    assert found.items[0].notes == {"Wrong facts": "blue", "Facts not mentioned": "asleep\nsofa"}


def test_each_stage_is_drawn_as_published(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    made(DeCapBench, data, endpoint(server), limit=1).evaluate(Given(CAPTIONS))
    drawn = sorted((stage, body["temperature"]) for stage, _, body in judge.asked)
    assert drawn == [("decompose", 1.0), *[("match", 1.0)] * 3, *[("verify", 0.3)] * 3]
    assert len({body["seed"] for _, _, body in judge.asked}) == 7
    assert [stage for stage, _, body in judge.asked if "image_url" in json.dumps(body)] == ["verify"] * 3


def test_the_three_answers_are_kept_apart(
    server: ScriptedJudge, judge: ByStage, data: Path, tmp_path: Path
) -> None:
    """Matchings that differ are averaged, and a second start finds each of them."""
    seen = []

    def changing(prompt: str) -> object:
        seen.append(prompt)
        return match(prompt) if len(seen) % 3 else dict.fromkeys(listed(block(prompt, "facts")), "none")

    judge.answers = {**judge.answers, "match": changing}
    store = tmp_path / "answers.sqlite"
    first = made(DeCapBench, data, endpoint(server), store=store, limit=1).evaluate(Given(CAPTIONS))
    # Without matches all three right facts are extra: 3 of 4 + 3.
    assert first.items[0].values["recall"] == pytest.approx((3 / 5 + 3 / 5 + 3 / 7) / 3)
    again = made(DeCapBench, data, endpoint(server), store=store, limit=1).evaluate(Given(CAPTIONS))
    assert again == first
    assert len(judge.asked) == 7


def test_a_caption_of_which_nothing_is_seen(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    captions = {"a.jpg": CAPTIONS["a.jpg"], "b.jpg": "lovely"}
    strict = made(DeCapBench, data, endpoint(server)).evaluate(Given(captions))
    official = made(DeCapBench, data, endpoint(server), mode="official").evaluate(Given(captions))
    assert strict.items[1].values["f1_relevant"] == 0
    assert (strict.failed, official.failed) == (0, 1)
    assert official.metrics["precision"].value == pytest.approx(75)


def test_a_stage_that_fails_makes_no_score(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    judge.answers = {**judge.answers, "verify": lambda prompt: {"P1": "maybe"}}
    found = made(DeCapBench, data, endpoint(server, max_tries=2)).evaluate(Given(CAPTIONS))
    assert found.failed == 2
    assert str(found.items[0].failure).startswith("verify: missing_key")
    assert found.stages["verify"].failure_rate == 1
    assert found.stages["match"].failure_rate == 0
