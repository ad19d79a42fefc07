"""What ends a run because of its reward family."""

from __future__ import annotations

from vcap_jax.system.errors import VCapError


class FamilyError(VCapError, ValueError):
    """The configured reward family cannot be used, or has failed; the message names it and what is wrong."""
