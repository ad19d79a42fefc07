"""What the tests of the C++ kernels need."""

from __future__ import annotations

import os
import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "c++")), reason="needs a C++ compiler: install g++ or clang++"
)
