"""References by a served model, over HTTP: what is asked, what is kept, and what becomes of failures."""

from __future__ import annotations

import dataclasses
import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.captioning.server import Captioning, picture_of, served
from tests.patience import GUARD_S
from vcap_jax.data.config import DataConfig
from vcap_jax.data.errors import MediaError
from vcap_jax.data.judge_media import JudgeMediaSettings
from vcap_jax.data.manifest import read_manifest
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.references.by_endpoint import endpoint_writer
from vcap_jax.references.writers import CaptionWriter
from vcap_jax.references.writing import PoolError, write_pool
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.run.config import ReferenceConfig, RunConfig
from vcap_jax.run.context import sample_reader
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.dataset import write_dataset


def config_for(modality: str, segments: int = 0) -> RunConfig:
    return RunConfig(
        modality=modality,
        data=DataConfig(image_prompt="Describe it.", video_prompt="Describe the clip.", threads=1),
        references=ReferenceConfig(
            per_sample=2, segments=segments, sampling=SamplingConfig(temperature=0.7, top_p=0.8)
        ),
    )


def writer(
    config: RunConfig,
    url: str,
    samples: list,
    seed: int = 5,
    ready_timeout_s: float = GUARD_S,
    tries: int = 2,
    **more,
) -> AbstractContextManager[CaptionWriter]:
    processor = Processor.from_pretrained(BACKBONE_FOLDER)
    return endpoint_writer(
        config,
        JudgeConfig(
            urls=(url,),
            max_tries=tries,
            backoff_s=0.01,
            ready_timeout_s=ready_timeout_s,
            deadline_s=GUARD_S,
        ),
        samples,
        reader=lambda window: sample_reader(config, processor, window=window),
        seed=seed,
        **{"say": lambda _: None, **more},
    )


def test_each_caption_is_a_request_with_a_seed_of_its_own(tmp_path: Path) -> None:
    samples = read_manifest(write_dataset(tmp_path / "data", "image", "served", 5, 0))
    captioning, bad = Captioning(), []
    with served(captioning) as url:
        with writer(config_for("image"), url, samples) as one:
            pool = write_pool(tmp_path / "pool.jsonl", one, samples, on_bad=bad.append)
        assert pool is not None
        assert [e.id for e in pool.entries()] == [s.id for s in samples]
        bodies = captioning.bodies
        assert len(bodies) == 10
        assert len({body["seed"] for body in bodies}) == 10
        assert len({picture_of(body) for body in bodies}) == 5
        for body in bodies:
            assert (body["model"], body["temperature"], body["top_p"]) == ("a-captioner", 0.7, 0.8)
            assert body["max_tokens"] == config_for("image").rollout.max_completion_length
            assert body["messages"][0]["content"][-1]["text"] == "Describe it."
        said = {body["seed"]: picture_of(body) for body in bodies}
        for entry in pool.entries():
            assert len(set(entry.references)) == 2
            for text in entry.references:
                picture, seed = text.removeprefix("Picture ").removesuffix(".").split(", seed ")
                assert said[int(seed)] == picture
        header = pool.header
        assert header is not None
        assert header.provenance.writer == "a-captioner behind an endpoint"
        assert header.provenance.settings["sampling"] == {"temperature": 0.7, "top_p": 0.8}

        # The same seed asks for the same captions; another one for others.
        again = []
        for name, seed in (("again", 5), ("other", 6)):
            with writer(config_for("image"), url, samples, seed) as one:
                again.append(write_pool(tmp_path / f"{name}.jsonl", one, samples))
        assert again[0].digest() == pool.digest() != again[1].digest()

        # A sample that nothing came of is reported and left out.
        captioning.speechless = {picture_of(bodies[0])}
        with writer(config_for("image"), url, samples, 7) as one:
            rest = write_pool(tmp_path / "rest.jsonl", one, samples, on_bad=bad.append)
        assert rest is not None
        assert len(rest) == 4
        assert len(bad) == 1
        assert bad[0].id not in rest
        assert "empty_answer" in bad[0].reason

        # A caption that was cut off is a witness, but nothing to imitate.
        captioning.speechless, captioning.endless = set(), captioning.speechless
        sizes = []
        for name, only in (("witnesses", False), ("targets", True)):
            bodies.clear()
            with writer(config_for("image"), url, samples, 8, ended_only=only) as one:
                sizes.append(len(write_pool(tmp_path / f"{name}.jsonl", one, samples, on_bad=bad.append)))
            assert len(bodies) == 10, "with its own seed it would be cut off again: it is asked for once"
        assert sizes == [5, 4]
        assert "2 were cut off" in bad[-1].reason


