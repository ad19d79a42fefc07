"""What a plan is made of: the programs of a step, and what is in memory beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jax.stages import Lowered

from vcap_jax.plan.lengths import Decoding
from vcap_jax.rollout.config import Offloaded

FORWARD = "log-probabilities"
"""The program that is one forward pass of a micro-batch's tokens."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One program of a step.

    phase: what else is in memory, "rollout" or "update". lower: gives the lowered program. count: how often a step runs
    it; for decoding, a token of all captions of a batch. arguments: bytes per device that only this program is given.
    kept: whether its results are among what stays in memory. attention: whether an attention kernel belongs in it;
    decoding: whether that for new tokens does. rounds: of one call's loop; where there are several, ``count`` counts
    rounds. looks: how often that loop sees whether it goes on, ``None``: in every round. seen: see ``Counter``. moved:
    bytes per device that must move in one run (one round) however it is done: what is read is read once, what is
    written is written once, and nothing in between leaves the chip. forwards: where that is known, the forward passes
    of the same tokens (``FORWARD``) whose operations it takes at the least.
    """

    name: str
    phase: str
    lower: Callable[[], Lowered]
    count: float
    arguments: int = 0
    kept: bool = False
    attention: bool = False
    decoding: bool = False
    rounds: int = 1
    looks: int | None = None
    seen: float = 1.0
    moved: int = 0
    forwards: int | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step's programs, how its captions are decoded, and the bytes per device that stay in memory through each phase,
    by what they are. waiting: those that lie in the host's memory through the rollout instead; send: lowers a program
    that takes them there."""

    work: tuple[Work, ...]
    decoding: Decoding
    resident: Mapping[str, Mapping[str, int]]
    waiting: Mapping[Offloaded, int]
    send: Callable[[], Lowered]
