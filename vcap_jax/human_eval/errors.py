"""What can be wrong with a study, and with an answer."""

from __future__ import annotations

from vcap_jax.system.errors import VCapError


class StudyError(VCapError, ValueError):
    """A study's folder or a file of records that cannot be used; the message names it and the remedy."""


class RuleBroken(VCapError, ValueError):
    """An answer that the protocol does not allow; the message names the rule."""


class Conflict(VCapError, RuntimeError):
    """An answer to something that has changed since it was shown, as in another tab."""
