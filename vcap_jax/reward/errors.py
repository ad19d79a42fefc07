"""What ends a run because of its judge or its reward family. A single judgement that fails is a Failure instead."""

from __future__ import annotations

from vcap_jax.system.errors import VCapError


class JudgeUnavailable(VCapError, RuntimeError):
    """The endpoints cannot be used as they are; the message says what was tried and what to do."""


class NotReachable(JudgeUnavailable):
    """Nothing answered; it may later."""


class JudgeOutage(JudgeUnavailable):
    """No endpoint has answered for ``judge.outage_timeout_s``. What was judged before is kept."""

    resumable = True


class MediaMismatch(JudgeUnavailable):
    """The judge's prompt does not hold the pictures or frames that were sent."""


class FamilyError(VCapError, ValueError):
    """The configured reward family cannot be used, or has failed; the message names it and what is wrong."""
