"""In which order a route wants the endpoints.

Rendezvous hashing gives each route an order of its own: a group stays on one server, groups spread evenly, and a server
that drops out moves its own groups and no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def preference(route: str, addresses: Sequence[str]) -> list[int]:
    """Indices of the addresses in the order in which a route wants them (rendezvous hashing)."""

    def weight(index: int) -> bytes:
        return hashlib.blake2b(f"{route}|{addresses[index]}".encode(), digest_size=8).digest()

    return sorted(range(len(addresses)), key=weight, reverse=True)
