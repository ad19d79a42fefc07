"""How much of the host this process may take: of its memory, and of its processor's cores.

A job's limit, of SLURM or a container, is that of a control group (cgroups(7)), and may be far less than the host has.
The limits of all the groups that a group is in hold for it too. A container may show its own as the topmost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes: the least of what the host has and what the control groups of this process allow; None where nothing
    tells. root: of the file system."""
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[int]:
    told = [(root / "proc/meminfo", r"MemTotal:\s+(\d+) kB", 1024)]
    told += [(file, r"(\d+)", 1) for file in _files(root)]
    for file, pattern, unit in told:
        try:
            found = re.match(pattern, file.read_text())
        except OSError:
            continue
        if found:  # a group without a limit says "max"
            yield int(found[1]) * unit


def _files(root: Path) -> Iterator[Path]:
    """Those with the limits of this process's groups, and of the groups around them."""
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # of the second version, which has one tree for all
            top, name = mounts, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = mounts / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for group in dict.fromkeys((own, *own.parents)):
            yield top / group / name


def usable_cores() -> int:
    """Cores: fewer than the machine has where a cluster's job, or `taskset`, has been given some of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
