"""The public package is used without its advice to install PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vcap_jax.world.backbone import BACKBONE_FOLDER

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.long
def test_reading_a_tokenizer_says_nothing() -> None:
    code = (
        "from vcap_jax.models.qwen3_vl.processing import Processor\n"
        f"Processor.from_pretrained({str(BACKBONE_FOLDER)!r})\n"
        "import vcap_jax.world.tokenizer"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRANSFORMERS_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout + done.stderr == ""


def test_it_is_imported_in_one_place() -> None:
    imported = re.compile(r"^\s*(from|import) transformers\b", re.MULTILINE)
    found = [
        path.relative_to(ROOT)
        for room in ("vcap_jax", "gpu_judge", "launch")
        for path in (ROOT / room).rglob("*.py")
        for match in imported.finditer(path.read_text(encoding="utf-8"))
        # For the checker of types alone.
        if "TYPE_CHECKING:\n" + match.group() not in path.read_text(encoding="utf-8")
    ]
    assert found == [Path("vcap_jax/models/qwen3_vl/processing/public.py")]
