"""VCap in JAX: visual captioning trained by GRPO on the witness-adjudicator reward.

The package root imports nothing heavy: ``vcap_jax.world`` and ``vcap_jax.reward`` are used by the judge
sidecar, which runs without JAX. ``Captioner``, ``Caption`` and ``Inputs`` are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vcap_jax.captioning.caption import Caption as Caption
    from vcap_jax.captioning.captioner import Captioner as Captioner
    from vcap_jax.captioning.inputs import Inputs as Inputs

_PUBLIC = {
    "Caption": "vcap_jax.captioning.caption",
    "Captioner": "vcap_jax.captioning.captioner",
    "Inputs": "vcap_jax.captioning.inputs",
}

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
