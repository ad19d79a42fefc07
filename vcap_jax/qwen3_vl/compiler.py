"""Options of XLA's compilers that the programs of a model are compiled with."""

from __future__ import annotations

import functools
import logging

import jax

logger = logging.getLogger(__name__)

CPU = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
"""XLA's CPU backend hands fused sums to a library as well as products. The sum over tokens of a product of three
arrays, which is a norm's gradient, takes that 10 ms for 2,624 x 256 numbers, and XLA itself less than 1."""


@functools.cache
def options(platform: str) -> dict[str, str]:
    """For programs on a platform, as JAX names it; none where the installed XLA does not know them."""
    if platform != "cpu":
        return {}
    try:
        jax.jit(lambda x: x + 1, compiler_options=CPU).lower(0.0).compile()
    except jax.errors.JaxRuntimeError as error:
        # They are XLA's experimental ones, and what they mend may have been mended.
        logger.info("compiler options that this XLA does not know are left out: %s", error)
        return {}
    return CPU
