"""What a plan says: programs with their bytes and times, and what a step takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vcap_jax.plan.abstract import Sizes
from vcap_jax.plan.compiled import Compiled
from vcap_jax.plan.offload import Waiting
from vcap_jax.plan.turns import Turns, drawn_in_turns
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import Hardware

SAMPLES = {"image": 29_000, "video": 13_000}
"""Of the paper's training sets (Appendix, Training Data)."""
MEAN_CAPTION = {"image": 1500, "video": 2000}
LONGEST_CAPTION = {"image": 2048, "video": 4096}
"""Tokens of a caption on average, and of the longest of a step: estimates, they depend on the policy. Late in training
they may be longer: the paper's e2 writes 1,511 words about a picture (Figure 3), some 2,000 tokens."""


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
    compute, memory, links, host: seconds of one run if that alone counted; products at the peak of ``model.dtype``.
    floor: None where it is not known."""

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
    def kind(self) -> str:
        """The first word of the name."""
        return self.name.split()[0]

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


def peaks_by_phase(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Peaks of the programs of each phase, as ``turns`` takes them."""
    peaks: dict[str, list[int]] = {}
    for row in rows:
        peaks.setdefault(row.phase, []).append(row.peak)
    return peaks


@dataclass(frozen=True, kw_only=True)
class DecodingTime:
    """A step's decoding as a run does it (``lengths.Decoding``): its own scheduler, caches as long as captions are by
    then. mean, longest: tokens of a caption; through: tokens drawn one after the other. seconds: at the roofline;
    at_least: if only what must be read were moved."""

    mean: int
    longest: int
    through: int
    seconds: float
    at_least: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A planned run. capacity: bytes a device may use. resident: per phase, what the bytes are.

    decoding_longest, decoding_usual: of a step whose captions all have the longest length, and the estimated ones; None
    if decoding was not compiled, or memory does not bound it: then every token counts with the largest caches.
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
    decoding_longest: DecodingTime | None = None
    decoding_usual: DecodingTime | None = None
    waiting: Waiting | None = None
    turns: Turns | None = None
    left_out: tuple[str, ...] = ()

    @property
    def running(self) -> tuple[Row, ...]:
        """The programs whose memory counts: those of the rollout do not run where servers draw in turns. All where
        nothing else was compiled."""
        if not drawn_in_turns(self.config):
            return self.rows
        return tuple(row for row in self.rows if row.phase != "rollout") or self.rows

    @property
    def peak(self) -> int:
        return max(row.peak for row in self.running)

    @property
    def fits(self) -> bool:
        beside = (self.waiting is None or self.waiting.fits) and (self.turns is None or self.turns.fits)
        return self.peak <= self.capacity and beside

    @property
    def step_seconds(self) -> float | None:
        """At the roofline, with the copies of what waits in the host's memory as if nothing hid them; None if not every
        program was compiled."""
        if self.left_out:
            return None
        return sum(total for total, _ in self.program_seconds().values()) + self.copying

    def phase_seconds(self, phase: str) -> float:
        """Of the rollout or the update, at the roofline, those of its programs that were compiled."""
        names = {row.kind for row in self.rows if row.phase == phase}
        return sum(total for name, (total, _) in self.program_seconds().items() if name in names)

    @property
    def usual_seconds(self) -> float | None:
        """Of a step at the roofline whose captions have the estimated lengths, all else as it is; None if that is not
        known."""
        if self.step_seconds is None or self.decoding_longest is None or self.decoding_usual is None:
            return None
        return self.step_seconds + self.decoding_usual.seconds - self.decoding_longest.seconds

    @property
    def floor_seconds(self) -> float | None:
        """Of a step whose programs all take what they must; None if not every program was compiled. One without a
        floor counts as it is."""
        if self.left_out:
            return None
        return sum(least for _, least in self.program_seconds().values()) + self.copying

    def program_seconds(self) -> dict[str, tuple[float, float]]:
        """Of each kind of program (``Row.kind``): its seconds of a step at the roofline, and at the least."""
        found: dict[str, tuple[float, float]] = {}
        for row in self.rows:
            total, least = found.get(row.kind, (0.0, 0.0))
            floor = row.floor.seconds if row.floor else row.seconds
            found[row.kind] = (total + row.seconds * row.count, least + floor * row.count)
        if self.decoding_longest is not None and "decode" in found:
            found["decode"] = (self.decoding_longest.seconds, self.decoding_longest.at_least)
        return found

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
