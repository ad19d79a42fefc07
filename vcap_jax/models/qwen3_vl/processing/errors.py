"""What can be wrong with the input of a prompt."""

from __future__ import annotations

from vcap_jax.system.errors import VCapError


class InputError(VCapError, ValueError):
    """A text, picture or video that cannot become a prompt."""


class PromptTooLargeError(InputError):
    """A prompt that does not fit into the largest bucket."""
