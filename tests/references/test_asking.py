"""Questions beside the request: who is asked what, and where the answers go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.captioning.server import Captioning, served
from tests.references.test_by_endpoint import config_for, writer
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.references.asking import Asking, with_answers
from vcap_jax.references.writing import write_pool
from vcap_jax.run.config import ReferenceConfig, RunConfig
from vcap_jax.world.dataset import write_dataset

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [Sample(id=f"s{i}", images=(Path(f"{i}.png"),), prompt="Its own.") for i in range(300)]
ASKING = Asking(questions=("a?", "b?", "c?", "d?"), each=2)


def test_each_sample_is_asked_some_of_the_questions_in_their_order() -> None:
    items = ASKING.items(SAMPLES, seed=1, skip=0)
    assert len(items) == 600
    assert [item.id for item in items[:3]] == ["s0?0", "s0?1", "s1?0"]
    for one, other in zip(items[::2], items[1::2], strict=True):
        assert one.images == other.images
        assert (one.prompt or "") < (other.prompt or "")
    pairs = Counter((one.prompt, other.prompt) for one, other in zip(items[::2], items[1::2], strict=True))
    assert len(pairs) == 6
    assert min(pairs.values()) > 30, "50 are expected of each pair"


def test_a_samples_questions_depend_on_its_id_and_the_seed_alone() -> None:
    items = ASKING.items(SAMPLES, seed=1, skip=0)
    assert ASKING.items(SAMPLES[7:9], seed=1, skip=1) == items[15:18]
    assert ASKING.items(SAMPLES, seed=2, skip=0) != items


def test_by_default_nothing_is_asked_and_without_a_number_everything() -> None:
    assert Asking.of(ReferenceConfig()) is None
    every = Asking.of(ReferenceConfig(questions=("a?", "b?")))
    assert every == Asking(questions=("a?", "b?"), each=2)


def test_more_questions_than_there_are_and_empty_ones_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"questions_per_sample is 2, and references\.questions has 1"):
        load_config(RunConfig, [], ["references={questions: ['a?'], questions_per_sample: 2}"])
    with pytest.raises(ConfigError, match="one without text"):
        load_config(RunConfig, [], ["references.questions=['a?', ' ']"])


def test_the_fragment_asks_about_three_of_nine_places() -> None:
    files = ["configs/embedded/image.yaml", "configs/references/places.yaml"]
    asking = Asking.of(load_config(RunConfig, [ROOT / file for file in files], []).references)
    assert asking is not None
    assert len(set(asking.questions)) == 9
    assert asking.each == 3


def test_answers_that_are_lacking_are_made_up_for_by_the_last() -> None:
    assert with_answers(("A.", "B."), [("1.", "2."), ("3.",)]) == ("A. 1. 3.", "B. 2. 3.")
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
    assert pool.header is not None
    assert pool.header.provenance.settings["questions_per_sample"] == 2
