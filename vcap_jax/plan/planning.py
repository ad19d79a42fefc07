"""A configuration on a piece of hardware: does it fit, and how long does a step take at best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax

from vcap_jax.kernels.attention import Kernel
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.sharding import MeshConfig
from vcap_jax.plan import targets
from vcap_jax.plan.abstract import abstract_policy, largest_sizes, model_of
from vcap_jax.plan.compiled import compile_program
from vcap_jax.plan.costs import Cost
from vcap_jax.plan.offload import Waiting, check_sending
from vcap_jax.plan.programs import step_programs
from vcap_jax.plan.result import (
    LONGEST_CAPTION,
    MEAN_CAPTION,
    DecodingTime,
    Floor,
    Layout,
    Plan,
    Row,
    peaks_by_phase,
)
from vcap_jax.plan.targets import PlanningError
from vcap_jax.plan.turns import take_turns, turns_of
from vcap_jax.plan.work import FORWARD, Step, Work
from vcap_jax.run.checks import check_processes, check_settings, check_target
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Hardware, gpus

Say = Callable[[str], None]


def layout(config: RunConfig, hardware: Hardware, policy_devices: int | None) -> Layout:
    """Fits groups to devices: one group on each at the least, in a micro-batch and side by side. A step keeps its
    groups, its last micro-batch may be short.

    policy_devices: of a GPU node; the others are the judge's. Raises PlanningError for a number the node has not, and
    for a mesh that does not fit the policy's devices or, with what it cuts products into, those of a host.
    """
    policy = hardware
    if policy_devices is not None:
        if hardware.chip.platform != "cuda" or not 0 < policy_devices <= hardware.devices:
            raise PlanningError(
                f"{policy_devices} policy devices: {hardware.name} has {hardware.devices} GPUs to divide; a TPU slice "
                "is the policy's alone"
                if hardware.chip.platform == "cuda"
                else f"--policy-devices divides GPU nodes; on {hardware.name} the judge is elsewhere"
            )
        policy = gpus(hardware.chip, policy_devices)
    _check_mesh(config.mesh, policy)
    ways = policy.devices // config.mesh.tensor
    micro, batch = (
        max(1, groups // ways) * ways
        for groups in (config.grpo.groups_per_micro_batch, config.rollout.groups_per_batch)
    )
    asked = (config.rollout.groups_per_batch, config.grpo.groups_per_micro_batch)
    short = config.rollout.short_groups // ways * ways
    note = ""
    if asked != (batch, micro):
        note = (
            f"set rollout.groups_per_batch={batch} grpo.groups_per_micro_batch={micro} "
            f"(the configuration's {asked[0]} and {asked[1]} do not divide by {ways} devices)"
        )
    return Layout(
        hardware=hardware,
        policy=policy,
        judge=hardware.devices - policy.devices,
        groups=config.grpo.groups_per_step,
        batch=batch,
        micro=micro,
        short=short if short > batch else 0,
        note=note,
    )


def _check_mesh(mesh: MeshConfig, policy: Hardware) -> None:
    try:
        mesh.sizes(policy.devices)
    except ValueError as error:
        raise PlanningError(f"{policy.name}: {error}; set another mesh, or name other hardware") from error
    if policy.per_host % mesh.tensor:
        raise PlanningError(
            f"{policy.name}: mesh.tensor is {mesh.tensor}, and a host draws captions on its own {policy.per_host} "
            "devices: set a divisor of them"
        )


def capacity_of(hardware: Hardware, fraction: float | None = None) -> int:
    """Bytes of a device that programs may use. fraction: of its memory, else what is usable of the chip's."""
    return int(hardware.chip.memory * (hardware.chip.usable if fraction is None else fraction))


