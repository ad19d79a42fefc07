"""What a run may be resumed with that it was not begun with, and what is told instead."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest

from vcap_jax.configuration import dump_config, load_config, parse_yaml
from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.reward.config import InstructionPaths, JudgeConfig, RewardConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.run.folders import JUDGE_MAY_DIFFER, check_resumption, next_steps, open_run, open_subrun
from vcap_jax.run.judge_record import note_judge, noted_judge, remember_judge

DECIDES_SCORES = {
    "model",
    "max_tokens",
    "max_analysis_chars",
    "temperature",
    "retry_temperature",
    "response_format",
    "video_input",
}
SECOND = "second_judge.judge.urls=[http://127.0.0.1:9]"


def begun(root: Path, *overrides: str) -> RunFolder:
    """A run that has done a step."""
    _, folder = open_run(load_config(RunConfig, [], overrides), root)
    folder.metrics.write_text('{"step": 1}\n')
    return folder


def resumed(root: Path, *overrides: str) -> RunFolder:
    _, folder = open_run(load_config(RunConfig, [], overrides), root)
    assert folder.resumed
    return folder


@pytest.mark.parametrize(
    ("setting", "free"),
    [
        ("compilation_cache=elsewhere", True),
        ("data.threads=7", True),
        ("data.prefetch=3", True),
        ("logging.print_every=9", True),
        ("alarms.duplicates=null", True),
        ("evaluation.every=3", True),
        ("evaluation.evaluators=[]", False),
        ("evaluation.evaluators=[{use: heldout, name: other}]", False),
        ("data.max_pixels=4096", False),
        ("data.on_bad_sample=refuse", False),
        ("seed=1", False),
        ("judge.urls=[http://127.0.0.1:7]", True),
        ("judge.deadline_s=7", True),
        ("judge.store=elsewhere.sqlite", True),
        ("judge.temperature=0.5", False),
        ("judge.retry_temperature=0.5", False),
        ("judge.max_tokens=99", False),
        ("judge.max_analysis_chars=99", False),
        ("judge.response_format=none", False),
        ("judge.video_input=frames", False),
        ("reward.instructions.image=mine.txt", False),
        ("second_judge.judge.urls=[http://127.0.0.1:8]", True),
        ("second_judge.max_pending=9", True),
        ("second_judge.share=0.5", False),
        ("second_judge.judge.temperature=0.5", False),
    ],
)
def test_what_changes_no_result_may_change(tmp_path: Path, setting: str, free: bool) -> None:
    begun(tmp_path / "run", SECOND)
    if free:
        resumed(tmp_path / "run", SECOND, setting)
    else:
        with pytest.raises(RunFolderError, match=setting.split("=")[0]):
            resumed(tmp_path / "run", SECOND, setting)


def test_short_caches_may_come_and_go_where_a_run_is_resumed(tmp_path: Path) -> None:
    """Neither of their two settings can be set without the other."""
    begun(tmp_path / "run")
    resumed(tmp_path / "run", "rollout.short_groups=8", "rollout.short_length=64")
    resumed(tmp_path / "run", "rollout.short_groups=6", "rollout.short_length=128")
    resumed(tmp_path / "run")


def test_every_setting_of_a_judge_decides_scores_or_does_not() -> None:
    """A new one must be put into one of the two."""
    assert DECIDES_SCORES | {*JUDGE_MAY_DIFFER} == {field.name for field in fields(JudgeConfig)}
    assert not DECIDES_SCORES & {*JUDGE_MAY_DIFFER}


def test_a_judge_that_was_left_open_may_be_named_but_not_exchanged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder = begun(run)
    remember_judge(folder, "A", RewardConfig())
    assert noted_judge(resumed(run, "judge.model=A")) == "A"
    with pytest.raises(
        RunFolderError, match=r"judge\.model: 'A' then, 'B' now\nThe run was judged by A.* judge\.model=A"
    ):
        resumed(run, "judge.model=B")
    folder = resumed(run)
    with pytest.raises(RunFolderError, match=r"judge\.model: None then, 'B' now\nThe run was judged by A"):
        resumed(run, "judge.model=B")
    with pytest.raises(RunFolderError, match=r"judge\.model: None then, 'B' now\nThe run was judged by A"):
        check_resumption(load_config(RunConfig, [], ["judge.model=B"]), run)
    assert check_resumption(load_config(RunConfig, [], ["judge.model=A"]), run)
    remember_judge(folder, "A", RewardConfig())
    with pytest.raises(RunFolderError, match=r"was judged by A, and B answers now .* correct .*judge\.json"):
        remember_judge(folder, "B", RewardConfig())


def test_texts_that_decide_scores_may_not_be_edited(tmp_path: Path) -> None:
    text = tmp_path / "image.txt"
    text.write_text("Judge mildly.")
    reward = RewardConfig(instructions=InstructionPaths(image=str(text)))
    folder = begun(tmp_path / "run")
    remember_judge(folder, "A", reward, first=False)
    assert noted_judge(folder) is None
    for _ in range(2):
        remember_judge(folder, "A", reward)
    text.write_text("Judge harshly.")
    with pytest.raises(RunFolderError, match=r"another text in the file of reward\.instructions\.image"):
        remember_judge(folder, "A", reward)


def test_stages_are_judged_by_one_judge(tmp_path: Path) -> None:
    config, whole = open_run(RunConfig(), tmp_path / "all")
    one = open_subrun(config, whole, whole.root / "e1")
    assert noted_judge(one) is None
    note_judge(one, "A", {})
    assert noted_judge(open_subrun(config, whole, whole.root / "e2")) == "A"


@pytest.mark.parametrize("where", [".", "e1"])
def test_a_text_that_decided_an_earlier_stage_may_not_be_edited(tmp_path: Path, where: str) -> None:
    """The judge's note is the whole's where the whole has scored, as in distillation, and else the first stage's."""
    text = tmp_path / "image.txt"
    text.write_text("Judge mildly.")
    reward = RewardConfig(instructions=InstructionPaths(image=str(text)))
    config, whole = open_run(RunConfig(), tmp_path / "all")
    open_subrun(config, whole, whole.root / "e1")
    remember_judge(RunFolder(whole.root / where), "A", reward)
    stage = open_subrun(config, whole, whole.root / "e2")
    remember_judge(stage, "A", reward)
    text.write_text("Judge harshly.")
    with pytest.raises(RunFolderError, match=r"another text in the file of reward\.instructions\.image"):
        remember_judge(stage, "A", reward)


