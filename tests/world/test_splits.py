"""The two splits of a run's scenes, rendered once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vcap_jax.world.config import WorldConfig
from vcap_jax.world.dataset import ScenesError, sample_scene
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


@pytest.mark.parametrize(
    ("modality", "world"),
    [
        ("video", WorldConfig(train_scenes=2, heldout_scenes=1)),
        ("image", WorldConfig(train_scenes=3, heldout_scenes=1)),
        ("image", WorldConfig(train_scenes=2, heldout_scenes=2)),
        ("image", WorldConfig(train_scenes=2, heldout_scenes=1, seed=1)),
    ],
)
def test_a_folder_of_other_scenes_is_refused(tmp_path: Path, modality: str, world: WorldConfig) -> None:
    """As where two pools of references go into one folder: their scenes have the same ids."""
    prepare_embedded_data(tmp_path, "image", WorldConfig(train_scenes=2, heldout_scenes=1))
    with pytest.raises(ScenesError, match=r"holds . other scenes than . \w+s of world\.seed"):
        prepare_embedded_data(tmp_path, modality, world)


def test_of_several_that_come_at_once_one_renders(tmp_path: Path) -> None:
    """As the shares of a pool do (``--shard``)."""
    world = WorldConfig(train_scenes=8, heldout_scenes=2)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: prepare_embedded_data(tmp_path / "data", "image", world), range(4)))
    assert all(one == found[0] for one in found)
    assert len(found[0].train_scenes) == 8
