"""Families by name and by import path: what fits, what does not, and what the rest makes of any of them."""

import asyncio
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.patience import GUARD_S
from tests.reward import own_families
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.reward.alarms import step_alarms
from vcap_jax.reward.config import FAMILIES, JudgeConfig, RewardConfig
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import load_family
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import read_candidates
from vcap_jax.system import plugins
from vcap_jax.system.plugins import described

OWN = "tests.reward.own_families"
NOTHING: Any = None
WITNESSES = {"a": ("A witness.",), "b": ("Another one.",)}


def config(name: str) -> RewardConfig:
    return RewardConfig(family=f"{OWN}:{name}", options={"most": 4})


def group(*captions: str, index: int = 0) -> GroupForReward:
    return GroupForReward(
        sample_id="a", step=0, index=index, media=NOTHING, reference=None, captions=captions
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_projects_own_load_by_name(name: str) -> None:
    family = load_family(RewardConfig(family=name))
    assert family.__module__.startswith("vcap_jax.reward.")
    uses = {"imitation": (True, False), "judge": (False, True), "random": (False, False)}
    settings = RewardConfig(family=name)
    assert (family.uses_reference(settings), family.asks_judge(settings)) == uses.get(name, (True, True))


def test_a_users_own_is_scored_alarmed_and_kept(tmp_path: Path) -> None:
    judge = JudgeConfig(store=str(tmp_path / "s"))
    with RewardSession(config("Length"), judge, seed=0) as session:
        scores = session.submit(group("one two", "one two three four five", "forbidden")).result(GUARD_S)
    assert scores.rewards == [0.5, 1.0, None]
    assert step_alarms([scores], [["a", "b", "c"]], [False])["alarms/saturated"] == 0.5
    assert "alarms/mismatch" not in step_alarms([scores], [["a", "b", "c"]], [False])
    kept = [candidate for candidate, _ in read_candidates(tmp_path / "s")]
    assert [(c.reward, c.components) for c in kept] == [(0.5, {"words": 2}), (1.0, {"words": 5}), (None, {})]
    assert kept[0].family == f"{OWN}:Length"


def test_both_groups_of_a_sample_that_occurs_twice_in_a_step_are_kept(tmp_path: Path) -> None:
    judge = JudgeConfig(store=str(tmp_path / "s"))
    with RewardSession(config("Length"), judge, seed=0) as session:
        futures = [session.submit(group(f"group {index}", "b", index=index)) for index in (4, 1)]
        for future in futures:
            future.result(GUARD_S)
    kept = [(c.group, c.index, c.caption) for c, _ in read_candidates(tmp_path / "s")]
    assert kept == [(1, 0, "group 1"), (1, 1, "b"), (4, 0, "group 4"), (4, 1, "b")]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("witness", "no family of this project: give one of witness_adjudicator, imitation, vqa, judge, "),
        (
            "tests.reward.absent:Length",
            r"absent cannot be imported: ModuleNotFoundError: .*; it must be installed or on PYTHONPATH",
        ),
        (f"{OWN}:Absent", "has no Absent"),
        (f"{OWN}:function", "is not a class"),
        (f"{OWN}:Empty", "lacks uses_reference, asks_judge, score_group or score_captions"),
        (f"{OWN}:Both", "has both score_group and score_captions"),
        (f"{OWN}:Synchronous", "no `async def`"),
        (f"{OWN}:Instance", "asks_judge that is neither a classmethod nor a staticmethod"),
        (f"{OWN}:OtherArguments", r"is not made from \(config, tools\)"),
        (f"{OWN}:NoReferenceAnswer", "answers uses_reference with a NoneType"),
        (
            f"{OWN}:AskingFails",
            r"failed when it was asked asks_judge: KeyError: 'judge' \(.*own_families\.py:",
        ),
    ],
)
def test_what_does_not_fit_is_named(name: str, problem: str) -> None:
    with pytest.raises(FamilyError, match=problem):
        RewardSession(RewardConfig(family=name), JudgeConfig(), seed=0)


