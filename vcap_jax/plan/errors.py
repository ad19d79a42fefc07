"""What cannot be planned."""

from __future__ import annotations

from vcap_jax.system.errors import VCapError


class PlanningError(VCapError, ValueError):
    """A plan that was asked for and cannot be made; the message names what to give instead."""
