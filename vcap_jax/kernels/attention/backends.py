"""Which kernel computes attention: chosen once, by name, and told from a compiled program afterwards.

"auto" is a rule about platform, type and head sizes and is logged; a name is a demand, and what cannot be met is an
error, never another kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jax.typing import DTypeLike

from vcap_jax.kernels.attention.chunked import CHUNKED
from vcap_jax.kernels.attention.cudnn import CuDNN
from vcap_jax.kernels.attention.decode import decode
from vcap_jax.kernels.attention.kernel import Kernel, UnsupportedAttention
from vcap_jax.kernels.attention.native import Native
from vcap_jax.kernels.attention.splash import Splash

logger = logging.getLogger(__name__)

Name = Literal["auto", "dense", "chunked", "native", "cudnn", "splash"]
NAMES: tuple[str, ...] = ("auto", "dense", "chunked", "native", "cudnn", "splash")

PLATFORMS = {"gpu": "cuda", "cuda": "cuda", "tpu": "tpu", "cpu": "cpu"}
"""What JAX calls the platforms of its devices, and what they are called here."""
OWN = {"cuda": "cudnn", "tpu": "splash", "cpu": "native"}
"""The kernel that belongs to a platform."""
CUSTOM_CALLS = {"cudnn": "__cudnn$fmha", "splash": "splash_m", "native": "vcap_attention_"}
"""What the kernels are called in a compiled program."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """All scores in memory, always: the reference."""

    name: str = "dense"
    decode = staticmethod(decode)

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Any type and size will do."""

    def parts(self, scores: int) -> None:
        del scores


def kernel(name: str) -> Kernel:
    """The kernel of that name, unchecked. Raises ValueError for a name that is none."""
    kernels: dict[str, Kernel] = {k.name: k for k in (Dense(), CHUNKED, Native(), CuDNN(), Splash())}
    if name not in kernels:
        raise ValueError(f"model.attention is {name!r}; it must be one of {', '.join(NAMES)}")
    return kernels[name]


def choose(name: str, *, platform: str, dtype: DTypeLike, head_sizes: Mapping[str, int]) -> Kernel:
    """The kernel for a model on a platform.

    Args:
        name: one of ``NAMES``.
        platform: of the devices, as JAX names it (``device.platform``): cpu, gpu or cuda, tpu.
        dtype: what the model computes in.
        head_sizes: of each part of the model that attends.

    "auto" takes the platform's own kernel: cuDNN, Splash, or the C++ one of CPUs. Where that cannot compute the model
    (cuDNN: float32, odd head sizes; C++: no compiler) it takes "chunked" and warns. A model that attends nowhere calls
    none, and gets "chunked", which no program is required to call.

    Raises:
        ValueError: no such name.
        UnsupportedAttention: a kernel asked for by name that the platform, type or a head size rules out.
    """
    platform = PLATFORMS.get(platform, platform)
    if name != "auto":
        chosen = kernel(name)
        home = {own: place for place, own in OWN.items()}.get(name, platform)
        if home != platform:
            raise UnsupportedAttention(
                f"model.attention is {name}, which runs on {home}, but the devices are {platform}; "
                f"set model.attention=auto ({OWN.get(platform, 'chunked')} there)"
            )
        _check(chosen, dtype, head_sizes)
    elif not head_sizes:
        chosen = kernel("chunked")
    else:
        chosen = kernel(OWN.get(platform, "chunked"))
        try:
            _check(chosen, dtype, head_sizes)
        except UnsupportedAttention as error:
            logger.warning("attention: the platform's own kernel cannot be used: %s", error)
            chosen = kernel("chunked")
    logger.info("attention: %s, on %s in %s", chosen.name, platform, jnp.dtype(dtype))
    return chosen


def _check(kernel: Kernel, dtype: DTypeLike, head_sizes: Mapping[str, int]) -> None:
    for part, size in head_sizes.items():
        try:
            kernel.check(dtype, size)
        except UnsupportedAttention as error:
            raise UnsupportedAttention(f"{error} (the {part} heads have size {size})") from error


def kernels_in(program: str) -> frozenset[str]:
    """Which platform kernels ("cudnn", "splash", "native") a compiled program really calls.

    Args:
        program: ``jit(f).lower(...).compile().as_text()``. Before compilation a kernel that is partitioned over
            devices is not to be seen yet.
    """
    return frozenset(name for name, call in CUSTOM_CALLS.items() if call in program)


def require_kernel(kernel: Kernel, program: str) -> None:
    """Raises UnsupportedAttention if a program does not contain the platform kernel that was chosen."""
    if kernel.name in CUSTOM_CALLS and kernel.name not in kernels_in(program):
        raise UnsupportedAttention(
            f"attention {kernel.name} was chosen, but the program contains no call of it: the fast path is not taken. "
            "That is a fault of the program; set model.attention=chunked to run without it"
        )
