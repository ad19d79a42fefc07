"""What a picture or a clip was seen to show: what perception gives, and verdicts are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from vcap_jax.world.vocabulary import Facts, Slot


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What a picture or a clip shows.

    facts: slot -> value, as far as it could be told.
    unknown: slots about which the pixels decide nothing (a hidden shape, the motion of an object seen only once). Any
        other slot that ``facts`` lacks is empty: a claim about it is false.
    shots: start and end of each shot in seconds; none for an image.
    prominence: visible pixels of the object, by the slots' owner (the slot without its kind).
    """

    facts: Facts
    unknown: frozenset[Slot]
    shots: tuple[tuple[float, float], ...]
    prominence: dict[Slot, float]

    def verdict(self, slot: Slot, value: str) -> bool | None:
        """Whether the pixels support the claim; None where they decide nothing."""
        if slot in self.unknown:
            return None
        return self.facts.get(slot) == value


@dataclass(kw_only=True)
class Notes:
    """What was seen so far, of which a ``Sight`` is made; see there for the fields."""

    facts: Facts = field(default_factory=dict)
    unknown: set[Slot] = field(default_factory=set)
    prominence: dict[Slot, float] = field(default_factory=dict)

    def add(self, slot: Slot, value: str | None) -> None:
        """value: None where the pixels decide nothing."""
        if value is None:
            self.unknown.add(slot)
        else:
            self.facts[slot] = value

    def sight(self, shots: Iterable[tuple[float, float]] = ()) -> Sight:
        """What is unknown is no fact, whatever was noted of it."""
        known = {slot: value for slot, value in self.facts.items() if slot not in self.unknown}
        return Sight(
            facts=known, unknown=frozenset(self.unknown), shots=tuple(shots), prominence=self.prominence
        )


def brought_to_size(picture: np.ndarray, edge: int, what: str = "picture") -> np.ndarray:
    """A picture, uint8 [H, W, 3] of any size, at the size that it is looked at: [edge, edge, 3].

    Raises ValueError for anything that is no such array. what: its name in that message.
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(f"a {what} is uint8 [H, W, 3], not {picture.dtype} {list(picture.shape)}")
    if picture.shape[:2] == (edge, edge):
        return picture
    return np.asarray(Image.fromarray(picture).resize((edge, edge), Image.Resampling.BOX))
