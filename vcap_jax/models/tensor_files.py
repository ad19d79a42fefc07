"""Safetensors files as this project writes them."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

PLAIN_TYPES = ("F32", "BF16", "F16", "F64")
"""Types of numbers that need nothing else to be read. Others are quantised, and a scale belongs to them."""
_SYSTEM = re.compile(r"\(os error (\d+)\)")


def write_tensors(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes one file of tensors by name, in place of what was there; it appears whole or not at all.

    Its mode is that of any new file in its folder (0644 under the usual umask): safetensors fills a temporary file,
    which its owner alone may read, and leaves it so. Raises OSError, as of any other file, where the system refuses.
    """
    # Safetensors writes memory as it lies, and what comes from a device may lie in another order.
    rows_first = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(rows_first, path, metadata={"format": "pt"})
    except SafetensorError as error:
        if (refused := _SYSTEM.search(str(error))) is None:
            raise
        number = int(refused[1])
        raise OSError(number, os.strerror(number), str(path)) from error
    path.chmod(_mode_of_new_files(path.parent))


def _mode_of_new_files(folder: Path) -> int:
    """By making one: the umask can be read only by setting it, for all threads, and a folder may have its own rules."""
    probe = folder / f".{secrets.token_hex(8)}"
    probe.touch(exist_ok=False)
    try:
        return probe.stat().st_mode & 0o777
    finally:
        probe.unlink()
