"""Classes that a configuration names by import path, ``package.module:Class``, and what goes wrong in them, in a line:
of code that a user wrote, where in it."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import UnionType

from vcap_jax.system.errors import VCapError

RAISED = (Exception, SystemExit)
"""What a user's own code may raise; a SystemExit would end a thread without a word."""

_LONGEST = 500
_PACKAGE = Path(__file__).resolve().parents[1]
_OTHERS = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def named_object(
    path: str, *, where: str, kind: str, known: Collection[str], error: type[VCapError]
) -> object:
    """What ``path`` names.

    where: the setting and its value, which messages begin with. kind: what is wanted ("family"); known: the names of
    those of this project that may be given. Raises ``error`` if there is nothing of that path.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        one_of = f"{kind} of this project: give one of {', '.join(known)}, or the import path of your own as"
        raise error(f"{where} is no {one_of if known else 'import path: give'} package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except RAISED as raised:
        remedy = ""
        if isinstance(raised, ModuleNotFoundError) and f"{module_name}.".startswith(f"{raised.name}."):
            remedy = "; it must be installed or on PYTHONPATH"
        raise error(
            f"{where}: {module_name} cannot be imported: {described(raised, module_name)}{remedy}"
        ) from raised
    found = getattr(module, name, None)
    if found is None:
        raise error(f"{where}: {module_name} has no {name}")
    return found


@contextmanager
def users_code(
    where: str,
    module: str,
    error: type[VCapError],
    *,
    passing: tuple[type[Exception], ...] = (),
    ours: bool = False,
) -> Iterator[None]:
    """Raises what a user's code in ``module`` raises as ``error``: ``where``, and what it was and in which line.

    passing: comes through as it is. ours: the code is this project's own, whose defects keep their trace.
    """
    try:
        yield
    except passing:
        raise
    except RAISED as raised:
        if ours:
            raise
        raise error(f"{where}: {described(raised, module)}") from raised


def is_a(value: object, kinds: type | UnionType | tuple[type, ...]) -> bool:
    """``isinstance`` for what a user's code gave: a type checker would take the annotations at their word, and call
    the check needless."""
    return isinstance(value, kinds)


def described(error: BaseException, module: str) -> str:
    """Type, message and place of an error that a user's code in ``module`` raised."""
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
    beside it, unless that code is installed itself."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    package = _folder_of(module.partition(".")[0])
    for frame in reversed(frames):
        file = Path(frame.filename).resolve()
        own = package is not None and file.is_relative_to(package)
        if own or not any(file.is_relative_to(folder) for folder in (_PACKAGE, *_OTHERS)):
            return f"{frame.filename}:{frame.lineno}, in {frame.name}"
    return None


def _folder_of(top: str) -> Path | None:
    """The folder of a package, the file of a module; None if it is not there."""
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return path.parent if path.stem == "__init__" else path
