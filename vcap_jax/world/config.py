"""Settings of the embedded visual world."""

from __future__ import annotations

from dataclasses import dataclass, field

from vcap_jax.world.noisy_perception import PerceptionConfig


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """The embedded visual world, rendered into the run folder when no manifest is given.

    train_scenes, heldout_scenes: how many. seed: of the scenes (the held-out split is independent).
    judge_perception: only of the judge that the run starts itself; other judges have eyes of their own.
    """

    train_scenes: int = 1024
    heldout_scenes: int = 256
    seed: int = 0
    judge_perception: PerceptionConfig = field(default_factory=PerceptionConfig)

    def __post_init__(self) -> None:
        for name in ("train_scenes", "heldout_scenes"):
            if getattr(self, name) < 1:
                raise ValueError(f"world.{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"world.seed is {self.seed}: give a whole number from 0 to 2**32 - 1")
