"""Options of XLA's compilers that the programs of a model are compiled with."""

from __future__ import annotations

import functools
import logging

import jax

logger = logging.getLogger(__name__)

CPU = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""XLA's CPU backend joins products and sums with what surrounds them and hands them to a library, YNNPACK; this
leaves them to XLA, which is quicker for whole sequences. The sum over tokens of a product of
three arrays, a norm's gradient, takes the library 10 ms for 2,624 x 256 numbers and XLA less than 1. Decoding,
whose products have few rows, keeps the library."""


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
