"""Runs inside a larger undertaking: several run folders over the same data."""

from __future__ import annotations

import os

from vcap_jax.config import RunConfig
from vcap_jax.report.run_folder import RunFolder

STAGE_MAY_DIFFER = ("logging", "judge", "data.references", "sft.captions")
"""Of a stage that is resumed. The folder of the whole may have moved, or be named from elsewhere: which captions a
stage began with is known by their digest (``references.remember_pool``), not by their path."""


def share_world(config: RunConfig, whole: RunFolder, stage: RunFolder) -> None:
    """Lets a stage use the embedded world of the whole, which is then rendered once; a manifest needs nothing."""
    if config.data.manifest is None and not stage.data.exists():
        whole.data.mkdir(parents=True, exist_ok=True)
        stage.data.symlink_to(os.path.relpath(whole.data, stage.root), target_is_directory=True)
