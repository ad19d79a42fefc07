"""Captions that try to be more than descriptions: a corpus to hold a judge against.

Each attack is a function from what an attacker knows to the text it would write, so the same corpus serves any scene,
any judge and both modalities. Nothing here is used by the server.
"""

from benchmarks.attacks.attack import Attack, Category, Modality, Target
from benchmarks.attacks.claims import CLAIM_ATTACKS
from benchmarks.attacks.disguises import DISGUISE_ATTACKS
from benchmarks.attacks.orders import ORDER_ATTACKS

CORPUS: tuple[Attack, ...] = (*ORDER_ATTACKS, *DISGUISE_ATTACKS, *CLAIM_ATTACKS)


def attacks_for(modality: Modality) -> tuple[Attack, ...]:
    """The attacks that make sense for images, or for videos."""
    return tuple(attack for attack in CORPUS if attack.only in (None, modality))


__all__ = ["CORPUS", "Attack", "Category", "Modality", "Target", "attacks_for"]
