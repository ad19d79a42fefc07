"""What is compiled before the first step."""

from __future__ import annotations

import time
from functools import partial

from vcap_jax.kernels.attention import require_decoding
from vcap_jax.models.buckets import Buckets
from vcap_jax.run.context import RunContext

_FEW_SIZES = 16
"""Of prompts, for which decoding is compiled before the first step: each has programs of its own, and takes minutes."""


def prompt_sizes(buckets: Buckets) -> tuple[int, ...]:
    """The padded lengths that a prompt may have, ascending; none where they are unbounded or more than a few."""
    if buckets.tokens or not buckets.max_tokens:
        return buckets.tokens
    multiple, longest = buckets.token_multiple, buckets.max_tokens
    if longest > multiple * _FEW_SIZES:
        return ()
    ends = range(multiple, longest + multiple, multiple)
    return tuple(buckets.fit("tokens", min(end, longest)) for end in ends)


def compile_decoding(ctx: RunContext) -> None:
    """Compiles the decode programs before the first step, if the sizes of prompts are known.

    Which shapes a step needs follows from how its captions end. Without this, some would be compiled
    in the middle of the run. Raises UnsupportedAttention if one lacks the kernel for new tokens that was chosen.
    """
    rollout = ctx.config.rollout
    # Of one program for each size the first call compiles it.
    if rollout.engine != "jax" or (rollout.shrink == 1 and not rollout.short_groups):
        return
    sizes = prompt_sizes(ctx.config.data.buckets)
    if not sizes:
        ctx.say(
            "prompts may have too many padded lengths to compile decoding for all of them now: it is compiled as they "
            "come. Name a few in data.buckets.tokens, or give data.buckets.max_tokens and a larger token_multiple"
        )
        return
    begin = time.monotonic()
    own = ctx.own_policy
    check = partial(require_decoding, own.merge().kernel)
    count = ctx.sampler.warm(own.trainable, own.frozen, sizes, check)
    if count:
        ctx.say(f"{count} decode programs compiled in {time.monotonic() - begin:.0f} s")
