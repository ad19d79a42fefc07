"""What went wrong in a reward family, in a line: of code that a user wrote, where in it."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

from vcap_jax.system.errors import VCapError

_LONGEST = 500
_PACKAGE = Path(__file__).resolve().parents[1]
_OTHERS = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class FamilyError(VCapError, ValueError):
    """The configured reward family cannot be used, or has failed; the message names it and what is wrong."""


def described(error: BaseException, module: str) -> str:
    """Type, message and place of an error that the code of the reward family in ``module`` raised."""
    try:
        message = str(error).strip()
    except Exception:  # by a __str__ of the user's own
        message = "its message cannot be read"
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}..."
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = _place(error, module)
    return text if place is None else f"{text} ({place})"


def _place(error: BaseException, module: str) -> str | None:
    """FILE:LINE of the last frame in the user's own code: neither of this project, nor of Python or what is installed
    beside it, unless the family is installed itself."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    package = _folder_of(module.partition(".")[0])
    for frame in reversed(frames):
        file = Path(frame.filename).resolve()
        if package is not None and file.is_relative_to(package):
            return f"{frame.filename}:{frame.lineno}, in {frame.name}"
        if not any(file.is_relative_to(folder) for folder in (_PACKAGE, *_OTHERS)):
            return f"{frame.filename}:{frame.lineno}, in {frame.name}"
    return None


def _folder_of(top: str) -> Path | None:
    """The folder of a package, the file of a module; None if it is not there."""
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return path.parent if path.stem == "__init__" else path
