"""What to change for a quicker step when a run fits: found by compiling each change, not by guessing.

Only changes that leave what is computed as it is: what the backward pass computes again, how many groups decode side
by side, and what waits in the host's memory to make room for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vcap_jax.models.remat import Remat
from vcap_jax.plan.planning import Say, make_plan
from vcap_jax.plan.remedies import Trial, may_wait
from vcap_jax.plan.result import Plan, peaks_by_phase
from vcap_jax.rollout.sampler import Offloaded
from vcap_jax.run.config import RunConfig

LESS_AGAIN: tuple[Remat, ...] = (
    "offload",
    "layer",
    "offload_attention",
    "attention",
    "dots",
    "offload_mlp",
    "mlp",
    "dots_attention",
    "none",
)
"""From what computes, and fetches from the host, most a second time to what does nothing so."""
BY_MEMORY: tuple[Remat, ...] = (
    "offload",
    "offload_attention",
    "layer",
    "attention",
    "offload_mlp",
    "mlp",
    "dots",
    "dots_attention",
    "none",
)
"""From what needs least of a device's memory to what needs most."""


@dataclass(frozen=True, kw_only=True)
class Quicker:
    """A change that may save time. programs: first words of the names of those that it alters, which are compiled."""

    name: str
    config: RunConfig
    programs: frozenset[str]


def backward_changes(config: RunConfig) -> list[Quicker]:
    """Every policy of the backward pass that computes less again, the least memory first."""
    less = LESS_AGAIN[LESS_AGAIN.index(config.model.remat) + 1 :]
    gradient = frozenset({"gradient"})
    return [
        Quicker(
            name=f"model.remat={name}",
            config=dataclasses.replace(config, model=dataclasses.replace(config.model, remat=name)),
            programs=gradient,
        )
        for name in BY_MEMORY
        if name in less
    ]


def rollout_changes(config: RunConfig, ways: int) -> list[list[Quicker]]:
    """More groups side by side: for each number that saves a round, the most first, with as little as possible in the
    host's memory first. ways: replicas that decode. Nothing where there are short caches, with rounds of their own."""
    if config.rollout.short_groups:
        return []
    groups, at_once = config.grpo.groups_per_step, config.rollout.groups_per_batch
    rounds = -(-groups // at_once)
    batches = {-(-groups // (fewer * ways)) * ways for fewer in range(1, rounds)}
    programs = frozenset({"copy", "vision", "prefill", "decode"})
    return [
        [
            Quicker(
                name=f"rollout.groups_per_batch={batch}" + _offloading(config, waiting),
                config=dataclasses.replace(
                    config,
                    rollout=dataclasses.replace(config.rollout, groups_per_batch=batch, offload=waiting),
                ),
                programs=programs,
            )
            for waiting in _offloads(config)
        ]
        for batch in sorted(batches, reverse=True)
        if batch > at_once
    ]


def _offloads(config: RunConfig) -> Iterator[tuple[Offloaded, ...]]:
    """What waits today, and more and more of what may."""
    waiting = config.rollout.offload
    yield waiting
    if config.rollout.engine != "jax":
        return
    for name in may_wait(config):
        if name not in waiting:
            waiting = (*waiting, name)
            yield waiting


def _offloading(config: RunConfig, waiting: Sequence[str]) -> str:
    return "" if tuple(waiting) == config.rollout.offload else f" 'rollout.offload=[{', '.join(waiting)}]'"


def try_speedups(
    plan: Plan, config: RunConfig, *, fraction: float | None, policy_devices: int | None, say: Say,
    make: Callable[..., Plan] = make_plan,
) -> list[Trial]:  # fmt: skip
    """Tries what may make the step of a plan that fits quicker; the quickest first, those that do not fit last.

    Only the programs that a change alters are compiled; the others count as in ``plan``. Of what waits in the host's
    memory the least that makes room is taken.
    """
    machine = plan.layout.hardware
    ways = plan.layout.policy.devices // config.mesh.tensor
    trials: list[Trial] = []

    def tried(change: Quicker) -> Plan | None:
        say(f"trying {change.name}")
        try:
            part = make(
                change.config,
                machine,
                only=change.programs,
                policy_devices=policy_devices,
                fraction=fraction,
                say=say,
            )
        except ValueError as error:
            say(f"{change.name} is not possible: {error}")
            return None
        whole = joined(plan, part)
        trials.append(Trial.of(change.name, whole, whole.step_seconds if whole.fits else None))
        return whole

    for change in backward_changes(config):
        whole = tried(change)
        if whole is not None and not whole.fits:
            break
    for alternatives in rollout_changes(config, ways):
        if any((whole := tried(change)) is not None and whole.fits for change in alternatives):
            break
    return sorted(trials, key=lambda t: (t.step_seconds is None, t.step_seconds or 0.0, t.peak))


def joined(plan: Plan, part: Plan) -> Plan:
    """``part``, of which some programs were not compiled, with these as ``plan`` has them."""
    compiled = {row.kind for row in part.rows}
    kept = [row for row in plan.rows if row.kind not in compiled]
    order = {name: at for at, name in enumerate(row.kind for row in plan.rows)}
    rows = sorted([*kept, *part.rows], key=lambda row: order[row.kind])
    decoding = part if "decode" in compiled else plan
    # ``part`` was not compiled whole, and so has none.
    turns = None if plan.turns is None else plan.turns.beside(peaks_by_phase(rows))
    return dataclasses.replace(
        part,
        rows=tuple(rows),
        left_out=(),
        turns=turns,
        decoding_longest=decoding.decoding_longest,
        decoding_usual=decoding.decoding_usual,
    )
