"""Answers of the embedded backbone: to a sample's questions side by side, and to each by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vcap_jax.configuration import load_config
from vcap_jax.data.pipeline import BadSample
from vcap_jax.references.beside import Asking
from vcap_jax.references.by_policy import policy_writer, reference_rollout
from vcap_jax.references.writers import CaptionWriter
from vcap_jax.references.writing import Written
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import group_sampler
from vcap_jax.run.setup import Prepared, prepare

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = ("What is at the top left?", "What is at the bottom center?", "How many circles are there?")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    config = load_config(
        RunConfig,
        [ROOT / "configs" / "embedded" / "image.yaml"],
        [
            "world.train_scenes=3",
            "world.heldout_scenes=1",
            "references.per_sample=2",
            # Three questions with two answers each: a group of two questions, and one of the third.
            "rollout.group_size=4",
            "rollout.max_completion_length=32",
            "rollout.groups_per_batch=2",
            "grpo.groups_per_step=2",
            "grpo.groups_per_micro_batch=2",
            "mesh.fsdp=1",
        ],
    )
    return prepare(config, RunFolder(tmp_path_factory.mktemp("run")), lambda _: None)


def writer_of(prepared: Prepared) -> CaptionWriter:
    return policy_writer(
        prepared.ctx,
        prepared.samples,
        name="the backbone",
        seed=3,
        rollout=reference_rollout(prepared.ctx.config),
        asking=Asking(questions=QUESTIONS, each=3),
    )


def written(writer: CaptionWriter, prepared: Prepared, skip: int = 0) -> list[Written]:
    bad: list[BadSample] = []
    samples = prepared.samples
    found = list(writer.write("answers", samples, range(len(samples)), skip, bad.append))
    assert bad == []
    return found


@pytest.mark.slow
def test_answers_side_by_side_are_those_to_each_question_by_itself(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, ...]] = []
    processor = prepared.ctx.policy.processor
    without_suffix = type(processor).without_suffix

    def counted(processor: object, prompt: object, suffix: np.ndarray) -> object:
        read.append(tuple(suffix.tolist()))
        return without_suffix(processor, prompt, suffix)  # type: ignore[arg-type]

    monkeypatch.setattr(type(processor), "without_suffix", counted)
    together = written(writer_of(prepared), prepared)
    # Two groups of each sample, of no more candidates than a step's groups have, in place of three prompts.
    begin = [tuple(processor.suffix(question).tolist()) for question in (QUESTIONS[0], QUESTIONS[2])]
    assert sorted(read) == sorted(begin * len(prepared.samples))
    ctx, rollout = prepared.ctx, reference_rollout(prepared.ctx.config)
    items = Asking(questions=QUESTIONS, each=3).items(prepared.samples, seed=3 + 11_000_003)
    alone = ctx.captioner(group_sampler(ctx.policy, rollout)).run(
        ctx.policy.trainable, items, seed=3 + 11_000_003
    )
    expected = [tuple(f"{one.sample.prompt} {text}" for text in one.captions) for one in alone]
    assert [one.references for one in together] == expected
    assert [one.index for one in together] == list(range(len(items)))
    assert len({texts for one in together for texts in one.references}) > len(QUESTIONS)


@pytest.mark.slow
def test_who_goes_on_in_the_middle_of_a_sample_gets_the_same_answers(prepared: Prepared) -> None:
    writer = writer_of(prepared)
    assert written(writer, prepared, skip=2) == written(writer, prepared)[2:]


@pytest.mark.slow
def test_a_sample_that_cannot_be_read_is_told_of_once_a_group(prepared: Prepared, tmp_path: Path) -> None:
    bad: list[BadSample] = []
    lost = replace(prepared.samples[0], images=(tmp_path / "lost.png",))
    there = prepared.samples[1]
    found = list(writer_of(prepared).write("answers", [lost, there], (0, 1), 0, bad.append))
    assert [one.index for one in found] == [3, 4, 5]
    assert [(one.id, one.part) for one in bad] == [
        (lost.id, "the answers to 2 questions"),
        (lost.id, f"the answer to {QUESTIONS[2]!r}"),
    ]
