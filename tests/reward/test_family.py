"""Families by name and by import path: what fits, what does not, and what the rest makes of any of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.patience import GUARD_S
from vcap_jax.alarms import step_alarms
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.reward.config import FAMILIES, JudgeConfig, RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyError, load_family
from vcap_jax.reward.group import CandidateScore, GroupForReward
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import read_candidates

OWN = "tests.reward.own_families"
NOTHING: Any = None


def config(name: str) -> RewardConfig:
    return RewardConfig(family=f"{OWN}:{name}", options={"most": 4})


def group(*captions: str) -> GroupForReward:
    return GroupForReward(sample_id="a", step=0, media=NOTHING, reference=None, captions=captions)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_projects_own_load_by_name(name: str) -> None:
    family = load_family(RewardConfig(family=name))
    assert family.__module__.startswith("vcap_jax.reward.")
    uses = {"witness_adjudicator": (True, True), "imitation": (True, False), "vqa": (True, True)}
    settings = RewardConfig(family=name)
    assert (family.uses_reference(settings), family.asks_judge(settings)) == uses.get(name, (False, True))


def test_a_users_own_is_scored_alarmed_and_kept(tmp_path: Path) -> None:
    judge = JudgeConfig(store=str(tmp_path / "s"))
    with RewardSession(config("Length"), judge, seed=0) as session:
        scores = session.submit(group("one two", "one two three four five", "forbidden")).result(GUARD_S)
    assert scores.rewards == [0.5, 1.0, None]
    assert step_alarms([scores], [["a", "b", "c"]])["alarms/saturated"] == 0.5
    assert "alarms/mismatch" not in step_alarms([scores], [["a", "b", "c"]])
    kept = [candidate for candidate, _ in read_candidates(tmp_path / "s")]
    assert [(c.reward, c.components) for c in kept] == [(0.5, {"words": 2}), (1.0, {"words": 5}), (None, {})]
    assert kept[0].family == f"{OWN}:Length"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("witness", "no family of this project: give one of witness_adjudicator, imitation, vqa, judge, or"),
        ("tests.reward.absent:Length", r"tests\.reward\.absent cannot be imported \(ModuleNotFoundError"),
        (f"{OWN}:Absent", "has no Absent"),
        (f"{OWN}:function", "is not a class"),
        (f"{OWN}:Empty", "lacks uses_reference, asks_judge, score_group"),
        (f"{OWN}:Synchronous", "no `async def`"),
        (f"{OWN}:Instance", "asks_judge that is neither a classmethod nor a staticmethod"),
        (f"{OWN}:OtherArguments", r"is not made from \(config, tools\)"),
    ],
)
def test_what_does_not_fit_is_named(name: str, problem: str) -> None:
    with pytest.raises(FamilyError, match=problem):
        RewardSession(RewardConfig(family=name), JudgeConfig(), seed=0)


def test_a_module_that_fails_to_import_says_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_family.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FamilyError, match=r"broken_family cannot be imported \(RuntimeError: no licence"):
        load_family(RewardConfig(family="broken_family:Mine"))


def test_results_that_are_no_scores_end_the_run() -> None:
    with (
        RewardSession(config("Short"), JudgeConfig(), seed=0) as short,
        RewardSession(config("Broken"), JudgeConfig(), seed=0) as broken,
    ):
        with pytest.raises(FamilyError, match="1 scores for the 2 captions of 'a'"):
            short.submit(group("x", "y")).result(GUARD_S)
        with pytest.raises(ValueError, match="nan is not finite"):
            broken.submit(group("x")).result(GUARD_S)


@pytest.mark.parametrize(
    ("score", "problem"),
    [
        ({"reward": None}, "a reward or a failure"),
        ({"reward": 1.0, "failure": Failure(reason="other", detail="")}, "a reward or a failure"),
        ({"reward": 1.0, "components": {"mean": 1.0}}, "cannot be named so"),
        ({"reward": 1.0, "components": {"Text Quality": 1.0}}, "cannot be named so"),
        ({"reward": 1.0, "components": {"a/b/c": 1.0}}, "cannot be named so"),
        ({"reward": 1.0, "components": {"a": float("inf")}}, "leave out"),
    ],
)
def test_a_score_is_a_value_or_a_failure(score: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CandidateScore(**score)


def test_configuration_of_families() -> None:
    loaded = load_config(RewardConfig, [], [f"family={OWN}:Length", "options={most: 4, name: x}"])
    assert loaded.options == {"most": 4, "name": "x"}
    assert load_config(RewardConfig, [], ["family=vqa", "vqa.about=scene"]).vqa.about == "scene"
    with pytest.raises(ConfigError, match="are for a family of your own"):
        load_config(RewardConfig, [], ["options={most: 4}"])
    with pytest.raises(ConfigError, match="witness-adjudicator's ablations"):
        load_config(RewardConfig, [], ["family=judge", "use_image=false"])
