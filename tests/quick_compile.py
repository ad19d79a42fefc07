"""XLA's flags for programs that run a few times: compiling them takes longer than running them.

XLA's newer fusion emitters and LLVM's optimisation passes are most of the time it takes to compile a small
model for the CPU. ``conftest`` sets the flags for all tests; those that start a run as a user does leave them out.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
from pathlib import Path

FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
)


def set_flags() -> None:
    """Adds to XLA_FLAGS what this XLA knows of ``FLAGS``, for this process and those that it starts."""
    if FLAGS[0] in os.environ.get("XLA_FLAGS", ""):
        return  # by the process that started this one
    given = [flag for flag in FLAGS if known(flag)]
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *given)).strip()


def usual() -> dict[str, int | bool]:
    """``compile(compiler_options=usual())``: as a run's programs are compiled."""
    options = {
        "xla_backend_optimization_level": 3,
        "xla_llvm_disable_expensive_passes": False,
        "xla_cpu_use_fusion_emitters": True,
    }
    return {name: value for name, value in options.items() if known(name)}


def flags() -> list[str]:
    """Those of ``FLAGS`` that are set: for processes that take nothing else over from XLA_FLAGS."""
    return [flag for flag in os.environ["XLA_FLAGS"].split() if flag in FLAGS]


def known(flag: str) -> bool:
    """Whether this XLA has a flag of that name.

    XLA ends a process that gives it a flag it does not know (any more). To ask one would take seconds before any test,
    and the names of the flags stand in the library.
    """
    name = flag.removeprefix("--").partition("=")[0].encode()
    (folder,) = importlib.util.find_spec("jaxlib").submodule_search_locations
    libraries = [path for path in sorted(Path(folder).iterdir()) if path.suffix in (".so", ".dylib")]
    for library in libraries:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"\0" + name + b"\0") >= 0:
                return True
    return False
