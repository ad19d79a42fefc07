"""Windows of videos as clips of their own: what is drawn, what is read, and what is kept of their captions."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.data.examples import example_loader
from vcap_jax.data.manifest import read_manifest
from vcap_jax.data.media import TimeWindow
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.references.windows import WindowDraw, description
from vcap_jax.reward.config import LocalConfig
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.dataset import write_dataset


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list:
    return read_manifest(write_dataset(tmp_path_factory.mktemp("videos"), "video", "windows", 2, 0))


def reader(window=None):
    processor = Processor.from_pretrained(BACKBONE_FOLDER)
    return example_loader(processor, image_prompt="i", video_prompt="v", window=window)


def test_a_window_is_read_as_a_clip_of_its_own(videos) -> None:
    whole = reader()(videos[0])
    stretch = TimeWindow(start=whole.media.duration / 2, end=whole.media.duration)
    part = reader(lambda sample, duration: stretch)(videos[0])
    assert part.media.duration == pytest.approx(stretch.seconds)
    assert 0 < len(part.media.pictures) < len(whole.media.pictures)
    assert part.media.pictures[0].seconds == 0
    assert all(p.seconds < stretch.seconds for p in part.media.pictures)
    # The same pictures as in the whole, where the whole was read at the same rate.
    inside = [p for p in whole.media.pictures if p.seconds >= stretch.start]
    assert [p.data for p in part.media.pictures] == [p.data for p in inside]
    for ours, theirs in zip(part.prompt.frames, whole.prompt.frames[-len(part.prompt.frames) :], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert part.media.video().total_frames < whole.media.video().total_frames


def test_draws_depend_on_seed_sample_and_number_alone(videos) -> None:
    local = LocalConfig(fraction=0.5, min_seconds=0.5)

    def windows(seed: int, skip: int = 0) -> dict[str, TimeWindow]:
        draw = WindowDraw(local, seed=seed, prompt="Describe the clip.")
        items = draw.items(videos, 3, skip)
        assert {item.prompt for item in items} == {"Describe the clip."}
        return {item.id: draw(item, 8.0) for item in items}

    drawn = windows(0)
    assert list(drawn) == [f"{v.id}#{k}" for v in videos for k in range(3)]
    assert len({w.start for w in drawn.values()}) == 6
    assert all(w.seconds == pytest.approx(4) and w.start >= 0 and w.end <= 8 for w in drawn.values())
    assert windows(0, skip=4) == {i: drawn[i] for i in list(drawn)[4:]}
    assert windows(1) != drawn


@pytest.mark.parametrize(
    ("caption", "kept"),
    [
        ("A dog runs.", "A dog runs."),
        ("[0.0 - 1.0] A dog runs.\n[1.0 - 2.0] It stops.\nSummary: A dog.", "A dog runs. It stops."),
        ("  ", ""),
    ],
)
def test_a_reader_of_the_whole_is_not_told_times_of_the_clip(caption: str, kept: str) -> None:
    assert description(caption) == kept


def test_nothing_is_compressed_for_a_judge_that_is_not_asked(videos) -> None:
    processor = Processor.from_pretrained(BACKBONE_FOLDER)
    plain = example_loader(processor, image_prompt="i", video_prompt="v", judged=False)(videos[0])
    shown = reader()(videos[0])
    assert plain.media.pictures == ()
    assert shown.media.pictures
    for ours, theirs in zip(plain.prompt.frames, shown.prompt.frames, strict=True):
        np.testing.assert_array_equal(ours, theirs)
