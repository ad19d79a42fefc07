"""What the tests of the C++ kernels need."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vcap_jax.kernels.native import library

needs_compiler = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "c++")), reason="needs a C++ compiler: install g++ or clang++"
)

NARROWER = [
    pytest.param(
        processor,
        marks=pytest.mark.skipif(
            platform.machine() not in ("x86_64", "AMD64"), reason="another family of processors"
        ),
    )
    for processor in ("x86-64", "haswell")
]
"""Processors with narrower vectors than this one may have."""


@contextmanager
def compiled_for(processor: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernels as that processor would have them. Skips the test if this one cannot run them.

    One folder serves all tests: XLA refuses a second library under the name of the first, and it is compiled once.
    """
    if processor == "haswell" and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    flags = tuple(f"-march={processor}" if flag == "-march=native" else flag for flag in library.FLAGS)
    assert flags != library.FLAGS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "FLAGS", flags)
        folder = tmp_path_factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:
            folder = folder.parent  # of all workers of this session
        patch.setenv("XDG_CACHE_HOME", str(folder / "narrower"))
        library.targets.cache_clear()
        try:
            yield
        finally:
            library.targets.cache_clear()
