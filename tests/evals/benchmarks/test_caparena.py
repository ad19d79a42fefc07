"""CapArena-Auto end to end on made-up battles in the public format, with its scores worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evals.benchmarks.by_stage import ByStage, Given, block, endpoint, made
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.evals.benchmarks.caparena import BASELINES, JUDGMENT, CapArenaAuto, first_place, points_of
from vcap_jax.evals.benchmarks.files import DataMissing

BATTLES = {
    # file -> baseline, its caption, ours
    "a.jpg": ("gpt", "the better one", "short"),
    "b.jpg": ("gpt", "equal words", "equal words"),
    "c.jpg": ("cog", "worse", "here is the better one"),
    "d.jpg": ("cpm", "first place counts", "first place counts, too"),
}


@pytest.fixture
def data(tmp_path: Path, paint: Callable[[Path, int], None]) -> Path:
    folder = tmp_path / "caparena"
    entries = {}
    for number, (name, (baseline, opponent, _)) in enumerate(BATTLES.items()):
        paint(folder / "all_images" / name, 60 * number)
        captions = {"human": f"a person's words of {name}", BASELINES[baseline]: opponent}
        entries[name] = {"captions": captions, "ref_model": BASELINES[baseline]}
    (folder / "caparena_auto_600.json").write_text(json.dumps(entries))
    return folder


def compare(prompt: str) -> object:
    first, second = block(prompt, "first"), block(prompt, "second")
    if "place counts" in first:
        said = "**Caption 1 is better.**"  # a judge that likes the first place
    elif first == second:
        said = "Tie"
    else:
        said = "caption 1" if "better" in first else "2"
    return {"Reason": "so it seems", "Judgment": said}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"compare": compare})


OURS = Given({name: ours for name, (_, _, ours) in BATTLES.items()})


def test_strict_asks_both_orders_and_takes_their_mean(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    found = made(CapArenaAuto, data, endpoint(server)).evaluate(OURS)
    values = {name: value.value for name, value in found.metrics.items()}
    # gpt: a loss and a tie; cog: a win; cpm: the first place wins, so a tie that is not consistent.
    assert values["score/gpt"] == pytest.approx(-50)
    assert values["score/cog"] == pytest.approx(100)
    assert values["score/cpm"] == pytest.approx(0)
    assert values["score"] == pytest.approx(50 / 3)
    assert values["consistent"] == pytest.approx(75)
    assert values["words"] == pytest.approx((1 + 2 + 5 + 4) / 4)
    assert len(judge.asked) == 8
    for _, prompt, body in judge.asked:
        kinds = [part["type"] for part in body["messages"][0]["content"]]  # type: ignore[index]
        assert kinds == ["image_url", "text"]
        assert prompt.index("<reference>") < prompt.index("<first>")
        assert body["temperature"] == 0.1


def test_official_asks_one_order_that_the_sample_decides(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    found = made(CapArenaAuto, data, endpoint(server), mode="official").evaluate(OURS)
    assert len(judge.asked) == 4
    expected = 100 if first_place("d.jpg") else -100
    assert found.metrics["score/cpm"].value == pytest.approx(expected)
    assert found.metrics["score/gpt"].value == pytest.approx(-50)
    assert "consistent" not in found.metrics
    assert {first_place(f"test_{number}.jpg") for number in range(20)} == {True, False}


@pytest.mark.parametrize(
    ("told", "judgment"),
    [
        ("Caption 1", "first"),
        ("**Caption 2 is better.**", "second"),
        ("Caption 2 is slightly better than Caption 1", "second"),
        ("1 is the better caption", "first"),
        ("caption 1 wins", "first"),
        ("Tie", "tie"),
        # What names a caption and does not prefer it.
        ("Caption 1 is worse than Caption 2", None),
        ("Caption 1 is not better", None),
        ("Caption 1 is hardly better", None),
        ("Caption 2 is a tie", None),
        ("Caption 1 is better in detail, Caption 2 in accuracy", None),
    ],
)
def test_judgments(told: str, judgment: str | None) -> None:
    read = JUDGMENT.read({"Reason": "", "Judgment": told})
    assert (read[0] if isinstance(read, tuple) else None) == judgment


def test_a_battle_without_a_judgment_is_no_tie(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    judge.answers = {
        "compare": lambda text: (
            {"Reason": "?", "Judgment": "neither"} if "equal words" in text else compare(text)
        )
    }
    found = made(CapArenaAuto, data, endpoint(server, max_tries=1)).evaluate(OURS)
    assert found.metrics["score/gpt"].value == pytest.approx(-100)  # of the one that was judged
    assert found.failed == 1
    assert (found.items[1].failure or "").startswith("compare: bad_answer")


def test_points() -> None:
    assert [points_of(word, ours_first=True) for word in ("first", "second", "tie")] == [1, -1, 0]
    assert [points_of(word, ours_first=False) for word in ("first", "second", "tie")] == [-1, 1, 0]


def test_other_files_are_refused(server: ScriptedJudge, data: Path) -> None:
    path = data / "caparena_auto_600.json"
    path.write_text(json.dumps({"a.jpg": {"captions": {"human": "h"}, "ref_model": "Somebody"}}))
    with pytest.raises(DataMissing, match=r"ref_model is 'Somebody'.*njucckevin/CapArena"):
        made(CapArenaAuto, data, endpoint(server))
    path.write_text(json.dumps({"a.jpg": {"captions": {"human": "h"}, "ref_model": "GPT-4o-0806"}}))
    with pytest.raises(DataMissing, match="the caption of GPT-4o-0806"):
        made(CapArenaAuto, data, endpoint(server))
    path.unlink()
    with pytest.raises(DataMissing, match="njucckevin/CapArena"):
        made(CapArenaAuto, data, endpoint(server))
