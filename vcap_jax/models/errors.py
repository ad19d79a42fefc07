"""What can be wrong with a checkpoint folder and with the input of a prompt."""

from __future__ import annotations

from pathlib import Path

from vcap_jax.system.errors import VCapError


class CheckpointError(VCapError, ValueError):
    """A checkpoint that cannot be used as it is; the message names the file or tensors and the remedy."""


def damaged(file: Path, error: Exception) -> str:
    """What is said of weights that cannot be read."""
    return f"{file} is damaged or was not copied whole ({error}): copy or download it again"


class InputError(VCapError, ValueError):
    """A text, picture or video that cannot become a prompt."""


class PromptTooLargeError(InputError):
    """A prompt that does not fit into the largest bucket."""
