"""A configuration on a piece of hardware: does it fit, and how long does a step take at best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from vcap_jax.kernels.attention import Kernel
from vcap_jax.models.widths import columns_for
from vcap_jax.plan import targets
from vcap_jax.plan.abstract import Model, Sizes, abstract_policy, largest_sizes, model_of
from vcap_jax.plan.compiled import Compiled, compile_program
from vcap_jax.plan.costs import Cost
from vcap_jax.plan.errors import PlanningError
from vcap_jax.plan.offload import Waiting, check_sending
from vcap_jax.plan.programs import step_programs
from vcap_jax.plan.turns import Turns, take_turns, turns_of
from vcap_jax.plan.work import FORWARD, Shapes, Step, Work
from vcap_jax.run.checks import check_target
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Hardware, gpus

SAMPLES = {"image": 29_000, "video": 13_000}
"""Of the paper's training sets (Appendix, Training Data)."""
MEAN_CAPTION = {"image": 1500, "video": 2000}
LONGEST_CAPTION = {"image": 2048, "video": 4096}
"""Tokens of a caption on average, and of the longest of a step: estimates, they depend on the policy."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Who works where. policy: the hardware of policy and update; judge: chips beside it, 0 for a judge elsewhere.

    groups: of a step. batch: decoded side by side; short: with short caches, 0 if there are none. micro: of a
    micro-batch. note: what was changed to divide evenly.
    """

    hardware: Hardware
    policy: Hardware
    judge: int
    groups: int
    batch: int
    micro: int
    short: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What one run of a program takes at the least on a device, however it is written. flops: of products. moved: bytes
    between memory and cores. seconds: of the slowest unit, links included, at its peak."""

    flops: float
    moved: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program in the plan. resident: bytes per device that stay in memory beside it; peak: everything together.
    compute, memory, links, host: seconds of one run if that alone counted; products at the bfloat16 peak. floor: None
    where it is not known."""

    name: str
    phase: str
    count: float
    resident: int
    compiled: Compiled
    peak: int
    compute: float
    memory: float
    links: float
    host: float
    floor: Floor | None = None

    @property
    def reached(self) -> float | None:
        """The share of the floor that the program reaches at best; None where no floor is known."""
        return None if self.floor is None else self.floor.seconds / self.seconds

    @property
    def seconds(self) -> float:
        """The roofline: the slowest of the four."""
        return max(self.compute, self.memory, self.links, self.host)

    @property
    def bound(self) -> str:
        times = {"compute": self.compute, "memory": self.memory, "links": self.links, "host": self.host}
        return max(times, key=lambda name: times[name])


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A step's decoding with captions of many lengths (``lengths.Decoding``): tokens of a caption on average and of the
    longest; seconds at the roofline, instead_of: if all were the longest allowed; through: tokens drawn one after the
    other."""

    mean: int
    longest: int
    seconds: float
    instead_of: float
    through: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A planned run. capacity: bytes a device may use. resident: per phase, what the bytes are.

    spread: decoding with captions of the estimated lengths, if it was compiled and memory bounds it.
    waiting: what lies in the host's memory through the rollout; None if nothing does. turns: of servers that share the
    policy's devices; None if none do, or if not every program was compiled.
    left_out: programs of a step that were not compiled. With any of them the rows are no whole step: ``fits`` speaks
    of those that were compiled, and there is no time of a step.
    """

    config: RunConfig
    layout: Layout
    sizes: Sizes
    kernel: str
    decoding: str
    decoded: int
    capacity: int
    resident: dict[str, dict[str, int]]
    rows: tuple[Row, ...]
    spread: Spread | None = None
    waiting: Waiting | None = None
    turns: Turns | None = None
    left_out: tuple[str, ...] = ()

    @property
    def peak(self) -> int:
        return max(row.peak for row in self.rows)

    @property
    def fits(self) -> bool:
        beside = (self.waiting is None or self.waiting.fits) and (self.turns is None or self.turns.fits)
        return self.peak <= self.capacity and beside

    @property
    def step_seconds(self) -> float | None:
        """At the roofline, with the copies of what waits in the host's memory as if nothing hid them; None if not every
        program was compiled."""
        return None if self.left_out else sum(row.seconds * row.count for row in self.rows) + self.copying

    @property
    def usual_seconds(self) -> float | None:
        """Of a step at the roofline whose captions have the estimated lengths, all else as it is; None if that is not
        known."""
        if self.step_seconds is None or self.spread is None:
            return None
        return self.step_seconds + self.spread.seconds - self.spread.instead_of

    @property
    def floor_seconds(self) -> float | None:
        """Of a step whose programs all take what they must; None if not every program was compiled. One without a
        floor counts as it is."""
        if self.left_out:
            return None
        programs = sum((row.floor.seconds if row.floor else row.seconds) * row.count for row in self.rows)
        return programs + self.copying

    @property
    def copying(self) -> float:
        """Seconds of a step's copies to and from the host's memory."""
        return 0.0 if self.waiting is None else self.waiting.seconds

    @property
    def steps_per_epoch(self) -> int:
        return SAMPLES[self.config.modality] // self.layout.groups

    @property
    def caption_tokens(self) -> int:
        """Of a step, at the estimated mean length."""
        mean = min(MEAN_CAPTION[self.config.modality], self.sizes.caption_tokens)
        return self.layout.groups * self.sizes.captions * mean


