"""What can be wrong with a user's data. Every message names the file and says what to do."""

from __future__ import annotations

from vcap_jax.system.errors import VCapError


class ManifestError(VCapError, ValueError):
    """A manifest or a reference pool that cannot be used."""


class MediaError(VCapError, ValueError):
    """A picture or video file that is missing, truncated, unreadable or empty."""


class StorageError(VCapError, OSError):
    """The storage of a file does not answer: nothing is known of the file."""

    resumable = True


class NoUsableSamplesError(VCapError, RuntimeError):
    """A whole pass over the data, or a long piece of it, without a single sample that could be used."""
