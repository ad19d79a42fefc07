"""How well a judge sees: errors of perception, and what it notices unasked.

A real judge reads pictures imperfectly. The embedded one reads this world's pixels nearly without fault, so its faults
are put in on purpose and are known: with probability ``miss`` it does not see a fact that is there, with probability
``invent`` it sees a claimed one that is not. Each error belongs to (seed, picture, slot, value): asked again about the
same picture it errs in the same way, whoever asks and in whatever order, as a model at temperature 0 does. Lower rates
err on a subset of what higher rates err on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.system.digests import number_of
from vcap_jax.world.sight import Sight
from vcap_jax.world.vocabulary import VALUES, Facts, Slot


@settings
class PerceptionConfig:
    """How the embedded judge looks."""

    miss: float = Field(default=0.0, ge=0, le=1)
    """Share of the visible facts that it does not see."""
    invent: float = Field(default=0.0, ge=0, le=1)
    """Share of the false claims that it sees confirmed."""
    attention: int = Field(default=3, ge=1)
    """Objects that it notices when no reference points anywhere, the most prominent first; a picture has 4 to 9."""
    seed: int = 0
    """Seed of its errors."""

    @property
    def label(self) -> str:
        """What tells this judge from others, "" for the default one: scores of different judges must not mix."""
        parts = []
        if self.miss or self.invent:
            parts += [f"miss={self.miss!r}", f"invent={self.invent!r}", f"seed={self.seed}"]
        if self.attention != PerceptionConfig.attention:
            parts.append(f"attention={self.attention}")
        return "".join(f"+{part}" for part in parts)


@dataclass(frozen=True, kw_only=True)
class ImperfectSight(Sight):
    """What a judge takes a picture to show.

    facts: what it believes unasked: of each visible slot the true value if it sees that, else a value that it invents,
        else nothing. truth: what the pixels show. picture: identity of what is looked at.
    """

    truth: Facts
    perception: PerceptionConfig
    picture: bytes

    def verdict(self, slot: Slot, value: str) -> bool | None:
        """Whether the judge sees the claim confirmed; None where the pixels decide nothing."""
        if slot in self.unknown:
            return None
        return _sees(self.perception, self.picture, self.truth, slot, value)


def imperfect(sight: Sight, perception: PerceptionConfig, picture: bytes) -> ImperfectSight:
    """``sight`` as a judge with ``perception`` has it; ``picture`` is the identity of what is looked at."""
    facts = {}
    for slot, true in sight.facts.items():
        seen = _sees(perception, picture, sight.facts, slot, true)
        value = true if seen else _invented(perception, picture, slot, true)
        if value is not None:
            facts[slot] = value
    return ImperfectSight(
        facts=facts,
        unknown=sight.unknown,
        shots=sight.shots,
        prominence=sight.prominence,
        truth=sight.facts,
        perception=perception,
        picture=picture,
    )


def _sees(perception: PerceptionConfig, picture: bytes, truth: Facts, slot: Slot, value: str) -> bool:
    if truth.get(slot) == value:
        return _chance(perception, picture, "miss", slot, value) >= perception.miss
    return _chance(perception, picture, "invent", slot, value) < perception.invent


def _invented(perception: PerceptionConfig, picture: bytes, slot: Slot, true: str) -> str | None:
    """The false value of a slot that the judge would most readily confirm, if it would confirm any."""
    chances = [
        (_chance(perception, picture, "invent", slot, value), value)
        for value in VALUES[str(slot[-1])]
        if value != true
    ]
    if not chances:  # whether one thing covers another has no other answer
        return None
    chance, value = min(chances)
    return value if chance < perception.invent else None


def _chance(
    perception: PerceptionConfig, picture: bytes, error: Literal["miss", "invent"], slot: Slot, value: str
) -> float:
    """Uniform in [0, 1), a function of its arguments alone, and the same at all rates."""
    return number_of(f"{perception.seed}|{picture.hex()}|{error}|{slot!r}|{value}") / 2**64
