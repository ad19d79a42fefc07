"""In which order a route wants the endpoints.

Rendezvous hashing gives each route an order of its own: a group stays on one server, groups spread evenly, and a server
that drops out moves its own groups and no others.
"""

from __future__ import annotations

from collections.abc import Sequence

from vcap_jax.system.digests import number_of


def preference(route: str, addresses: Sequence[str]) -> list[int]:
    """Indices of the addresses in the order in which a route wants them (rendezvous hashing)."""

    def weight(index: int) -> int:
        return number_of(f"{route}|{addresses[index]}")

    return sorted(range(len(addresses)), key=weight, reverse=True)
