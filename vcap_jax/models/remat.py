"""What the backward pass of a layer finds stored, and what it computes again.

Between layers the hidden states are always kept: D numbers per token and layer. Inside a layer of the 8B model
there are more than ten times as many, most of them in the MLP.

Of a second forward pass, attention is the most at the lengths of videos, and of the rest the MLP's first product: two
thirds of all products with weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, ParamSpec, TypeVar

import jax

from vcap_jax.kernels.attention.shared_prefix import LOG_SUM_EXP, OUTPUT

Remat = Literal[
    "none",
    "layer",
    "attention",
    "mlp",
    "dots",
    "dots_attention",
    "offload",
    "offload_attention",
    "offload_mlp",
]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LAYER_INPUT = "layer_input"
"""The name of the hidden states between layers."""
MLP_HIDDEN = "mlp_hidden"
"""The name of what the MLP's first product gives, before the activation."""


def _offloading(*names: str, saved: tuple[str, ...] = ()) -> Callable[..., bool]:
    """Keeps what has these names in the host's memory, and what is ``saved`` in the device's."""
    policy: Callable[..., bool] = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(saved),
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )
    return policy


_OF_ATTENTION = jax.checkpoint_policies.save_only_these_names(OUTPUT, LOG_SUM_EXP)
_DOTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
_POLICIES: Mapping[str, Callable[..., bool] | None] = {
    "layer": None,
    "attention": _OF_ATTENTION,
    "mlp": jax.checkpoint_policies.save_only_these_names(OUTPUT, LOG_SUM_EXP, MLP_HIDDEN),
    "dots": _DOTS,
    "dots_attention": jax.checkpoint_policies.save_from_both_policies(_DOTS, _OF_ATTENTION),
    "offload": _offloading(LAYER_INPUT),
    "offload_attention": _offloading(LAYER_INPUT, OUTPUT, saved=(LOG_SUM_EXP,)),
    "offload_mlp": _offloading(LAYER_INPUT, OUTPUT, saved=(LOG_SUM_EXP, MLP_HIDDEN)),
}
NAMES: tuple[str, ...] = ("none", *_POLICIES)


def offloads(remat: str) -> bool:
    """Whether hidden states between layers wait in the host's memory."""
    return remat.startswith("offload")


def offloads_attention(remat: str) -> bool:
    """Whether attention's output does too."""
    return remat in ("offload_attention", "offload_mlp")


def rematerialised(
    function: Callable[Arguments, Result], remat: str, *, in_turn: bool = False
) -> Callable[Arguments, Result]:
    """``function``, the body of a scan over layers, under a policy:

    none: everything is stored. layer: nothing is, the whole layer runs a second time. attention: the output and
    log-sum-exp of attention are stored (H * d numbers and H float32 per token), so that everything but attention
    runs a second time. mlp: these and the MLP's first product (twice its width of numbers per token). dots: the
    results of products with weights are stored; attention and what is cheap run a second time. dots_attention: both
    are stored, and what is cheap runs a second time, which on a CPU is quicker than storing it ("none"). offload: as
    "layer", and the hidden states between layers wait for the backward pass in the host's memory (2 * D bytes per
    token and layer each way: hidden behind the layers' products where these are long, as they are for long videos).
    offload_attention, offload_mlp: as "attention" and "mlp", and attention's output waits there beside the hidden
    states. What the MLP's first product gives stays on the device: there is too much of it to be copied in time.

    in_turn: for one of several layers in such a body. What it computes again waits for the gradient that it is needed
    for; else XLA may compute all of them again at once, and keep it all.

    Raises ValueError for a policy that does not exist.
    """
    if remat not in NAMES:
        raise ValueError(f"model.remat is {remat!r}; it must be one of {', '.join(NAMES)}")
    if remat == "none":
        return function
    # Inside a scan nothing can be merged across the checkpoint boundary, so for that no barrier is needed.
    return jax.checkpoint(function, prevent_cse=in_turn, policy=_POLICIES[remat])
