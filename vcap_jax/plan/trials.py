"""What to change where a run does not fit, or for a quicker step: found by compiling each change, not by guessing.

For a quicker step only changes are tried that leave what is computed as it is: what the backward pass computes again,
how many groups decode side by side, and what waits in the host's memory to make room for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, get_args

from vcap_jax.models.lora import LoraConfig
from vcap_jax.models.remat import Remat
from vcap_jax.plan.planning import Say, make_plan
from vcap_jax.plan.result import Plan, peaks_by_phase
from vcap_jax.rollout.config import Offloaded
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Hardware, larger

T = TypeVar("T")

LESS_AGAIN: tuple[Remat, ...] = (
    *("offload", "layer", "offload_attention", "attention", "dots"),
    *("offload_mlp", "mlp", "dots_attention", "none"),
)
"""From what computes, and fetches from the host, most a second time to what does nothing so."""
BY_MEMORY: tuple[Remat, ...] = (
    *("offload", "offload_attention", "layer", "attention", "offload_mlp"),
    *("mlp", "dots", "dots_attention", "none"),
)
"""From what needs least of a device's memory to what needs most."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A change and what came of it. fits: as ``Plan.fits``, so not by the peak alone. step_seconds: at the roofline,
    None if not every program was compiled."""

    change: str
    peak: int
    capacity: int
    fits: bool
    step_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing to try: another configuration, or other hardware."""

    name: str
    config: RunConfig
    hardware: Hardware
    policy_devices: int | None


@dataclass(frozen=True, kw_only=True)
class Quicker:
    """A change that may save time. programs: first words of the names of those that it alters, which are compiled."""

    name: str
    config: RunConfig
    programs: frozenset[str]


def _with(config: RunConfig, section: str, **values: object) -> RunConfig:
    """The configuration with other values in a section."""
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


def may_wait(config: RunConfig) -> tuple[Offloaded, ...]:
    """What a run has that may wait in the host's memory while captions are drawn (``rollout.offload``)."""
    return tuple(
        name for name in get_args(Offloaded) if name != "reference" or config.grpo.objective.beta > 0
    )


