"""Names of folders that checkpoints cannot be written under."""

from __future__ import annotations

import glob
from pathlib import Path


def taken_for_a_pattern(folder: Path) -> str | None:
    """What is wrong with a folder for checkpoints, in words; None if nothing is.

    Orbax looks for what each process has written by a pattern that begins with the folder's own path. Where that has
    characters of patterns nothing is found and nothing joined. The checkpoint is told to be complete and cannot be
    read (``orbax.checkpoint`` 0.11, ``merge_ocdbt_per_process_files``).
    """
    path = str(folder.absolute())
    if glob.escape(path) == path:
        return None
    return (
        f"{path} has one of * ? [ in it, which Orbax takes for a pattern: its checkpoints could not be read"
    )
