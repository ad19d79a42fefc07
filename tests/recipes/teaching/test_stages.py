"""A jittered picture is the picture, moved by whole pixels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recipes.teaching.prompter import processor
from vcap_jax.recipes.teaching import stages
from vcap_jax.world.dataset import render, sample_scene
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tiny_policy import Prompts


@pytest.mark.parametrize("modality", ["image", "video"])
def test_every_picture_is_moved_as_a_whole(modality: Modality, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the processor's patches of pictures that were moved before it."""
    monkeypatch.setattr(stages, "_GAIN", 0.0)
    prompts = Prompts(processor(), modality)
    pictures = [render(sample_scene(modality, 0, index, "test")) for index in range(4)]
    patches = np.stack([prompts.patches(picture) for picture in pictures])
    moved = stages.jittered(patches, prompts.grid[1:], 2, np.random.default_rng(0))
    ways = set()
    for picture, found in zip(pictures, moved, strict=True):
        pad = [(0, 0)] * (picture.ndim - 3) + [(2, 2), (2, 2), (0, 0)]
        wide, edge = np.pad(picture, pad, mode="edge"), picture.shape[-2]
        fitting = [
            (y, x)
            for y in range(5)
            for x in range(5)
            if (prompts.patches(wide[..., y : y + edge, x : x + edge, :]) == found).all()
        ]
        assert len(fitting) == 1
        ways |= set(fitting)
    assert len(ways) > 1


def test_channels_become_a_little_brighter_or_darker() -> None:
    grey = np.full((50, 1, 64, 768), 100, np.uint8)
    lit = stages.jittered(grey, (4, 4), 0, np.random.default_rng(0)).reshape(50, 64, 3, 256)
    assert (lit == lit[:, :1, :, :1]).all()
    assert lit.min() == 97
    assert lit.max() == 103
