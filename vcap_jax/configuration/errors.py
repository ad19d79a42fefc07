"""What is wrong with a configuration."""

from __future__ import annotations

import json

from vcap_jax.system.errors import ProblemsError

_KINDS = {"dict": "mapping", "str": "text", "bool": "boolean"}


class ConfigError(ProblemsError):
    """A configuration that cannot be used."""

    def __str__(self) -> str:
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "a problem"
        return "\n  - ".join([f"{count} in the configuration:", *self.problems])


def given(value: object) -> str:
    """A refused value as a message shows it, shortened, with its kind."""
    if value is None:
        return "null"
    shown = json.dumps(value, default=str, ensure_ascii=False)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    kind = type(value).__name__
    return f"{shown} ({_KINDS.get(kind, kind)})"
