"""Compiler options for programs that a test runs once: compiling them takes longer than running them.

XLA's newer fusion emitters and LLVM's optimisation passes are most of the time it takes to compile a small
model for the CPU. Options that a later XLA does not know any more are left out.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

_CHOICES: tuple[dict[str, Any], ...] = (
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
)


@functools.cache
def options() -> dict[str, Any]:
    """For ``jax.jit(..., compiler_options=options())``."""
    for choice in _CHOICES:
        try:
            jax.jit(lambda x: x + 1, compiler_options=choice)(0.0)
        except jax.errors.JaxRuntimeError:
            continue
        return choice
    return {}
