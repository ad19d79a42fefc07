"""A run's context without policy, devices and sampler, for what needs none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext


def bare_context(
    config: RunConfig,
    root: Path,
    *,
    say: Callable[[str], None] = lambda _: None,
    processes: Processes = ALONE,
) -> RunContext:
    """Of the run in ``root``."""
    nothing: Any = None
    return RunContext(config, RunFolder(root), *[nothing] * 3, say=say, processes=processes)