def changes(config: RunConfig, hardware: Hardware, policy_devices: int | None) -> list[Change]:
    """Every change that differs from what there is and may need less memory, the least intrusive first."""
    found: list[Change] = []

    def add(
        name: str, *, config: RunConfig = config, on: Hardware = hardware, policy: int | None = policy_devices
    ) -> None:
        found.append(Change(name=name, config=config, hardware=on, policy_devices=policy))

    policy = hardware.devices if policy_devices is None else policy_devices
    ways = max(1, policy // config.mesh.tensor)
    for remat in ("layer", "offload"):
        if config.model.remat != remat:
            add(f"model.remat={remat}", config=_with(config, "model", remat=remat))
    if config.grpo.groups_per_micro_batch >= 2 * ways:
        one = _with(config, "grpo", groups_per_micro_batch=ways)
        add(f"grpo.groups_per_micro_batch={ways}, one group per device", config=one)
    at_once = config.rollout.groups_per_batch // ways
    for slots in sorted({at_once - 1, at_once // 2, 1} - {0, at_once}, reverse=True) if at_once > 1 else ():
        fewer = _with(config, "rollout", groups_per_batch=slots * ways)
        add(f"rollout.groups_per_batch={slots * ways}, {slots} per device", config=fewer)
    short = config.rollout.short_groups // ways
    if short > at_once + 1:
        fewer = _with(config, "rollout", short_groups=(short - 1) * ways)
        add(f"rollout.short_groups={(short - 1) * ways}, {short - 1} per device", config=fewer)
    if config.grpo.logprob_chunk > 128:
        add("grpo.logprob_chunk=128", config=_with(config, "grpo", logprob_chunk=128))
    if config.optimizer.moment_dtype is None and config.model.param_dtype == "float32":
        narrow = _with(config, "optimizer", moment_dtype="bfloat16")
        add("optimizer.moment_dtype=bfloat16", config=narrow)
    offloaded = set(config.rollout.offload)
    parts = may_wait(config)
    for count in range(1, len(parts) + 1):
        names: tuple[Offloaded, ...] = parts[:count]
        if offloaded < set(names) and config.rollout.engine == "jax":
            offloaded = set(names)
            add(f"rollout.offload=[{', '.join(names)}]", config=_with(config, "rollout", offload=names))
    if policy < hardware.devices:
        add("the judge elsewhere", policy=None)
    cudnn = hardware.chip.platform == "cuda" and config.model.attention in ("auto", "cudnn")
    for tensor in () if cudnn else (2, 4):  # see attention.check_tensor
        if config.mesh.tensor < tensor and policy % tensor == 0:
            add(f"mesh.tensor={tensor}", config=_with(config, "mesh", tensor=tensor))
    if config.model.lora is None and "visual" in config.model.frozen:  # which adapters leave frozen
        adapters = LoraConfig(rank=64, alpha=128)
        add("model.lora={rank: 64, alpha: 128}", config=_with(config, "model", lora=adapters))
    more = larger(hardware)
    if more is not None:
        judge = hardware.devices - policy
        # On a node the judge keeps as many GPUs as it has; nodes are planned whole.
        keeps = more.hosts == 1
        name = f"hardware {more.name}" + ("" if keeps or not judge else ", the judge elsewhere")
        add(name, on=more, policy=more.devices - judge if keeps and judge else None)
    return found


def backward_changes(config: RunConfig) -> list[Quicker]:
    """Every policy of the backward pass that computes less again, the least memory first."""
    less = LESS_AGAIN[LESS_AGAIN.index(config.model.remat) + 1 :]
    return [
        Quicker(
            name=f"model.remat={name}",
            config=_with(config, "model", remat=name),
            programs=frozenset({"gradient"}),
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

    def change(batch: int, waiting: tuple[Offloaded, ...]) -> Quicker:
        more = waiting != config.rollout.offload
        return Quicker(
            name=f"rollout.groups_per_batch={batch}"
            + (f" 'rollout.offload=[{', '.join(waiting)}]'" if more else ""),
            config=_with(config, "rollout", groups_per_batch=batch, offload=waiting),
            programs=frozenset({"copy", "vision", "prefill", "decode"}),
        )

    return [
        [change(batch, waiting) for waiting in _offloads(config)]
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


def _tried(name: str, make: Callable[[], T], say: Say) -> T | None:
    """What ``make`` gives, None if the change is not possible."""
    say(f"trying {name}")
    try:
        return make()
    except ValueError as error:
        say(f"{name} is not possible: {error}")
        return None


def _trial(name: str, plan: Plan, step_seconds: float | None) -> Trial:
    """plan: made with the change."""
    return Trial(
        change=name, peak=plan.peak, capacity=plan.capacity, fits=plan.fits, step_seconds=step_seconds
    )


def try_changes(
    plan: Plan, config: RunConfig, *, fraction: float | None, policy_devices: int | None, say: Say,
    make: Callable[..., Plan] = make_plan,
) -> list[Trial]:  # fmt: skip
    """Tries every change on a plan that does not fit; the fitting come first, quickest first, then the smallest.

    Only the programs that were too large are compiled, and all of them for a change that mends these.
    """
    too_large = frozenset(row.kind for row in plan.running if row.peak > plan.capacity)
    trials = []
    for change in changes(config, plan.layout.hardware, policy_devices):

        def made(change: Change = change) -> Trial:
            options = {"policy_devices": change.policy_devices, "fraction": fraction, "say": say}
            part = make(change.config, change.hardware, only=too_large, **options)
            if not part.fits:
                return _trial(change.name, part, None)
            whole = make(change.config, change.hardware, **options)
            return _trial(change.name, whole, whole.step_seconds)

        if (trial := _tried(change.name, made, say)) is not None:
            trials.append(trial)
    return sorted(trials, key=lambda t: (not t.fits, t.step_seconds or 0.0, t.peak))


def try_speedups(
    plan: Plan, config: RunConfig, *, fraction: float | None, policy_devices: int | None, say: Say,
    make: Callable[..., Plan] = make_plan,
) -> list[Trial]:  # fmt: skip
    """Tries what may make the step of a plan that fits quicker; the quickest first, those that do not fit last.

    Only the programs that a change alters are compiled; the others count as in ``plan``. Of what waits in the host's
    memory the least that makes room is taken.
    """
    machine = plan.layout.hardware
    trials: list[Trial] = []

    def tried(change: Quicker) -> Plan | None:
        options = {"policy_devices": policy_devices, "fraction": fraction, "say": say}
        part = _tried(change.name, lambda: make(change.config, machine, only=change.programs, **options), say)
        if part is None:
            return None
        whole = joined(plan, part)
        trials.append(_trial(change.name, whole, whole.step_seconds if whole.fits else None))
        return whole

    for change in backward_changes(config):
        whole = tried(change)
        if whole is not None and not whole.fits:
            break
    for alternatives in rollout_changes(config, plan.layout.policy.devices // config.mesh.tensor):
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
    return dataclasses.replace(
        part,
        rows=tuple(rows),
        left_out=(),
        # ``part`` was not compiled whole, and so has none.
        turns=None if plan.turns is None else plan.turns.beside(peaks_by_phase(rows)),
        decoding_longest=decoding.decoding_longest,
        decoding_usual=decoding.decoding_usual,
    )
