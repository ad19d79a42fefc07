"""Settings of trackers, and what each needs to be installed."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from typing import Literal

from vcap_jax.configuration import ConfigError, settings

TrackerName = Literal["tensorboard", "wandb", "trackio"]

PACKAGES: Mapping[TrackerName, str] = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}
"""The package of each: its name to import and to install."""


@settings
class TrackersConfig:
    """Dashboards that get metrics, evaluations and sample pictures, beside the run folder."""

    use: tuple[TrackerName, ...] = ()
    """Any of tensorboard (event files in RUN/tensorboard), wandb (Weights & Biases; its own
    environment variables hold, such as WANDB_MODE=offline) and trackio (local; TRACKIO_DIR names
    another folder). Each needs its package."""
    project: str = "vcap"
    """Project of wandb and trackio. The run's name there is that of its folder, in trackio with an
    id behind it."""
    group: str | None = None
    """Group of runs in wandb and trackio."""


def check_trackers(config: TrackersConfig) -> None:
    """Raises ConfigError for a tracker whose package is not installed, and for one that is named twice."""
    if len(set(config.use)) < len(config.use):
        raise ConfigError(f"trackers.use is {list(config.use)}: name each once")
    missing = [PACKAGES[name] for name in config.use if importlib.util.find_spec(PACKAGES[name]) is None]
    if missing:
        install = f"{shlex.quote(sys.executable)} -m pip install {' '.join(missing)}"
        raise ConfigError(f"trackers.use needs {' and '.join(missing)}, not installed here: {install}")