def layout(config: RunConfig, hardware: Hardware, policy_devices: int | None) -> Layout:
    """Fits groups to devices: one group on each at the least, in a micro-batch and side by side. A step keeps its
    groups, its last micro-batch may be short.

    policy_devices: of a GPU node; the others are the judge's. Raises PlanningError for a number the node has not.
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

    Raises MissingPlugin, PlanningError (sizes, names, host memory), ConfigError for an attention kernel that the chip
    has not, UnsupportedAttention if one is not in its program.
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
        Shapes(
            sizes=sizes,
            groups=laid.groups,
            batch=laid.batch,
            micro=laid.micro,
            decoded=decoded,
            short=laid.short,
        ),
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
        row = _row(work, step, laid.policy, policy.kernel, rows)
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
        spread=_spread(config, step, rows, laid.policy),
        waiting=_waiting(step, rows, laid),
        turns=_turns(config, model, rows, fraction, laid) if take_turns(config) and not left_out else None,
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


def _turns(
    config: RunConfig, model: Model, rows: Sequence[Row], fraction: float | None, laid: Layout
) -> Turns:
    peaks = {phase: [row.peak for row in rows if row.phase == phase] for phase in ("rollout", "update")}
    return turns_of(config, model, peaks, share=fraction, hardware=laid.policy)


def _spread(config: RunConfig, step: Step, rows: Sequence[Row], hardware: Hardware) -> Spread | None:
    decodes = [row for row in rows if row.name.split()[0] == "decode"]
    if not decodes or any(row.bound != "memory" for row in decodes):
        return None
    longest = min(LONGEST_CAPTION[config.modality], config.rollout.max_completion_length)
    mean = min(MEAN_CAPTION[config.modality], longest)
    moved, through = step.decoding.moved(mean, longest, decodes[0].compiled.cost.moved)
    return Spread(
        mean=mean,
        longest=longest,
        seconds=moved / hardware.chip.bandwidth,
        instead_of=sum(row.seconds * row.count for row in decodes),
        through=through,
    )


def _floor(work: Work, cost: Cost, hardware: Hardware, rows: Sequence[Row]) -> Floor | None:
    """See ``Floor``. What is sent over links is taken as needed, as are products, but for those of a program that is
    known to be so many forward passes. rows: of the programs before it."""
    flops = cost.flops
    if work.forwards is not None:
        forward = next((row.compiled.cost.flops for row in rows if row.name == FORWARD), None)
        if forward is None:
            return None
        flops = min(flops, work.forwards * forward)
    if cost.unknown or not work.moved:
        return None
    chip = hardware.chip
    seconds = max(flops / chip.peak("bfloat16"), work.moved / chip.bandwidth, cost.sent / hardware.link)
    return Floor(flops=flops, moved=work.moved, seconds=seconds)


def _row(work: Work, step: Step, hardware: Hardware, kernel: Kernel, rows: Sequence[Row]) -> Row:
    compiled = compile_program(
        work.lower(),
        kernel=kernel if work.attention else None,
        decoding=kernel if work.decoding else None,
        rounds=work.rounds,
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
        compute=cost.flops / chip.peak("bfloat16"),
        memory=cost.moved / chip.bandwidth,
        links=cost.sent / hardware.link,
        # Out in the forward pass and back in the backward pass, one after the other.
        host=2 * compiled.host / chip.host_link,
        floor=None if compiled.refused else _floor(work, cost, hardware, rows),
    )
