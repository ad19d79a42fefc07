"""The longest question of a run, counted by hand, against what a judge takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.configuration import load_config
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.judge import answering_judge
from vcap_jax.run.judge_context import context_warning

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
IMAGE, VIDEO = 17_408, 41_984
"""What serve.py takes by itself (gpu_judge/README.md)."""


def paper(modality: str, *more: str, over: tuple[str, ...] = ()) -> RunConfig:
    files = [CONFIGS / "paper" / f"{modality}.yaml", *(CONFIGS / name for name in over)]
    return load_config(RunConfig, files, list(more))


@pytest.mark.parametrize(("modality", "context"), [("image", IMAGE), ("video", VIDEO)])
def test_the_papers_runs_fit_the_context_that_serve_py_takes(modality: str, context: int) -> None:
    config = paper(modality)
    assert context_warning(config, context) is None
    assert context_warning(config, None) is None
    short = context_warning(config, 8192)
    assert short is not None
    assert f"--max-model-len {context} " in short, "what serve.py would have taken"


def test_long_answers_want_a_longer_context() -> None:
    told = context_warning(paper("image", over=("rewards/balanced.yaml",)), IMAGE)
    assert told is not None
    longest = 2 * 4096 + 6_422_528 // 1024 + 6144
    assert "the judge takes 17,408 tokens of a question and its answer (max_model_len), and" in told
    assert f"may want {longest:,}" in told
    assert "6,144 of an answer (judge.max_tokens)" in told
    assert "--judge-max-model-len 22528" in told


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        (["reward.use_image=false"], 2 * 4096 + 1024),
        (["reward.use_reference=false"], 4096 + 6272 + 1024),
        (["reward.family=judge"], 4096 + 6272 + 1024),
        (["references.max_completion_length=100"], 4096 + 100 + 6272 + 1024),
        (["data.judge_media.max_edge=1024"], 2 * 4096 + 1024 + 1024),
        (["data.max_pixels=null"], 2 * 4096 + 1024),
    ],
)
def test_what_the_judge_is_not_given_does_not_count(overrides: list[str], longest: int) -> None:
    config = paper("image", *overrides)
    assert context_warning(config, longest) is None
    assert f"may want {longest:,}:" in str(context_warning(config, longest - 1))


def test_frames_that_are_sent_as_pictures_count_twice() -> None:
    longest = 200 * (256 + 12) + 2 * 6300 + 1024
    assert f"may want {longest:,}:" in str(context_warning(paper("video", "judge.video_input=frames"), VIDEO))


@pytest.mark.parametrize(("told", "warned"), [(1000, True), (100_000, False), (None, False), ("long", False)])
def test_a_run_says_so_once_when_its_judge_is_ready(tmp_path: Path, told: object, warned: bool) -> None:
    judge, said = ScriptedJudge(), list[str]()
    judge.max_model_len = told
    try:
        with answering_judge(paper("image", f"judge.urls=[{judge.url}]"), RunFolder(tmp_path), said.append):
            pass
    finally:
        judge.close()
    assert sum("max_model_len" in line for line in said) == warned
