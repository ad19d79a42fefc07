"""What a judge is shown of held-out samples: the same as in training, without the policy's part of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from PIL import Image

from tests.data.media_files import write_video
from tests.models.qwen3_vl.processing.cases import pixels
from tests.models.qwen3_vl.processing.tiny_tokenizer import tiny_tokenizer
from vcap_jax.configuration import load_config
from vcap_jax.data.errors import MediaError
from vcap_jax.data.manifest import read_manifest
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.models.qwen3_vl.processing.settings import VideoSettings
from vcap_jax.parallel.processes import ALONE
from vcap_jax.reward.session import RewardSession
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.own_data import own_data
from vcap_jax.run.setup import sample_reader


def test_the_judge_is_shown_the_same_bytes_and_no_prompt_is_made(tmp_path: Path) -> None:
    Image.fromarray(pixels(150, 170)).save(tmp_path / "photo.jpg")
    Image.fromarray(pixels(40, 90)).save(tmp_path / "small.png")
    write_video(tmp_path / "clip.mp4", 21, fps=10)
    (tmp_path / "cut.png").write_bytes((tmp_path / "small.png").read_bytes()[:300])
    rows: list[dict[str, object]] = [
        {"id": "pair", "images": ["photo.jpg", "small.png"], "prompt": "Compare."},
        {"id": "clip", "video": "clip.mp4"},
        {"id": "cut", "image": "cut.png"},
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = read_manifest(tmp_path / "m.jsonl")
    config = load_config(RunConfig, [], ["data.judge_media.max_edge=140", "data.threads=3"])
    whole = Processor(
        tiny_tokenizer(), video=VideoSettings(fps=4.0).with_budget(max_frames=5, max_frame_tokens=4)
    )
    frames_alone = SimpleNamespace(video=whole.video)  # it has no encode
    ctx: Any = SimpleNamespace(config=config, policy=SimpleNamespace(processor=frames_alone), processes=ALONE)
    session = cast(RewardSession, None)
    with own_data(
        cast(RunContext, ctx), samples, None, session=session, reward=config.reward, pool=None
    ) as own:
        assert own is not None
        assert own.threads == 3
        load = sample_reader(config, whole)
        for sample in samples[:2]:
            assert own.media(sample) == load(sample).media
        with pytest.raises(MediaError, match=r"cut\.png") as before:
            load(samples[2])
        with pytest.raises(MediaError, match=r"cut\.png") as now:
            own.media(samples[2])
        assert str(now.value) == str(before.value)
