"""What to change when a run does not fit: found by compiling each change, not by guessing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from vcap_jax.models.lora import LoraConfig
from vcap_jax.plan.planning import Say, make_plan
from vcap_jax.plan.result import Plan
from vcap_jax.rollout.sampler import Offloaded
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Hardware, larger


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A change and what came of it. fits: as ``Plan.fits``, so not by the peak alone. step_seconds: at the roofline,
    None if not every program was compiled."""

    change: str
    peak: int
    capacity: int
    fits: bool
    step_seconds: float | None

    @classmethod
    def of(cls, change: str, plan: Plan, step_seconds: float | None) -> Trial:
        """What ``plan``, made with the change, says."""
        return cls(
            change=change,
            peak=plan.peak,
            capacity=plan.capacity,
            fits=plan.fits,
            step_seconds=step_seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing to try: another configuration, or other hardware."""

    name: str
    config: RunConfig
    hardware: Hardware
    policy_devices: int | None


def may_wait(config: RunConfig) -> tuple[Offloaded, ...]:
    """What a run has that may wait in the host's memory while captions are drawn (``rollout.offload``)."""
    return tuple(
        name for name in get_args(Offloaded) if name != "reference" or config.grpo.objective.beta > 0
    )


def changes(config: RunConfig, hardware: Hardware, policy_devices: int | None) -> list[Change]:
    """Every change that differs from what there is, the least intrusive first."""
    found: list[Change] = []

    def add(
        name: str, *, config: RunConfig = config, on: Hardware = hardware, policy: int | None = policy_devices
    ) -> None:
        found.append(Change(name=name, config=config, hardware=on, policy_devices=policy))

    def section(name: str, **values: object) -> RunConfig:
        return dataclasses.replace(config, **{name: dataclasses.replace(getattr(config, name), **values)})

    policy = hardware.devices if policy_devices is None else policy_devices
    ways = max(1, policy // config.mesh.tensor)
    if config.model.remat != "layer":
        add("model.remat=layer", config=section("model", remat="layer"))

    if config.model.remat != "offload":
        add("model.remat=offload", config=section("model", remat="offload"))

    if config.grpo.groups_per_micro_batch >= 2 * ways:
        one = section("grpo", groups_per_micro_batch=ways)
        add(f"grpo.groups_per_micro_batch={ways}, one group per device", config=one)
    at_once = config.rollout.groups_per_batch // ways
    for slots in sorted({at_once - 1, at_once // 2, 1} - {0, at_once}, reverse=True) if at_once > 1 else ():
        fewer = section("rollout", groups_per_batch=slots * ways)
        add(f"rollout.groups_per_batch={slots * ways}, {slots} per device", config=fewer)
    short = config.rollout.short_groups // ways
    if short > at_once + 1:
        fewer = section("rollout", short_groups=(short - 1) * ways)
        add(f"rollout.short_groups={(short - 1) * ways}, {short - 1} per device", config=fewer)
    if config.grpo.logprob_chunk > 128:
        add("grpo.logprob_chunk=128", config=section("grpo", logprob_chunk=128))
    if config.optimizer.moment_dtype is None and config.model.param_dtype == "float32":
        add("optimizer.moment_dtype=bfloat16", config=section("optimizer", moment_dtype="bfloat16"))
    offloaded = set(config.rollout.offload)
    parts = may_wait(config)
    for count in range(1, len(parts) + 1):
        names: tuple[Offloaded, ...] = parts[:count]
        if offloaded < set(names) and config.rollout.engine == "jax":
            offloaded = set(names)
            add(f"rollout.offload=[{', '.join(names)}]", config=section("rollout", offload=names))
    if policy < hardware.devices:
        add("the judge elsewhere", policy=None)
    cudnn = hardware.chip.platform == "cuda" and config.model.attention in ("auto", "cudnn")
    for tensor in () if cudnn else (2, 4):  # see attention.check_tensor
        if config.mesh.tensor < tensor and policy % tensor == 0:
            add(f"mesh.tensor={tensor}", config=section("mesh", tensor=tensor))
    if config.model.lora is None:
        add("model.lora={rank: 64, alpha: 128}", config=section("model", lora=LoraConfig(rank=64, alpha=128)))
    more = larger(hardware)
    if more is not None:
        add(f"hardware {more.name}", on=more)
    return found


def try_changes(
    plan: Plan, config: RunConfig, *, fraction: float | None, policy_devices: int | None, say: Say,
    make: Callable[..., Plan] = make_plan,
) -> list[Trial]:  # fmt: skip
    """Tries every change on a plan that does not fit; the fitting come first, quickest first, then the smallest.

    Only the programs that were too large are compiled, and all of them for a change that mends these.
    """
    too_large = frozenset(row.kind for row in plan.rows if row.peak > plan.capacity)
    trials = []
    for change in changes(config, plan.layout.hardware, policy_devices):
        say(f"trying {change.name}")
        options = {"policy_devices": change.policy_devices, "fraction": fraction, "say": say}
        seconds = None
        try:
            tried = make(change.config, change.hardware, only=too_large, **options)
            if tried.fits:
                tried = make(change.config, change.hardware, **options)
                seconds = tried.step_seconds
        except ValueError as error:
            say(f"{change.name} is not possible: {error}")
            continue
        trials.append(Trial.of(change.name, tried, seconds))
    return sorted(trials, key=lambda t: (not t.fits, t.step_seconds or 0.0, t.peak))
