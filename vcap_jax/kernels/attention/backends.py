"""Which kernels compute attention: chosen once, by name, and told from a compiled program afterwards.

There is one for whole sequences and one for the new tokens of captions. "auto" is a rule about platform, type and head
sizes and is logged; a name is a demand, and what cannot be met is an error, never another kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vcap_jax.kernels.attention.chunked import CHUNKED
from vcap_jax.kernels.attention.cudnn import CuDNN
from vcap_jax.kernels.attention.decode import decode
from vcap_jax.kernels.attention.hopper import Hopper
from vcap_jax.kernels.attention.kernel import Cached, Kernel, Parts, TokenKernel, UnsupportedAttention
from vcap_jax.kernels.attention.native import Native
from vcap_jax.kernels.attention.splash import Splash
from vcap_jax.kernels.attention.tpu_decode import TpuDecode

logger = logging.getLogger(__name__)

Array = jax.Array

Name = Literal["auto", "dense", "chunked", "native", "cudnn", "splash"]
DecodingName = Literal["auto", "dense", "native", "hopper", "tpu"]

PLATFORMS = {"gpu": "cuda", "cuda": "cuda", "tpu": "tpu", "cpu": "cpu"}
"""What JAX calls the platforms of its devices, and what they are called here."""
OWN = {"cuda": "cudnn", "tpu": "splash", "cpu": "native"}
"""The kernel that belongs to a platform."""
OWN_DECODING = {"cuda": "hopper", "tpu": "tpu", "cpu": "native"}
"""The kernel for new tokens that belongs to a platform."""
HOPPER = "9.0"
"""The compute capability of the GPUs that have that kernel's instructions; those after it have others."""
CUSTOM_CALLS = {"cudnn": "__cudnn$fmha", "splash": "splash_m", "native": "vcap_attention_"}
"""What the kernels are called in a compiled program."""
DECODING_CALLS = {"hopper": "vcap_decode_", "tpu": "vcap_decode_", "native": "vcap_attention_decode"}
"""What the kernels for new tokens are called there."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """All scores in memory, always: the reference."""

    name: str = "dense"
    decoding: str = "dense"
    range_block = None
    decode = staticmethod(decode)

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Any type and size will do."""

    def parts(self, scores: int) -> None:
        del scores


@dataclass(frozen=True, kw_only=True)
class Paired:
    """One kernel for whole sequences, another for new tokens."""

    sequences: Kernel
    tokens: TokenKernel

    @property
    def name(self) -> str:
        return self.sequences.name

    @property
    def decoding(self) -> str:
        return self.tokens.name

    @property
    def range_block(self) -> int | None:
        return self.tokens.range_block

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Of whole sequences."""
        self.sequences.check(dtype, head_size)

    def parts(self, scores: int) -> Parts | None:
        return self.sequences.parts(scores)

    def decode(self, queries: Array, prompt: Cached, captions: Cached) -> Array:
        return self.tokens.decode(queries, prompt, captions)


def kernel(name: str) -> Kernel:
    """The kernel of that name, unchecked. Raises ValueError for a name that is none."""
    kernels: dict[str, Kernel] = {k.name: k for k in (Dense(), CHUNKED, Native(), CuDNN(), Splash())}
    if name not in kernels:
        raise ValueError(f"model.attention is {name!r}; it must be one of {', '.join(get_args(Name))}")
    return kernels[name]


def choose(name: str, *, platform: str, dtype: DTypeLike, head_sizes: Mapping[str, int]) -> Kernel:
    """The kernel for a model on a platform.

    name: one of ``Name``. platform: of the devices, as JAX names it (``device.platform``): cpu, gpu or cuda, tpu.
    dtype: what the model computes in. head_sizes: of each part of the model that attends.

    "auto" takes the platform's own kernel: cuDNN, Splash, or the C++ one of CPUs. Where that cannot compute the model
    (cuDNN: float32, odd head sizes; C++: no compiler) it takes "chunked" and warns. A model that attends nowhere calls
    none, and gets "chunked", which no program is required to call.

    Raises ValueError for no such name, UnsupportedAttention for a kernel asked for by name that the platform, type or a
    head size rules out.
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


def check_tensor(name: str, tensor: int) -> None:
    """Raises UnsupportedAttention for a kernel of whole sequences that cannot be computed with heads cut over
    ``mesh.tensor`` devices: JAX's partitioning of cuDNN's attention does not compile for them in prefill."""
    if name == "cudnn" and tensor > 1:
        raise UnsupportedAttention(
            f"mesh.tensor is {tensor}, and model.attention cudnn cannot be cut that way; set mesh.tensor=1, or "
            "model.attention=chunked"
        )