def test_references_that_a_server_did_not_give_are_told(tmp_path: Path) -> None:
    samples = read_manifest(write_dataset(tmp_path / "data", "image", "served", 1, 0))
    captioning = Captioning()
    captioning.lost = {1}
    said: list[str] = []
    with (
        served(captioning) as url,
        writer(config_for("image"), url, samples, say=said.append, tries=1) as one,
    ):
        pool = write_pool(tmp_path / "pool.jsonl", one, samples)
    assert pool is not None
    assert len(pool[samples[0].id].references) == 1
    assert any("gets 1 references: 1 of 2 captions are lacking: http_status" in line for line in said)


def test_a_pool_of_pictures_that_were_sent_otherwise_is_another(tmp_path: Path) -> None:
    samples = read_manifest(write_dataset(tmp_path / "data", "image", "served", 2, 0))
    path, usual = tmp_path / "pool.jsonl", config_for("image")
    media = JudgeMediaSettings(max_edge=16)
    small = dataclasses.replace(usual, data=dataclasses.replace(usual.data, judge_media=media))
    with served(Captioning()) as url:
        with writer(usual, url, samples) as one:
            assert "judge_media" not in one.provenance.settings, "as earlier versions noted it"
            write_pool(path, one, samples)
        with (
            writer(small, url, samples) as other,
            pytest.raises(PoolError, match=r"settings\.judge_media differ"),
        ):
            write_pool(path, other, samples)


def test_a_sample_that_cannot_be_read_may_be_refused(tmp_path: Path) -> None:
    samples = read_manifest(write_dataset(tmp_path / "data", "image", "served", 3, 0))
    (broken,) = samples[1].images
    broken.write_bytes(b"no picture")
    config = config_for("image")
    refusing = dataclasses.replace(config, data=dataclasses.replace(config.data, on_bad_sample="refuse"))
    with served(Captioning()) as url:
        with writer(config, url, samples) as one:
            pool = write_pool(tmp_path / "skipped.jsonl", one, samples)
        assert pool is not None
        assert [e.id for e in pool.entries()] == [samples[0].id, samples[2].id]
        message = rf"{broken.name}.*data\.on_bad_sample"
        with writer(refusing, url, samples) as one, pytest.raises(MediaError, match=message):
            write_pool(tmp_path / "refused.jsonl", one, samples)


def test_windows_of_videos_are_asked_about_as_clips(tmp_path: Path) -> None:
    samples = read_manifest(write_dataset(tmp_path / "data", "video", "served", 2, 0))
    config = config_for("video", segments=2)
    local = dataclasses.replace(config.reward.local, fraction=0.5, min_seconds=0.5)
    config = dataclasses.replace(config, reward=dataclasses.replace(config.reward, local=local))
    captioning = Captioning()
    with served(captioning) as url, writer(config, url, samples) as one:
        pool = write_pool(tmp_path / "pool.jsonl", one, samples)
    assert pool is not None
    assert len(captioning.bodies) == 2 * 2 + 2 * 2 * 2
    prompts = [body["messages"][0]["content"][-1]["text"] for body in captioning.bodies]
    assert prompts.count(config.references.segment_prompt) == 8
    frames = [sum(p["type"] == "image_url" for p in b["messages"][0]["content"]) for b in captioning.bodies]
    assert max(frames[4:]) < min(frames[:4])
    for entry in pool.entries():
        assert len(entry.segments) == 2
        assert all(len(segment.references) == 2 for segment in entry.segments)
    assert json.loads((tmp_path / "pool.jsonl").read_text().splitlines()[0])["settings"]["segments"] == 2


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    samples = read_manifest(write_dataset(tmp_path / "data", "image", "served", 1, 0))
    config = config_for("image")
    absent = writer(config, "http://127.0.0.1:9", samples, ready_timeout_s=0.2)
    message = (
        r"^the captioner at http://127\.0\.0\.1:9/v1 is not ready.*connection refused\. Check by \(--by\) "
    )
    with pytest.raises(JudgeUnavailable, match=message), absent:
        pass
