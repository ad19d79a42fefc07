"""Writes golden/NAME.npz: what the public processor makes of every case.

    python -m tests.models.qwen3_vl.processing.make_goldens

Needs the reference packages (transformers 5.23, torch, torchvision).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.models.qwen3_vl.processing.cases import CASES
from tests.models.qwen3_vl.processing.public_processor import public_encode

FOLDER = Path(__file__).parent / "golden"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, case in CASES.items():
        values = public_encode(case)
        np.savez_compressed(FOLDER / f"{name}.npz", **values)
        print(name, {key: value.shape for key, value in values.items()})


if __name__ == "__main__":
    main()
