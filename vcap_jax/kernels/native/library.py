"""The C++ kernels of ``cpp/``: compiled on this machine for this machine's processor, once, and known to XLA.

The library is kept in ``$XDG_CACHE_HOME/vcap-jax`` (``~/.cache/vcap-jax``) under a digest of everything that it is made
of: the sources, JAX's headers, the compiler and the processor's instructions. A folder into which another user could
put something else is refused. Any C++17 compiler that knows GCC's vectors will do, which GCC and Clang do; ``CXX``
names one, otherwise it is ``c++``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import jax
import jaxlib

from vcap_jax.system.private_folders import is_own_file, make_folder

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "cpp"
MAIN = "bindings.cc"
FUNCTIONS = ("attention_forward", "attention_backward", "attention_decode", "few_rows")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared")
SECONDS = 300
"""The longest a compiler may take; it takes 7 s here."""


class NoLibrary(ValueError):
    """The kernels cannot be had on this machine; the message says why and what a user can do."""


@functools.cache
def targets() -> dict[str, str]:
    """What XLA calls each of ``FUNCTIONS``, compiled and registered.

    Raises NoLibrary if there is no compiler or it cannot compile them.
    """
    digest, library = compiled()
    try:
        functions = ctypes.cdll.LoadLibrary(str(library))
    except OSError as error:
        raise _unusable(library.parent, error) from error
    names = {}
    for function in FUNCTIONS:
        # With the digest: a program from XLA's cache finds the function that it was compiled for, or none.
        names[function] = f"vcap_{function}_{digest}"
        handler = jax.ffi.pycapsule(getattr(functions, f"vcap_{function}"))
        jax.ffi.register_ffi_target(names[function], handler, platform="cpu")
    return names


def compiled(folder: Path | None = None) -> tuple[str, Path]:
    """The library's digest and file, which is made if it is not there. folder: of the files; None: the usual one.

    Raises NoLibrary, see ``targets``.
    """
    compiler = _compiler()
    digest = _digest(compiler)
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vcap-jax"
    library = folder / f"native-{digest}.so"
    start = time.perf_counter()
    try:
        # What is loaded runs as this user: it must be what this user, or root, has compiled.
        make_folder(folder)
        if is_own_file(library):
            return digest, library
        # Several processes may be at it: each compiles a file of its own, and the last one to finish is kept, whole.
        handle, unfinished = tempfile.mkstemp(dir=folder, suffix=".so")
    except OSError as error:
        raise _unusable(folder, error) from error
    os.close(handle)
    logger.info("native: compiling the C++ kernels for this processor, once, into %s", library)
    try:
        includes = ("-isystem", jax.ffi.include_dir())
        _run([*compiler, *FLAGS, *includes, str(SOURCES / MAIN), "-o", unfinished])
        Path(unfinished).chmod(0o700)
        Path(unfinished).replace(library)
    except OSError as error:
        raise _unusable(folder, error) from error
    finally:
        Path(unfinished).unlink(missing_ok=True)
    logger.info("native: compiled the C++ kernels in %.1f s", time.perf_counter() - start)
    return digest, library


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "c++"))
    if not command or shutil.which(command[0]) is None:
        raise NoLibrary(
            f"the C++ kernels need a compiler, and there is no {' '.join(command) or 'CXX'}: install one (g++ or "
            "clang++) or name one in CXX"
        )
    return command


def _digest(compiler: list[str]) -> str:
    """Of sources, headers, flags, and what the compiler predefines: its version and the processor's instructions."""
    known = _run([*compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    digest = hashlib.sha256(" ".join((*compiler, *FLAGS, jaxlib.__version__)).encode())
    digest.update(known.encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(command, str(error)) from error
    if done.returncode:
        raise _failed(command, done.stderr.strip())
    return done.stdout


def _unusable(folder: Path, error: OSError) -> NoLibrary:
    return NoLibrary(
        f"the library of the C++ kernels is kept in {folder}, which cannot be used ({error}); name a folder in "
        "XDG_CACHE_HOME"
    )


def _failed(command: list[str], said: str) -> NoLibrary:
    return NoLibrary(f"the C++ compiler failed; name another in CXX. {shlex.join(command)}: {said[-2000:]}")
