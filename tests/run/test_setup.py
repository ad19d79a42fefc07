"""What every command begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.configuration import load_config
from vcap_jax.data.errors import ManifestError
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.setup import heldout_samples, prepare
from vcap_jax.world.dataset import write_dataset


def test_a_scene_that_is_trained_on_is_not_held_out(tmp_path: Path) -> None:
    """Here of another run's folder: scenes of one seed have the same ids, and look the same."""
    other = write_dataset(tmp_path / "other", "image", "train", 1, seed=0)
    settings = [f"data.heldout={other}", "world.train_scenes=2", "world.heldout_scenes=1"]
    config = load_config(RunConfig, [], settings)
    with pytest.raises(
        ManifestError, match=r"the id of the held-out sample 'train-000000' .* trained on: name other"
    ):
        prepare(config, RunFolder(tmp_path / "run"), lambda _: None)


def test_what_is_held_out_is_of_the_runs_modality(tmp_path: Path) -> None:
    manifest = tmp_path / "heldout.jsonl"
    manifest.write_text('{"id": "a", "image": "a.png"}\n{"id": "b", "video": "b.mp4"}\n')
    for modality, held in (("image", ["a"]), ("video", ["b"])):
        config = load_config(RunConfig, [], [f"modality={modality}", f"data.heldout={manifest}"])
        assert [sample.id for sample in heldout_samples(config)] == held
