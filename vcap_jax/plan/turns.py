"""Servers that take turns with the policy on its devices: what memory they find, and what changing turns costs.

Counted, not compiled. JAX gives no memory back, so it has a fixed share of every device, the one that its programs need
at their peak, and the servers have what is left of it in turns: each all of it. A server stands on every device. A
judge of the policy's own size is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from vcap_jax.plan.abstract import Model, parameters_anywhere
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Hardware
from vcap_jax.system.sleep_mode import PINNED


@dataclass(frozen=True, kw_only=True)
class Turns:
    """judge, rollout: which of the two takes turns. policy: bytes of a device that JAX needs at its peak. share: of a
    device that JAX is given; None takes as much as it needs. weights: bytes of a server's. hardware: of all of them."""

    judge: bool
    rollout: bool
    policy: int
    share: float | None
    weights: int
    hardware: Hardware

    def beside(self, peaks: Mapping[str, Sequence[int]]) -> Turns:
        """The same turns beside a policy with these peaks, see ``turns_of``."""
        phases = ["update"] if self.rollout else ["rollout", "update"]
        needed = max((peak for phase in phases for peak in peaks.get(phase, ())), default=0)
        return replace(self, policy=needed)

    @property
    def policy_share(self) -> float:
        """Of each device's memory, what JAX keeps; in hundredths."""
        needed = math.ceil(100 * self.policy / self.hardware.chip.memory) / 100
        return needed if self.share is None else self.share

    @property
    def server_share(self) -> float:
        """Of each device's memory, what a server may take in its turn; in hundredths."""
        return max(0.0, math.floor(100 * (self.hardware.chip.usable - self.policy_share) + 1e-9) / 100)

    @property
    def caches(self) -> int:
        """Bytes of a device that a server has beside its weights, for caches and what it computes with; below 0 if
        they do not fit."""
        return int(self.server_share * self.hardware.chip.memory) - self.weights

    @property
    def fits(self) -> bool:
        return self.caches > 0

    @property
    def seconds(self) -> float:
        """Of moving weights in a step, at the link's peak: a judge's out and in again; the policy's out once, from all
        devices together, and into every server."""
        link, devices = self.hardware.chip.host_link, self.hardware.devices
        judge = 2 * self.weights / link if self.judge else 0.0
        rollout = (1 + 1 / devices) * self.weights / link if self.rollout else 0.0
        return judge + rollout

    @property
    def host_bytes(self) -> int:
        """Of each host's memory: sleeping judges' weights, and the files of the policy's."""
        judges = round(PINNED * self.hardware.per_host * self.weights) if self.judge else 0
        return judges + (self.weights if self.rollout else 0)


def take_turns(config: RunConfig) -> bool:
    """Whether any server shares the policy's devices."""
    return config.judge.sleep_mode or drawn_in_turns(config)


def turns_of(
    config: RunConfig,
    model: Model,
    peaks: Mapping[str, Sequence[int]],
    *,
    share: float | None,
    hardware: Hardware,
) -> Turns:
    """What turns come to. peaks: bytes per device of the policy's programs, of "rollout" and "update"; where servers
    draw the captions, those of the rollout do not run. share: as in ``Turns``."""
    turns = Turns(
        judge=config.judge.sleep_mode,
        rollout=drawn_in_turns(config),
        policy=0,
        share=share,
        weights=server_weights(config, model),
        hardware=hardware,
    )
    return turns.beside(peaks)


def server_weights(config: RunConfig, model: Model) -> int:
    """Bytes of the whole model as a server holds it."""
    policy = parameters_anywhere(config, model)
    leaves = jax.tree.leaves((policy.trainable, policy.frozen))
    return sum(leaf.size for leaf in leaves) * jnp.dtype(config.model.dtype).itemsize


def drawn_in_turns(config: RunConfig) -> bool:
    """Whether servers draw the captions on the policy's devices, so that the programs of the rollout do not run."""
    return config.rollout.engine == "vllm" and config.rollout.vllm.sleep_mode
