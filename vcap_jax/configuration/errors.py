"""What is wrong with a configuration."""

from __future__ import annotations

import json

from vcap_jax.system.errors import VCapError

_KINDS = {"dict": "mapping", "str": "text", "bool": "boolean"}


class ConfigError(VCapError, ValueError):
    """A configuration that cannot be used. ``problems`` holds one sentence for each thing to correct."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
        super().__init__("\n  - ".join([f"{count} in the configuration:", *self.problems]))


def given(value: object) -> str:
    """A refused value as a message shows it, shortened, with its kind."""
    if value is None:
        return "null"
    shown = json.dumps(value, default=str, ensure_ascii=False)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    kind = type(value).__name__
    return f"{shown} ({_KINDS.get(kind, kind)})"
