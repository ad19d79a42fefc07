"""The base of every error that a user, a disk or a network can cause, and mend."""

from __future__ import annotations


class VCapError(Exception):
    """Ends what was asked for; the message names the thing and the remedy.

    Commands print it as ``error: MESSAGE``, without a traceback (``vcap_jax.command_line``). Anything else that is
    raised is a defect of the program and keeps its traceback.
    """
