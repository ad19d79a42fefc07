"""Settings of the embedded visual world."""

from __future__ import annotations

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.embedded_world.noisy_perception import PerceptionConfig


@settings
class WorldConfig:
    """The embedded visual world, rendered into the run folder when no manifest is given."""

    train_scenes: int = Field(default=1024, ge=1)
    """Scenes that are trained on."""
    heldout_scenes: int = Field(default=256, ge=1)
    """Scenes that are held out, to be evaluated on."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the scenes (the held-out split is independent)."""
    judge_perception: PerceptionConfig = Field(default_factory=PerceptionConfig)
    """Only of the judge that the run starts itself; other judges have eyes of their own."""
