"""Scenes and their pictures are kept, and found as they were drawn."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.recipes.teaching.prompter import processor
from vcap_jax.recipes.teaching import pupil as module
from vcap_jax.recipes.teaching.drawn import SEED, draw, scene_pixels
from vcap_jax.recipes.teaching.pupil import Spread
from vcap_jax.world.dataset import render, sample_scene
from vcap_jax.world.tiny_policy import Prompts


class _InThisProcess:
    """In place of a pool: starting processes takes longer than the scenes."""

    def Pool(self) -> _InThisProcess:
        return self

    def __enter__(self) -> _InThisProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, function, jobs, chunksize: int):
        return [function(job) for job in jobs]


def test_what_was_drawn_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.multiprocessing, "get_context", lambda kind: _InThisProcess())
    prompts = Prompts(processor(), "image")
    drawn = module.scenery(prompts, "test", 3, tmp_path)
    assert list(drawn.scenes) == [sample_scene("image", SEED, index, "test") for index in range(3)]
    for scene, patches in zip(drawn.scenes, drawn.patches, strict=True):
        assert (patches == prompts.patches(render(scene))).all()
    monkeypatch.setattr(module, "draw", None)  # nothing is drawn twice
    again = module.scenery(prompts, "test", 3, tmp_path)
    assert list(again.scenes) == list(drawn.scenes)
    assert (again.patches == drawn.patches).all()


def test_a_clip_goes_through_its_file() -> None:
    scene, pixels = draw(("video", "test", 0))
    assert pixels.shape == (12, 96, 96, 3)
    exact = render(scene).astype(int)
    assert 0 < np.abs(exact - pixels).mean() < 4
    assert (scene_pixels(scene) == pixels).all()


@pytest.mark.parametrize(("rows", "own"), [(8, 4), (5, 5)])
def test_rows_of_a_batch_on_each_of_two_devices(rows: int, own: int) -> None:
    batch = {"a": np.arange(rows), "b": np.ones((rows, 3))}
    placed = Spread(jax.devices()[:2]).batch(batch)
    jax.tree.map(np.testing.assert_array_equal, placed, batch)
    for leaf in jax.tree.leaves(placed):
        assert [len(shard.data) for shard in leaf.addressable_shards] == [own, own]


def test_what_was_on_all_devices_comes_to_one() -> None:
    spread = Spread(jax.devices()[:2])
    everywhere = spread.whole({"a": np.arange(3)})["a"]
    assert len(everywhere.devices()) == 2
    assert spread.alone(everywhere).devices() == {jax.devices()[0]}
