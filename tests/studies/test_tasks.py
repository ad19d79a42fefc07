"""Plans: what is shared, what comes first, and what makes another run."""

from __future__ import annotations

import pytest

from vcap_jax.studies.arms import ACCOMPANY, ARMS, STUDIES, label
from vcap_jax.studies.claims import FORMULA, all_claims
from vcap_jax.studies.tasks import PlanError, plan


@pytest.fixture(scope="module")
def full():
    return plan(quick=False, seeds=(0, 1))


def test_arms_that_studies_share_are_run_once(full):
    keys = list(full.tasks)
    assert keys.count("image/e1/0") == 1
    folders = [task.folder for task in full.tasks.values() if task.kind == "train"]
    assert len(folders) == len(set(folders))
    # A judge that sees no reference and an ablated witness are one computation for pictures, two for videos.
    assert full.of("judge", "image")[0] is full.tasks["image/no_reference/0"]
    assert full.of("judge", "video")[0] is full.tasks["video/judge/0"]


def test_everything_comes_after_what_it_needs_and_seed_after_seed(full):
    keys = list(full.tasks)
    for key, task in full.tasks.items():
        assert all(keys.index(earlier) < keys.index(key) for earlier in task.after)
    seeds = [task.seed for task in full.tasks.values()]
    assert seeds == sorted(seeds)
    assert keys[:2] == ["image/e1/0", "image/e2/0"]


def test_quick_runs_are_runs_of_full(full):
    quick = plan(quick=True, seeds=(0,))
    assert 0 < len(quick.tasks) < len(full.tasks) / 4
    for key, task in quick.tasks.items():
        assert full.tasks[key].folder == task.folder


def test_another_configuration_is_another_folder(full):
    shorter = plan(quick=False, seeds=(0,), overrides=["max_steps=7"])
    assert shorter.configs["image/e1/0"].max_steps == 7
    for key, task in shorter.tasks.items():
        assert task.folder != full.tasks[key].folder
        assert task.world == full.tasks[key].world
    other = plan(quick=False, seeds=(0,), overrides=["world.train_scenes=64"])
    assert other.tasks["image/e1/0"].world != full.tasks["image/e1/0"].world


def test_what_only_watches_a_run_makes_no_other_folder(full):
    watched = plan(quick=False, seeds=(0,), overrides=["alarms.duplicates=null", "logging.print_every=1"])
    for key, task in watched.tasks.items():
        assert task.folder == full.tasks[key].folder


def test_how_held_out_captions_are_drawn_makes_another_folder(full):
    """They are what a study counts; other evaluators only watch."""
    entry = "{use: heldout, captions: 1, sampling: {temperature: 0}}"
    greedy = plan(quick=False, seeds=(0,), overrides=[f"evaluation.evaluators=[{entry}]"])
    for key, task in greedy.tasks.items():
        assert task.folder != full.tasks[key].folder
    watched = ["evaluation.every=5", "evaluation.evaluators=[{use: heldout}, {use: a:B, name: mine}]"]
    for key, task in plan(quick=False, seeds=(0,), overrides=watched).tasks.items():
        assert task.folder == full.tasks[key].folder


def test_settings_that_are_younger_than_studies_on_disk_change_no_folder(full):
    """Names of an earlier state: what lies there is found again."""
    assert full.tasks["image/e1/0"].folder == "image-self-improve-seed0-faec2b7f"
    assert full.tasks["video/e1/0"].folder == "video-self-improve-seed0-40eca14b"
    tracked = plan(quick=False, seeds=(0,), overrides=["trackers.use=[tensorboard]"])
    assert tracked.tasks["image/e1/0"].folder == full.tasks["image/e1/0"].folder


def test_how_far_captions_are_padded_changes_no_folder(full):
    padded = plan(quick=False, seeds=(0,), overrides=["grpo.caption_buckets=[32]", "sft.caption_buckets=[]"])
    assert padded.configs["image/e1/0"].grpo.caption_buckets == (32,)
    for key, task in padded.tasks.items():
        assert task.folder == full.tasks[key].folder


def test_an_arm_changes_what_it_names_and_nothing_else(full):
    base = full.configs["image/e1/0"]
    assert full.configs["image/imitation/0"].reward.family == "imitation"
    assert full.configs["image/no_completeness/0"].reward.weights.completeness == 0
    assert full.configs["image/noise_20/0"].world.judge_perception.miss == 0.2
    assert full.configs["image/dapo/0"].grpo.num_iterations == 2
    for key, config in full.configs.items():
        if key.startswith("image/") and key.endswith("/0"):
            assert (config.max_steps, config.optimizer, config.seed) == (base.max_steps, base.optimizer, 0)


def test_claims_speak_of_rows_that_their_studies_have():
    for claim in all_claims():
        arms = STUDIES[claim.study].arms[claim.modality]
        for test in claim.tests:
            for row in (test.first, test.second):
                assert row == FORMULA or row in arms or row in ACCOMPANY, f"{claim.name}: {row}"
    names = [claim.name for claim in all_claims()]
    assert len(names) == len(set(names))
    assert all(label(row) for study in STUDIES.values() for row in study.rows)
    assert {arm for study in STUDIES.values() for arms in study.arms.values() for arm in arms} == set(ARMS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"only": ["abl"]}, "no study 'abl'"),
        ({"seeds": (0, 0)}, "give different ones"),
        ({"seeds": ()}, "at least one"),
        ({"only": ["distillation"], "modalities": ["video"]}, "nothing is left"),
        ({"overrides": ["seed=7"]}, "seed=7: .*--seeds"),
        ({"overrides": ["max_steps=7", "name=mine"]}, "name=mine: each run is named by its arm"),
        ({"overrides": ["modality=video"]}, "modality=video: --modality chooses"),
        ({"overrides": ["data.manifest=mine.jsonl"]}, "data.manifest: studies count facts"),
        ({"overrides": ["data.references=mine.jsonl"]}, "data.references: each arm has"),
        ({"overrides": ["evaluation.evaluators=[]"]}, "add {use: heldout}"),
        ({"overrides": ["evaluation.evaluators=[{use: heldout, name: mine}]"]}, "without another name"),
    ],
)
def test_plans_that_cannot_be_made_are_refused(arguments, message):
    with pytest.raises(PlanError, match=message):
        plan(**{"quick": False, "seeds": (0,), **arguments})
