"""What a result depends on beside its configuration: the starting policy, the world's rules, and the code."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np

from vcap_jax import __version__
from vcap_jax.studies.arms import MODALITIES
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.captions import full_caption, weak_caption
from vcap_jax.world.facts import count_facts
from vcap_jax.world.sampling import sample_scene

_SCENES = 16
"""Of each modality, that the world is known by."""


@functools.cache
def policy_digest() -> str:
    """Of the starting policy that comes with the package."""
    weights = (BACKBONE_FOLDER / "model.safetensors").read_bytes()
    return hashlib.blake2b(weights, digest_size=8).hexdigest()


@functools.cache
def world_digest() -> str:
    """Of the world's rules: which scenes there are, how captions are worded and how their facts are counted. How scenes
    are drawn is not in it."""
    told: list[object] = []
    for modality in MODALITIES:
        for index in range(_SCENES):
            scene = sample_scene(modality, 0, index, "heldout")
            rng = np.random.default_rng(index)
            captions = [full_caption(scene, rng), weak_caption(scene, rng)]
            counted = [asdict(count_facts(scene, caption)) for caption in captions]
            told.append([repr(scene), captions, counted])
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()


@functools.cache
def code_version() -> str:
    """Of this package, in a clone with the commit, and a "+" where its files differ from that."""
    root, told = Path(__file__).resolve().parents[2], f"VCap-JAX {__version__}"
    if not (root / ".git").exists():
        return told
    describe = ["git", "-C", str(root), "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git
        return told
    return told if done.returncode else f"{told} at {done.stdout.strip()}"
