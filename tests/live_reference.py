"""Makes the public PyTorch packages usable for the tests marked ``live``.

``pip install torch`` and ``pip install torchvision --no-deps`` are enough. On a machine without CUDA the
registry's torchvision cannot load its compiled part and then fails to import; the two operators its Python
part asks for are declared by hand here. They are never called.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

_libraries: list[Any] = []  # a torch Library takes its operators with it when it is collected


def require_torch() -> Any:
    """The torch module; skips the test where it is not installed."""
    return pytest.importorskip("torch", reason="the live comparison needs torch")


def require_torchvision() -> Any:
    """The torchvision module, with its operators declared where they cannot be loaded; skips where not
    installed."""
    torch = require_torch()
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        pytest.skip("the live comparison needs torchvision (pip install torchvision --no-deps)")
    if not hasattr(torch.ops.torchvision, "nms") and not _load_compiled(torch, Path(spec.origin).parent):
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
    return importlib.import_module("torchvision")


def _load_compiled(torch: Any, folder: Path) -> bool:
    for path in sorted(folder.glob("_C*.so")):
        try:
            torch.ops.load_library(str(path))
            return True
        except OSError:
            continue
    return False