def make_plan(
    config: RunConfig,
    hardware: Hardware,
    *,
    policy_devices: int | None = None,
    fraction: float | None = None,
    typical: bool = False,
    only: frozenset[str] | None = None,
    devices: tuple[Sequence[jax.Device], Sequence[jax.Device]] | None = None,
    say: Say = lambda text: None,
) -> Plan:
    """Compiles every program of a step for the hardware.

    typical: with captions of the estimated lengths instead of the longest allowed. only: names of the programs to
    compile (their first word). devices: (all, one host's) instead of the hardware's own, for tests.

    Raises MissingPlugin, PlanningError (sizes, names, host memory), ConfigError for what training on the hardware
    refuses, UnsupportedAttention if a kernel is not in its program.
    """
    check_target(config, hardware.chip)
    model = model_of(config.model)
    laid = layout(config, hardware, policy_devices)
    config = dataclasses.replace(
        config,
        grpo=dataclasses.replace(config.grpo, groups_per_micro_batch=laid.micro),
        rollout=dataclasses.replace(
            config.rollout,
            groups_per_batch=laid.batch,
            short_groups=laid.short,
            short_length=config.rollout.short_length if laid.short else 0,
        ),
    )
    check_settings(config)
    check_processes(config, laid.policy.hosts)
    sizes = largest_sizes(config, model)
    decoded = config.rollout.max_completion_length
    if typical:
        decoded = min(LONGEST_CAPTION[config.modality], decoded)
        buckets = [*config.grpo.caption_buckets, config.rollout.max_completion_length]
        width = columns_for(min(b for b in buckets if b >= decoded))
        sizes = dataclasses.replace(sizes, caption_tokens=width)
    if devices is None:
        chip = laid.policy.chip
        devices = (
            targets.devices(chip, laid.policy.topology),
            targets.devices(chip, laid.policy.host_topology),
        )
    everywhere, host = devices
    policy = abstract_policy(config, model, everywhere[0])
    step = step_programs(
        config,
        model,
        policy,
        sizes,
        decoded,
        devices=everywhere,
        host_devices=host,
        hosts=laid.policy.hosts,
    )
    names = list(dict.fromkeys(work.name.split()[0] for work in step.work))
    if only is not None and (unknown := sorted(only.difference(names))):
        raise PlanningError(f"no program {', '.join(unknown)} in a step; there are {', '.join(names)}")
    if step.waiting:
        check_sending(step.send(), sum(step.waiting.values()), everywhere[0].platform)
    rows: list[Row] = []
    left_out = []
    for work in step.work:
        if only is not None and work.name.split()[0] not in only:
            left_out.append(work.name)
            continue
        row = _row(work, step, laid.policy, policy.kernel, rows, config.model.dtype)
        say(
            f"{row.name}: compiled in {row.compiled.seconds:.0f} s, peak {row.peak / 2**30:.1f} GiB per device"
        )
        rows.append(row)
    return Plan(
        config=config,
        layout=laid,
        sizes=sizes,
        kernel=policy.kernel.name,
        decoding=policy.kernel.decoding,
        decoded=decoded,
        capacity=capacity_of(laid.policy, fraction),
        resident={phase: dict(what) for phase, what in step.resident.items()},
        rows=tuple(rows),
        decoding_longest=_decoding_time(step, rows, laid.policy, decoded, decoded),
        decoding_usual=_decoding_time(step, rows, laid.policy, *_usual_lengths(config)),
        waiting=_waiting(step, rows, laid),
        turns=turns_of(config, model, peaks_by_phase(rows), share=fraction, hardware=laid.policy)
        if take_turns(config) and not left_out
        else None,
        left_out=tuple(left_out),
    )


def _waiting(step: Step, rows: Sequence[Row], laid: Layout) -> Waiting | None:
    if not step.waiting:
        return None
    states = max((row.compiled.host for row in rows), default=0)
    return Waiting(
        parts=dict(step.waiting),
        states=states,
        hardware=laid.policy,
        host_memory=laid.hardware.host_memory,
    )


def _usual_lengths(config: RunConfig) -> tuple[int, int]:
    """Tokens of a caption on average and of the longest."""
    longest = min(LONGEST_CAPTION[config.modality], config.rollout.max_completion_length)
    return min(MEAN_CAPTION[config.modality], longest), longest


def _decoding_time(
    step: Step, rows: Sequence[Row], hardware: Hardware, mean: int, longest: int
) -> DecodingTime | None:
    decodes = [row for row in rows if row.kind == "decode"]
    if not decodes or any(row.bound != "memory" for row in decodes):
        return None
    moved, through = step.decoding.moved(mean, longest, decodes[0].compiled.cost.moved)
    least, _ = step.decoding.moved(mean, longest)
    return DecodingTime(
        mean=mean,
        longest=longest,
        through=through,
        seconds=moved / hardware.chip.bandwidth,
        at_least=least / hardware.chip.bandwidth,
    )


def _floor(work: Work, cost: Cost, hardware: Hardware, rows: Sequence[Row], dtype: str) -> Floor | None:
    """See ``Floor``. What is sent over links is taken as needed, as are products, but for those of a program that is
    known to be so many forward passes. rows: of the programs before it. dtype: of products."""
    flops = cost.flops
    if work.forwards is not None:
        forward = next((row.compiled.cost.flops for row in rows if row.name == FORWARD), None)
        if forward is None:
            return None
        flops = min(flops, work.forwards * forward)
    if cost.unknown or not work.moved:
        return None
    chip = hardware.chip
    seconds = max(flops / chip.peak(dtype), work.moved / chip.bandwidth, cost.sent / hardware.link)
    return Floor(flops=flops, moved=work.moved, seconds=seconds)


def _row(work: Work, step: Step, hardware: Hardware, kernel: Kernel, rows: Sequence[Row], dtype: str) -> Row:
    """dtype: of products."""
    compiled = compile_program(
        work.lower(),
        kernel=kernel if work.attention else None,
        decoding=kernel if work.decoding else None,
        rounds=work.rounds,
        looks=work.looks,
        seen=work.seen,
    )
    resident = sum(step.resident[work.phase].values())
    chip, cost = hardware.chip, compiled.cost
    results = 0 if work.kept else compiled.results
    peak = resident + work.arguments + results + compiled.temporaries
    return Row(
        name=work.name,
        phase=work.phase,
        count=work.count,
        resident=resident,
        compiled=compiled,
        # A refused program's temporaries are all that it needs, its arguments included.
        peak=max(resident, compiled.temporaries) if compiled.refused else peak,
        compute=cost.flops / chip.peak(dtype),
        memory=cost.moved / chip.bandwidth,
        links=cost.sent / hardware.link,
        # Out in the forward pass and back in the backward pass, one after the other.
        host=2 * compiled.host / chip.host_link,
        floor=None if compiled.refused else _floor(work, cost, hardware, rows, dtype),
    )