def test_a_module_that_fails_to_import_says_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {
        "broken": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        "script": ("raise SystemExit(2)", "SystemExit: 2"),
        "needing": ("import absent_library", "ModuleNotFoundError: No module named 'absent_library'"),
    }
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, (source, raised) in sources.items():
        (tmp_path / f"{name}.py").write_text(f"{source}\n")
        with pytest.raises(FamilyError) as error:
            load_family(RewardConfig(family=f"{name}:Mine"))
        place = f"{tmp_path}/{name}.py:1, in <module>"
        assert str(error.value) == (
            f"reward.family '{name}:Mine': {name} cannot be imported: {raised} ({place})"
        )


def failure_of(name: str, *captions: str) -> FamilyError:
    with RewardSession(config(name), JudgeConfig(), seed=0) as session:
        with pytest.raises(FamilyError) as raised:
            session.submit(group(*captions)).result(GUARD_S)
        return raised.value


def line_of(text: str) -> int:
    """The number of the line of the test families with ``text`` in it."""
    lines = Path(own_families.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [("key", KeyError), ("exit", SystemExit), ("cancelled", asyncio.CancelledError)],
)
def test_what_a_users_family_raises_is_one_error_with_family_sample_and_place(
    kind: str, raised: type[BaseException]
) -> None:
    """Also what would end the thread that scores, or look like the end of the session."""
    error = failure_of("Raising", kind)
    message = str(error)
    assert message.startswith(f"reward.family '{OWN}:Raising' failed on sample 'a': {raised.__name__}: ")
    assert "of the user's" in message
    place = f"{own_families.__file__}:{line_of('SystemExit, ')}, in score"
    assert message.endswith(f"({place})")
    assert isinstance(error.__cause__, raised)
    assert "\n" not in message


def test_the_place_is_the_last_one_in_the_users_own_code() -> None:
    message = str(failure_of("Deep", "no json"))
    assert "JSONDecodeError: Expecting value" in message
    assert message.endswith(f"({own_families.__file__}:{line_of('the line that is named')}, in score)")


def test_a_family_that_is_installed_is_its_users_own_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_OTHERS", (tmp_path,))
    source = "def fails():\n    raise ValueError\n"
    (tmp_path / "installed").mkdir()
    for file in ("installed/__init__.py", "installed/family.py", "library.py"):
        (tmp_path / file).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, place in (("installed.family", "installed/family.py:2, in fails"), ("library", None)):
        with pytest.raises(ValueError, match=r"^$") as raised:
            importlib.import_module(name).fails()
        told = described(raised.value, "installed.family")
        if place is None:  # somebody else's library: the last line of the caller is named
            assert "test_family.py:" in told
        else:
            assert told == f"ValueError ({tmp_path}/{place})"


def test_mistakes_of_this_projects_families_keep_their_trace() -> None:
    with (
        RewardSession(RewardConfig(family="imitation"), JudgeConfig(), seed=0, references=WITNESSES) as own,
        pytest.raises(ValueError, match="no reference caption to imitate") as raised,
    ):
        own.submit(group("x")).result(GUARD_S)
    assert not isinstance(raised.value, FamilyError)


GOOD = CandidateScore(reward=1.0)


