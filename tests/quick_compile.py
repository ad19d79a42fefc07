"""XLA's flags for programs that run a few times: compiling them takes longer than running them.

XLA's newer fusion emitters and LLVM's optimisation passes are most of the time it takes to compile a small
model for the CPU. ``conftest`` sets the flags for all tests; those that start a run as a user does leave them out.
"""

from __future__ import annotations

import os
import subprocess
import sys

FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
)


def set_flags() -> None:
    """Adds to XLA_FLAGS what this XLA knows of ``FLAGS``, for this process and those that it starts."""
    if FLAGS[0] in os.environ.get("XLA_FLAGS", ""):
        return  # by the process that started this one
    known = FLAGS
    # XLA ends a process that gives it a flag it does not know (any more): hence one to ask.
    if not _known(FLAGS):
        known = tuple(flag for flag in FLAGS if _known((flag,)))
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *known)).strip()


def flags() -> list[str]:
    """Those of ``FLAGS`` that are set: for processes that take nothing else over from XLA_FLAGS."""
    return [flag for flag in os.environ["XLA_FLAGS"].split() if flag in FLAGS]


def _known(flags: tuple[str, ...]) -> bool:
    environment = {**os.environ, "XLA_FLAGS": " ".join(flags)}
    asked = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"], env=environment, capture_output=True, check=False
    )
    return asked.returncode == 0
