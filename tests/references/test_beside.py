"""Questions beside the request: who is asked what, and where the answers go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tests.captioning.server import Captioning, served
from tests.references.test_by_endpoint import config_for, writer
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.data.examples import example_loader
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.data.media import TimeWindow
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.references.beside import Asking, WindowDraw, description, with_answers
from vcap_jax.references.writing import write_pool
from vcap_jax.reward.config import LocalConfig
from vcap_jax.run.config import ReferenceConfig, RunConfig
from vcap_jax.world.asking import read_question
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.dataset import write_dataset
from vcap_jax.world.image_grammar import parse_image
from vcap_jax.world.video_grammar import parse_video
from vcap_jax.world.vocabulary import CAMERA

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [Sample(id=f"s{i}", images=(Path(f"{i}.png"),), prompt="Its own.") for i in range(300)]
ASKING = Asking(questions=("a?", "b?", "c?", "d?"), each=2)


def test_each_sample_is_asked_some_of_the_questions_in_their_order() -> None:
    items = ASKING.items(SAMPLES, seed=1)
    assert len(items) == 600
    assert [item.id for item in items[:3]] == ["s0?0", "s0?1", "s1?0"]
    for one, other in zip(items[::2], items[1::2], strict=True):
        assert one.images == other.images
        assert (one.prompt or "") < (other.prompt or "")
    pairs = Counter((one.prompt, other.prompt) for one, other in zip(items[::2], items[1::2], strict=True))
    assert len(pairs) == 6
    assert min(pairs.values()) > 30, "50 are expected of each pair"


def test_a_samples_questions_depend_on_its_id_and_the_seed_alone() -> None:
    items = ASKING.items(SAMPLES, seed=1)
    assert ASKING.items(SAMPLES[7:9], seed=1) == items[14:18]
    assert ASKING.items(SAMPLES, seed=2) != items


def test_by_default_nothing_is_asked_and_without_a_number_everything() -> None:
    assert Asking.of(ReferenceConfig()) is None
    every = Asking.of(ReferenceConfig(questions=("a?", "b?")))
    assert every == Asking(questions=("a?", "b?"), each=2)


def test_more_questions_than_there_are_and_empty_ones_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"questions_per_sample is 2, and references\.questions has 1"):
        load_config(RunConfig, [], ["references={questions: ['a?'], questions_per_sample: 2}"])
    with pytest.raises(ConfigError, match="one without text"):
        load_config(RunConfig, [], ["references.questions=['a?', ' ']"])
    with pytest.raises(ConfigError, match=r"references\.segment_prompt has no text"):
        load_config(RunConfig, [], ["references.segment_prompt=' '"])


@pytest.mark.parametrize(
    ("modality", "fragment", "questions", "each"),
    [("image", "places", 9, 3), ("video", "clip_places", 12, 4), ("video", "clip_places_and_camera", 15, 6)],
)
def test_the_fragments_ask_about_some_of_the_places(
    modality: Literal["image", "video"], fragment: str, questions: int, each: int
) -> None:
    files = [f"configs/embedded/{modality}.yaml", f"configs/references/{fragment}.yaml"]
    config = load_config(RunConfig, [ROOT / file for file in files], [])
    asking = Asking.of(config.references)
    assert asking is not None
    assert len(set(asking.questions)) == questions
    assert asking.each == each
    # The embedded world reads each as what it asks for: a place, or what the camera does.
    thirds = [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0)]
    for question in asking.questions:
        if (asked := read_question(question)) is not None:
            assert (asked.slot, asked.span in thirds) == (CAMERA, True)
            continue
        line = f"{question} Nothing."
        empty = parse_image(line).empty if modality == "image" else parse_video(line).empty(thirds)
        assert len(empty) == 1


def test_answers_that_are_lacking_are_made_up_for_by_the_last() -> None:
    assert with_answers(("A.", "B."), [("1.", "2."), ("3.",)]) == ("A.\n1.\n3.", "B.\n2.\n3.")
    assert with_answers(("A.",), []) == ("A.",)


def test_a_served_model_is_asked_and_its_answers_are_in_the_references(tmp_path: Path) -> None:
    samples = read_manifest(write_dataset(tmp_path / "data", "image", "served", 2, 0))
    config = load_config(
        RunConfig, [], ["references.questions=['What is at the left?', 'What is at the right?']"]
    )
    captioning = Captioning()
    with served(captioning) as url:
        with writer(config_for("image"), url, samples) as one:
            plain = write_pool(tmp_path / "plain.jsonl", one, samples)
        asked_before = len(captioning.bodies)
        with writer(config, url, samples) as one:
            pool = write_pool(tmp_path / "pool.jsonl", one, samples)
    assert plain is not None
    assert pool is not None
    prompts = Counter(body["messages"][0]["content"][-1]["text"] for body in captioning.bodies[asked_before:])
    assert prompts["What is at the left?"] == prompts["What is at the right?"] == 2
    assert sum(prompts.values()) == 6
    for entry in pool.entries():
        assert entry.references[0].count("Picture ") == 3
        _, left, right = entry.references[0].split("\n")
        assert left.startswith("What is at the left? Picture ")
        assert right.startswith("What is at the right? Picture ")
    assert pool.header is not None
    assert pool.header.provenance.settings["questions_per_sample"] == 2
    # A pool of answers without their questions, as they once were, is another pool.
    assert pool.header.provenance.settings["questions_told"] is True


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
