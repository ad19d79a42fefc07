"""What the backward pass of a layer finds stored, and what it computes again.

Between layers the hidden states are always kept: D numbers per token and layer. Inside a layer of the 8B model
there are more than ten times as many, most of them in the MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, ParamSpec, TypeVar

import jax

from vcap_jax.kernels.attention.shared_prefix import LOG_SUM_EXP, OUTPUT

Remat = Literal["none", "layer", "attention", "dots", "dots_attention", "offload"]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LAYER_INPUT = "layer_input"
"""The name of the hidden states between layers."""

_OF_ATTENTION = jax.checkpoint_policies.save_only_these_names(OUTPUT, LOG_SUM_EXP)
_DOTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
_POLICIES: Mapping[str, Callable[..., bool] | None] = {
    "layer": None,
    "attention": _OF_ATTENTION,
    "dots": _DOTS,
    "dots_attention": jax.checkpoint_policies.save_from_both_policies(_DOTS, _OF_ATTENTION),
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[LAYER_INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}
NAMES: tuple[str, ...] = ("none", *_POLICIES)


def rematerialised(function: Callable[Arguments, Result], remat: str) -> Callable[Arguments, Result]:
    """``function``, the body of a scan over layers, under a policy:

    none: everything is stored. layer: nothing is, the whole layer runs a second time. attention: the output and
    log-sum-exp of attention are stored (H * d numbers and H float32 per token), so that everything but attention
    runs a second time. dots: the results of products with weights are stored; attention and what is
    cheap run a second time. dots_attention: both are stored, and what is cheap runs a second time, which on a CPU is
    quicker than storing it ("none"). offload: as "layer", and the hidden states between layers wait for the backward
    pass in the host's memory (2 * D bytes per token and layer each way: hidden behind the layers' products where these
    are long, as they are for long videos).

    Raises ValueError for a policy that does not exist.
    """
    if remat not in NAMES:
        raise ValueError(f"model.remat is {remat!r}; it must be one of {', '.join(NAMES)}")
    if remat == "none":
        return function
    # Inside a scan nothing can be merged across the checkpoint boundary, so no barrier is needed.
    return jax.checkpoint(function, prevent_cse=False, policy=_POLICIES[remat])
