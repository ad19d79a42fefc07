"""The public PyTorch model on the parity cases; ``python -m tests.models.qwen3_5.make_goldens`` writes golden files.

Needs torch. The golden files hold its answers, so that the default tests need neither.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from tests.models.qwen3_5 import parity_cases as cases
from tests.models.qwen3_vl.make_goldens import (
    answers_of,
    condense,
    load_file,
    pack,
    public_shapes,
    torch_model,
)
from vcap_jax.models.qwen3_5 import published
from vcap_jax.models.qwen3_5.config import Qwen35Config

GOLDEN = Path(__file__).parent / "golden"
PUBLISHED_FILE = GOLDEN / "published_shapes.json"


def golden_file(model: str) -> Path:
    return GOLDEN / f"{model}.npz"


def load(name: str) -> dict[str, np.ndarray]:
    """A golden file, in the form of ``condense``."""
    return load_file(golden_file(name))


def reference(name: str) -> dict[str, np.ndarray]:
    """``answers_of`` for one of ``MODELS``."""
    config = cases.MODELS[name]
    return answers_of(torch_model(config, cases.weights(config)), config)


def by_layers(shapes: dict[str, tuple[int, ...]]) -> dict[str, list[list[int]]]:
    """Join the layers: name with ``*`` for the layer -> [numbers of the layers, shape]."""
    joined: dict[str, list[list[int]]] = {}
    for name, shape in shapes.items():
        found = re.search(r"\.(\d+)\.", name)
        pattern = f"{name[: found.start()]}.*.{name[found.end() :]}" if found else name
        layers, known = joined.setdefault(pattern, [[], list(shape)])
        if known != list(shape):
            raise ValueError(f"{name}: {shape} where other layers have {known}")
        layers += [int(found[1])] if found else []
    return {pattern: [sorted(layers), shape] for pattern, (layers, shape) in sorted(joined.items())}


def load_published() -> dict[str, dict[str, list[list[int]]]]:
    return json.loads(PUBLISHED_FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    table = {
        size: by_layers(public_shapes(Qwen35Config.from_dict(values)))
        for size, values in published.CONFIGS.items()
    }
    PUBLISHED_FILE.write_text(json.dumps(table) + "\n", encoding="utf-8")
    for model_name in cases.MODELS:
        np.savez_compressed(golden_file(model_name), **pack(condense(reference(model_name))))
        print(golden_file(model_name), golden_file(model_name).stat().st_size, "bytes")
