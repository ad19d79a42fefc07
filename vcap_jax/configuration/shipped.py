"""The configuration files that come with the package: found in a clone and in an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_configs() -> Path:
    """Folder of the shipped configurations: ``configs`` beside the package in a clone, inside it once installed.

    Raises FileNotFoundError if there is neither.
    """
    for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs"):
        if (folder / "embedded").is_dir():
            return folder
    raise FileNotFoundError(
        f"no configs folder inside or beside {_PACKAGE}: install the package anew, or use a whole clone"
    )


def find_config(path: Path) -> Path:
    """``path``, or the shipped file of that name where there is no such file: ``configs/paper/image.yaml`` can be
    named so in any folder."""
    if path.exists() or path.is_absolute() or path.parts[:1] != ("configs",):
        return path
    shipped = shipped_configs().joinpath(*path.parts[1:])
    return shipped if shipped.exists() else path
