"""Counts XLA compilations, so that a run can show that none happens in steady state."""

from __future__ import annotations

from typing import Self

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """``count`` programs compiled since the context was entered."""

    def __init__(self) -> None:
        self.count = 0

    def _listen(self, event: str, *_: object, **__: object) -> None:
        if event == _EVENT:
            self.count += 1

    def __enter__(self) -> Self:
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *exc: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)
