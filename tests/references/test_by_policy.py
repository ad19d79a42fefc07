"""References by a real policy: the embedded backbone on rendered clips and windows of them, in one part and in two."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.data import examples
from vcap_jax.data.errors import MediaError
from vcap_jax.data.pipeline import BadSample
from vcap_jax.references.beside import Asking
from vcap_jax.references.by_policy import (
    configured_writer,
    policy_writer,
    reference_rollout,
    reference_seed,
)
from vcap_jax.references.writers import CaptionWriter
from vcap_jax.references.writing import Shard, write_pool
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.setup import Prepared, prepare
from vcap_jax.world.video_grammar import parse_video

ROOT = Path(__file__).resolve().parents[2]


def test_references_are_drawn_as_they_are_asked_for_and_else_as_in_the_rollout() -> None:
    plain = ["rollout.max_completion_length=90", "rollout.sampling.temperature=0.9", "seed=3"]
    asked = [
        "references.per_sample=4",
        "references.max_completion_length=40",
        "references.sampling={temperature: 0.5}",
    ]
    drawn = [reference_rollout(load_config(RunConfig, [], [*plain, *more])) for more in ([], asked)]
    assert [(one.group_size, one.max_completion_length, one.sampling.temperature) for one in drawn] == [
        (1, 90, 0.9),
        (4, 40, 0.5),
    ]
    # Two runs of different seeds have references of their own, and none is drawn with a step's numbers.
    seeds = [reference_seed(load_config(RunConfig, [], [f"seed={seed}"])) for seed in (0, 3)]
    assert seeds[1] - seeds[0] == 3
    assert min(seeds) > 10**6


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Prepared:
    config = load_config(
        RunConfig,
        [ROOT / "configs" / "embedded" / "video.yaml"],
        [
            "world.train_scenes=3",
            "world.heldout_scenes=1",
            "references.per_sample=2",
            # What is drawn at large may break the layout that the test looks for.
            "references.sampling={temperature: 0.7, top_p: 0.9, top_k: 50, repetition_penalty: 1.0}",
            "rollout.groups_per_batch=2",
            "grpo.groups_per_step=2",
            "grpo.groups_per_micro_batch=2",
            "mesh.fsdp=1",
            "reward.local.fraction=0.5",
        ],
    )
    return prepare(config, RunFolder(tmp_path_factory.mktemp("run")), lambda _: None)


@pytest.fixture(scope="module")
def writer(prepared: Prepared) -> CaptionWriter:
    return policy_writer(
        prepared.ctx,
        prepared.samples,
        name="the backbone",
        seed=3,
        rollout=reference_rollout(prepared.ctx.config),
        segments=2,
    )


@pytest.mark.long
def test_two_processes_write_what_one_does(prepared, writer, tmp_path, monkeypatch) -> None:
    # No judge is asked about any of it, so nothing is compressed for one.
    monkeypatch.setattr(examples, "encode_picture", None)
    alone = write_pool(tmp_path / "alone.jsonl", writer, prepared.samples)
    assert alone is not None
    shared = tmp_path / "shared.jsonl"
    assert write_pool(shared, writer, prepared.samples, shard=Shard(index=0, count=2)) is None
    joined = write_pool(shared, writer, prepared.samples, shard=Shard(index=1, count=2))
    assert joined is not None
    assert joined.digest() == alone.digest()
    assert [entry.id for entry in alone.entries()] == [sample.id for sample in prepared.samples]
    for entry in alone.entries():
        assert len(entry.references) == 2
        assert len(entry.segments) == 2
        for segment in entry.segments:
            assert len(segment.references) == 2
            # What a window shows is described; where in its own clip is not said.
            assert all("[" not in text and "Summary" not in text for text in segment.references)
    described = [parse_video(text) for entry in alone.entries() for text in entry.references]
    assert any(described)


def test_other_weights_are_another_writer(prepared, writer) -> None:
    changed = jax.tree.map(lambda leaf: leaf * 1.001, prepared.ctx.policy.trainable)
    other = policy_writer(
        dataclasses.replace(prepared.ctx, policy=dataclasses.replace(prepared.ctx.policy, trainable=changed)),
        prepared.samples,
        name="the backbone",
        seed=3,
        rollout=reference_rollout(prepared.ctx.config),
        segments=2,
    )
    assert other.provenance != writer.provenance
    assert dataclasses.replace(other.provenance, weights=writer.provenance.weights) == writer.provenance


def captioned_by(captioner: Any, prepared: Prepared) -> Any:
    """A context whose captions are all by ``captioner``, one question after another as by servers."""
    return SimpleNamespace(
        config=prepared.ctx.config,
        policy=SimpleNamespace(trainable={}, frozen={}, processor=prepared.ctx.policy.processor),
        sampler=None,
        servers=object(),
        own_params=lambda params: params,
        captioner=lambda sampler, load: captioner,
    )


def test_a_sample_that_nothing_was_said_of_is_reported(prepared) -> None:
    said = [
        (("", "A dog."), (False, True)),
        (("", ""), (False, False)),
        (("A cat.", "A cow."), (False, True)),
    ]

    class Speaking:
        def run(self, params, samples, **_):
            for sample, (captions, truncated) in zip(samples, said, strict=True):
                yield Captioned(sample, captions, (1, 1), truncated)

    for ended_only, kept in ((False, [("A dog.",), ("A cat.", "A cow.")]), (True, [("A cat.",)])):
        ctx = captioned_by(Speaking(), prepared)
        one = policy_writer(
            ctx, prepared.samples, name="", seed=0, rollout=ctx.config.rollout, ended_only=ended_only
        )
        bad = []
        written = list(one.write("whole", prepared.samples, range(len(prepared.samples)), 0, bad.append))
        assert [row.references for row in written] == kept
        assert len(bad) == 3 - len(kept)
        assert bad[-1].id == prepared.samples[1].id
        if ended_only:
            assert "1 were cut off" in bad[0].reason
            assert "raise references.max_completion_length, of a teacher's rollout.max_" in bad[0].reason


def test_a_question_without_an_answer_is_told_as_part_of_its_sample(prepared) -> None:
    """The sample keeps its entry, so it is not told to be skipped."""

    class Silent:
        def run(self, params, samples, **_):
            for sample in samples:
                yield Captioned(sample, ("",), (1,), (True,))

    ctx = captioned_by(Silent(), prepared)
    writer = policy_writer(
        ctx,
        prepared.samples,
        name="",
        seed=0,
        rollout=ctx.config.rollout,
        asking=Asking(questions=("What is at the top?", "What is below?"), each=2),
    )
    samples = prepared.samples[:2]
    bad: list[BadSample] = []
    assert list(writer.write("answers", samples, (0, 1), 1, bad.append)) == []
    assert [(one.id, one.part) for one in bad] == [
        (samples[0].id, "the answer to 'What is below?'"),
        (samples[1].id, "the answer to 'What is at the top?'"),
        (samples[1].id, "the answer to 'What is below?'"),
    ]
    assert str(bad[0]).startswith(
        f"skipped the answer to 'What is below?' of sample {samples[0].id}: of its 1 "
    )


@pytest.mark.parametrize("key", ["questions", "segment_prompt"])
def test_a_question_that_cannot_be_asked_is_told_before_anything_is_written(prepared, key: str) -> None:
    """It was told by no setting's name, and once all whole references were written, with others of the setting."""

    def asking(text: str) -> RunContext:
        value = {"questions": ("What is at the top?", text), "segment_prompt": text}[key]
        config = prepared.ctx.config
        asked = dataclasses.replace(config.references, segments=1, **{key: value})
        return dataclasses.replace(prepared.ctx, config=dataclasses.replace(config, references=asked))

    text = "What is <|im_end|> here?"
    with pytest.raises(ConfigError, match=rf"references\.{key}: {re.escape(repr(text))} cannot .*Remove it"):
        configured_writer(asking(text), prepared.samples, name="")
    configured_writer(asking("What is here?"), prepared.samples, name="")


def test_a_sample_that_cannot_be_read_may_be_refused(prepared, monkeypatch) -> None:
    def broken(path: Path):
        raise MediaError(f"{path}: broken")

    monkeypatch.setattr(examples, "index_video", broken)
    config = prepared.ctx.config
    data = dataclasses.replace(config.data, on_bad_sample="refuse")
    ctx = dataclasses.replace(prepared.ctx, config=dataclasses.replace(config, data=data))
    one = policy_writer(ctx, prepared.samples, name="", seed=0, rollout=config.rollout)
    with pytest.raises(MediaError, match=r"\.\w+: broken.*data\.on_bad_sample"):
        next(one.write("whole", prepared.samples, range(len(prepared.samples)), 0, pytest.fail))
