"""The two splits of a run's scenes, rendered once."""

from __future__ import annotations

from pathlib import Path

from vcap_jax.world.config import WorldConfig
from vcap_jax.world.sampling import sample_scene
from vcap_jax.world.splits import prepare_embedded_data


def test_both_splits_are_rendered_once_and_a_killed_rendering_is_made_again(tmp_path: Path) -> None:
    world = WorldConfig(train_scenes=3, heldout_scenes=2, seed=5)
    data = prepare_embedded_data(tmp_path, "image", world)
    assert dict(data.train_scenes) == {f"train-{k:06d}": sample_scene("image", 5, k) for k in range(3)}
    assert dict(data.heldout_scenes) == {
        f"heldout-{k:06d}": sample_scene("image", 5, k, "heldout") for k in range(2)
    }
    (data.train.parent / "images" / "train-000000.png").unlink()
    assert prepare_embedded_data(tmp_path, "image", world) == data
    assert not (data.train.parent / "images" / "train-000000.png").exists(), "what is complete is left alone"
    data.train.parent.rename(tmp_path / ".train.partial")
    assert prepare_embedded_data(tmp_path, "image", world) == data
    assert (data.train.parent / "images" / "train-000000.png").exists()
