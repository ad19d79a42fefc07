"""The processor's cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Fewer than the machine has where a cluster's job, or `taskset`, has been given some of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