def whole(asked: GroupForReward, *candidates: Any, **changes: Any) -> GroupScores:
    given = {"sample_id": asked.sample_id, "step": asked.step, "candidates": candidates, **changes}
    return GroupScores(**given)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (lambda g: None, "a NoneType, not GroupScores"),
        (lambda g: [1.0, 0.5], "a list, not GroupScores"),
        (
            lambda g: whole(g, GOOD, GOOD, sample_id="b"),
            "gave the scores of sample 'b': hand on the group's own sample_id",
        ),
        (
            lambda g: whole(g, GOOD, GOOD, step=1),
            "gave scores of step=1: hand on the group's own, which counts from 0 and is 0",
        ),
        (lambda g: whole(g, candidates=[GOOD, GOOD]), "a list as candidates, not a tuple"),
        (lambda g: whole(g, GOOD), "1 scores for 2 captions"),
        (lambda g: whole(g, GOOD, 0.5), "a float, not a CandidateScore, for caption 1 of 2"),
        (
            lambda g: whole(g, CandidateScore(reward=np.float32(1)), GOOD),
            "a reward of type float32 (write float(...)), not float or None, for caption 0 of 2",
        ),
        (lambda g: whole(g, CandidateScore(reward="1"), GOOD), "TypeError: must be real number, not str"),
        (
            lambda g: whole(g, GOOD, CandidateScore(reward=1.0, components={"a": np.float32(1)})),
            "components with 'a' of type float32 (write float(...)) for caption 1 of 2",
        ),
        (lambda g: whole(g, GOOD, GOOD, weights={3: 1.0}), "weights with 3 of type float"),
        (
            lambda g: whole(g, GOOD, CandidateScore(reward=1.0, notes={"why": 3})),
            "notes with 'why' of type int for caption 1",
        ),
        (
            lambda g: whole(g, GOOD, CandidateScore(reward=1.0, notes=["why"])),
            "notes of type list, not a mapping",
        ),
        (
            lambda g: whole(g, GOOD, CandidateScore(reward=None, failure="no")),
            "a failure of type str, not Failure or None",
        ),
        (
            lambda g: whole(g, GOOD, CandidateScore(reward=None, failure=Failure(reason="mine", detail=""))),
            "a failure for the reason 'mine', which is none",
        ),
        (lambda g: whole(g, GOOD, GOOD, full_reward="1"), "a full_reward of type str, not"),
        (lambda g: whole(g, GOOD, GOOD, full_reward=np.int64(1)), "a full_reward of type int64 (write float"),
        (
            lambda g: whole(g, GOOD, CandidateScore(reward=1.5), full_reward=1),
            "gave the reward 1.5 for caption 1 of 2, which is above the full_reward of 1: give the most",
        ),
        (
            lambda g: whole(g, GOOD, GOOD, full_reward=np.nan),
            "gave the full_reward nan: give a number, or None",
        ),
        (lambda g: whole(g, GOOD, GOOD, weights=[1.0]), "weights of type list, not a mapping"),
        (lambda g: whole(g, GOOD, GOOD, weights={"words": "1"}), "weights with 'words' of type str"),
        (
            lambda g: whole(g, GOOD, GOOD, weights={"words": np.float32(1)}),
            "weights with 'words' of type float32 (write float(...))",
        ),
        (
            lambda g: whole(
                g, GOOD, CandidateScore(reward=1.0, components={"words": 3}), weights={"words": 0.5}
            ),
            "no component 'words', which has a weight, for caption 0 of 2",
        ),
        (
            lambda g: whole(g, *[CandidateScore(reward=1.0, components={"a": 3})] * 2, weights={"a": 0.5}),
            "the reward 1, where the weighted components add up to 1.5, for caption 0 of 2",
        ),
        (lambda g: whole(g, GOOD, GOOD, window=(0, 1)), "a window of type tuple"),
    ],
)
def test_results_that_are_no_scores_are_named(
    given: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_families.Anything, "given", {"x": given})
    message = str(failure_of("Anything", "x", "y"))
    assert message.startswith(f"reward.family '{OWN}:Anything' failed on sample 'a': ")
    assert problem in message
    assert "type float (write" not in message


def test_a_full_reward_whose_sum_is_rounded_up_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floating-point numbers, 0.1 + 0.2 = 0.30000000000000004, and those of a network in float32."""
    rewards = (0.1 + 0.2, float(np.float32(0.3)), 0.3)
    assert rewards[1] > rewards[0] > rewards[2]
    given = {"x": lambda g: whole(g, *(CandidateScore(reward=one) for one in rewards), full_reward=0.3)}
    monkeypatch.setattr(own_families.Anything, "given", given)
    with RewardSession(config("Anything"), JudgeConfig(), seed=0) as session:
        assert session.submit(group("x", "y", "z")).result(GUARD_S).rewards == [*rewards]


def test_a_reward_that_is_no_number_ends_the_run() -> None:
    assert "nan is not finite" in str(failure_of("Broken", "x"))
    assert "score_group gave 1 scores for 2 captions" in str(failure_of("Short", "x", "y"))


def test_settings_that_a_users_family_cannot_work_with_are_named() -> None:
    line = line_of('self.most = int(config.options["most"])')
    with pytest.raises(FamilyError) as raised:
        RewardSession(RewardConfig(family=f"{OWN}:Length"), JudgeConfig(), seed=0)
    assert str(raised.value) == (
        f"reward.family '{OWN}:Length' cannot be made with these settings: KeyError: 'most' "
        f"({own_families.__file__}:{line}, in __init__)"
    )


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