def test_a_run_of_other_settings_is_refused_by_their_names(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    then = parse_yaml(dump_config(RunConfig()))
    then["rollout"]["chunk"] = then["rollout"].pop("decode_steps_per_call")
    del then["judge"]["temperature"]
    folder.config.write_text(dump_config(then))
    with pytest.raises(RunFolderError, match=r"the run in \S+/run cannot be resumed") as refused:
        resumed(tmp_path / "run")
    told = str(refused.value).splitlines()
    assert told[-1] == "Set these back, or start a new run in another folder."
    assert set(told[1:-1]) == {
        "  - rollout.chunk: 64 then, absent now",
        "  - rollout.decode_steps_per_call: absent then, 64 now",
        f"  - judge.temperature: absent then, {RunConfig().judge.temperature} now",
    }


def test_sections_of_a_list_are_compared_setting_by_setting(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"evaluation\.evaluators\.0\.captions: None then, 2 now"):
        resumed(tmp_path / "run", "evaluation.evaluators=[{use: heldout, captions: 2}]")


@pytest.mark.parametrize("setting", ["max_steps=12", "epochs=3", "sft.max_steps=12"])
def test_the_way_to_train_longer_is_named(tmp_path: Path, setting: str) -> None:
    run = tmp_path / "run"
    begun(run)
    RunFolder(run, resumed=True).claim("training")
    with pytest.raises(RunFolderError) as raised:
        resumed(run, setting)
    assert f"--run-dir {run}-2 model.path={run} {setting} " in str(raised.value)
    assert "Set these back" not in str(raised.value)


@pytest.mark.parametrize("kind", [None, "self-improvement", "distillation"])
def test_of_several_runs_nobody_is_told_to_begin_from_their_checkpoint(
    tmp_path: Path, kind: str | None
) -> None:
    """kind: earlier versions noted none."""
    folder = begun(tmp_path / "rounds")
    if kind is not None:
        RunFolder(folder.root, resumed=True).claim(kind)
    with pytest.raises(RunFolderError, match=r"\n  - max_steps: .*\nSet these back, or start a new run"):
        resumed(tmp_path / "rounds", "max_steps=12")


def test_micro_batches_stay_where_the_loss_depends_on_them(tmp_path: Path) -> None:
    run, bnpo = tmp_path / "run", "grpo.objective.aggregation=bnpo"
    begun(run, bnpo)
    resumed(run, bnpo, "grpo.caption_buckets=[64]")
    with pytest.raises(RunFolderError, match=r"micro_batch: 4 then, 2 now\nUnder .*aggregation bnpo"):
        resumed(run, bnpo, "grpo.groups_per_micro_batch=2")


def test_processes_stay_as_many_where_the_loss_depends_on_them(tmp_path: Path) -> None:
    run, bnpo = tmp_path / "run", "grpo.objective.aggregation=bnpo"

    def of(count: int, coordinator: str = "a:1", process_id: int = 0) -> list[str]:
        return [
            f"distributed.processes={count}",
            f"distributed.coordinator={coordinator}",
            f"distributed.process_id={process_id}",
        ]

    begun(run, bnpo, *of(2))
    resumed(run, bnpo, *of(2, "b:2", 1), "distributed.start_timeout_s=7")
    with pytest.raises(RunFolderError, match=r"processes: 2 then, 4 now\nUnder .*aggregation bnpo"):
        resumed(run, bnpo, *of(4))
    with pytest.raises(RunFolderError, match=r"automatic: False then, True now\nUnder .*aggregation bnpo"):
        resumed(run, bnpo, "distributed.automatic=true")
    begun(tmp_path / "other", *of(2))
    resumed(tmp_path / "other", *of(4))


def test_the_most_telling_page_there_is_and_commands_of_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "my run")
    folder.root.mkdir()
    monkeypatch.setattr(sys, "argv", ["/usr/bin/vcap", "train"])
    folder.samples_page.touch()
    assert next_steps(folder, "image").splitlines() == [
        f"look at:  {folder.samples_page}",
        f"caption:  vcap caption --by '{folder.root}' PICTURE",
        f"export:   vcap convert to-hf '{folder.root}' exported",
    ]
    monkeypatch.setattr(sys, "argv", ["launch/train.py", "max_steps=3"])
    monkeypatch.setattr(sys, "executable", str(Path.cwd() / ".venv/bin/python"))
    folder.before_after_page("judged").touch()
    look, caption, _ = next_steps(folder, "video").splitlines()
    assert look == f"look at:  {folder.before_after_page('judged')}"
    assert caption == f"caption:  .venv/bin/python launch/caption.py --by '{folder.root}' CLIP"