def token_kernel(name: str) -> TokenKernel:
    """The kernel for new tokens of that name, unchecked. Raises ValueError for a name that is none."""
    kernels: dict[str, TokenKernel] = {k.name: k for k in (Dense(), Native(), Hopper(), TpuDecode())}
    if name not in kernels:
        raise ValueError(
            f"model.decode_attention is {name!r}; it must be one of {', '.join(get_args(DecodingName))}"
        )
    return kernels[name]


def choose_decoding(
    name: str,
    chosen: Kernel,
    *,
    platform: str,
    dtype: DTypeLike,
    head_sizes: Mapping[str, int],
    capability: str | None = None,
) -> Kernel:
    """``chosen`` (see ``choose``) with the kernel for new tokens of that name.

    name: one of ``DecodingName``. platform, dtype, head_sizes: as ``choose`` takes them. capability: of a GPU, its
    compute capability ("9.0").

    "auto" takes the platform's own where ``chosen`` is the platform's own and the device has it: on Hopper GPUs and
    TPUs a kernel of this package, on CPUs the C++; elsewhere, and for head sizes that it does not take, plain products.

    Raises ValueError and UnsupportedAttention as ``choose``, for the device too.
    """
    platform = PLATFORMS.get(platform, platform)
    heads = {part: size for part, size in head_sizes.items() if part != "vision"}  # which has no new tokens
    if name != "auto":
        tokens = token_kernel(name)
        home = {own: place for place, own in OWN_DECODING.items()}.get(name, platform)
        if home != platform or (name == "hopper" and capability != HOPPER):
            here = f"{platform} of compute capability {capability}" if capability else platform
            place = "Hopper GPUs" if name == "hopper" else home
            raise UnsupportedAttention(
                f"model.decode_attention is {name}, which runs on {place}, but the devices are {here}; set "
                "model.decode_attention=auto"
            )
        _check(tokens, dtype, heads)
    elif not heads or chosen.name != OWN.get(platform) or (platform == "cuda" and capability != HOPPER):
        tokens = token_kernel(chosen.decoding)
    else:
        tokens = token_kernel(OWN_DECODING[platform])
        try:
            _check(tokens, dtype, heads)
        except UnsupportedAttention as error:
            logger.warning("attention of new tokens: the platform's own kernel cannot be used: %s", error)
            tokens = token_kernel(chosen.decoding)
    logger.info("attention of new tokens: %s, on %s in %s", tokens.name, platform, jnp.dtype(dtype))
    return chosen if tokens.name == chosen.decoding else Paired(sequences=chosen, tokens=tokens)


def _check(kernel: TokenKernel, dtype: DTypeLike, head_sizes: Mapping[str, int]) -> None:
    for part, size in head_sizes.items():
        try:
            kernel.check(dtype, size)
        except UnsupportedAttention as error:
            raise UnsupportedAttention(f"{error} (the {part} heads have size {size})") from error


def kernels_in(program: str) -> frozenset[str]:
    """Which platform kernels ("cudnn", "splash", "native", and for new tokens "hopper", "tpu") a compiled program
    really calls.

    program: ``jit(f).lower(...).compile().as_text()``. Before compilation a kernel that is partitioned over
        devices is not to be seen yet.
    """
    found = {name for name, call in CUSTOM_CALLS.items() if call in program}
    if DECODING_CALLS["tpu"] in program:
        found.add("tpu" if "tpu_custom_call" in program else "hopper")
    return frozenset(found)


def require_kernel(kernel: Kernel, program: str) -> None:
    """Raises UnsupportedAttention if a program does not contain the platform kernel that was chosen."""
    if kernel.name in CUSTOM_CALLS and kernel.name not in kernels_in(program):
        raise UnsupportedAttention(
            f"attention {kernel.name} was chosen, but the program contains no call of it: the fast path is not taken. "
            "That is a fault of the program; set model.attention=chunked to run without it"
        )


def require_decoding(kernel: Kernel, program: str) -> None:
    """Raises UnsupportedAttention if a program that decodes lacks the kernel for new tokens that was chosen.

    program: lowered or compiled.
    """
    call = DECODING_CALLS.get(kernel.decoding)
    if call is not None and call not in program:
        raise UnsupportedAttention(
            f"attention of new tokens by {kernel.decoding} was chosen, but the program contains no call of it. That is "
            "a fault of the program; set model.decode_attention=dense to run without it"
        )
