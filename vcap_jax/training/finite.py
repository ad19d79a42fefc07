"""Parameters that have become no numbers end a run before they take the place of those that were kept."""

from __future__ import annotations

import math

from vcap_jax.system.errors import VCapError
from vcap_jax.training.checkpoint import Checkpointer


class NotFinite(VCapError, ArithmeticError):
    """A gradient was no number, or infinite; the message names the checkpoint from before its update."""


def check_finite(norm: float, checkpoints: Checkpointer, step: int) -> None:
    """Raises NotFinite if the gradient of ``step`` (from 1) was not finite: the parameters are lost, and neither logged
    nor saved in the place of those before. norm: of that gradient, the same in all processes."""
    if math.isfinite(norm):
        return
    kept = checkpoints.latest_step()
    there = "No checkpoint was written before"
    if kept is not None:
        there = f"The checkpoint of step {kept} in {checkpoints.folder} is from before it"
    raise NotFinite(
        f"step {step}: the norm of the gradient is {norm:g}, so what its update has left is not saved. {there}. Begin "
        "a new run, from there or anew, with a lower optimizer.learning_rate or with model.dtype=float32"
    )
