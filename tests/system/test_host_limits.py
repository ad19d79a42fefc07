"""The memory that a job may take, as the files of the kernel tell it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from vcap_jax.system.host_limits import memory_limit

GIB = 2**30
JOB = "system.slice/slurmstepd.scope/job_77"
HOST = {"proc/meminfo": f"MemTotal:       {1024 * 2**20} kB\nMemFree: 1 kB\n"}
UNLIMITED = "9223372036854771712"


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({}, 1024),
        # SLURM, second version: the job's limit lies above the task's group.
        (
            {
                "proc/self/cgroup": f"0::/{JOB}/step_0/user/task_0\n",
                f"sys/fs/cgroup/{JOB}/step_0/user/task_0/memory.max": "max\n",
                f"sys/fs/cgroup/{JOB}/memory.max": f"{100 * GIB}\n",
            },
            100,
        ),
        # SLURM, first version.
        (
            {
                "proc/self/cgroup": "9:cpu,cpuacct:/\n4:memory:/slurm/uid_1/job_77/step_0\n0::/\n",
                "sys/fs/cgroup/memory/slurm/uid_1/job_77/step_0/memory.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/slurm/uid_1/job_77/memory.limit_in_bytes": f"{100 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
            },
            100,
        ),
        # Containers: the group's name is the host's, and its own files are the topmost, or it is the topmost itself.
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * GIB}\n",
            },
            64,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{64 * GIB}\n"}, 64),
        ({"sys/fs/cgroup/memory.max": f"{64 * GIB}\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 1024),
    ],
)
def test_a_job_may_take_less_than_the_host_has(tmp_path: Path, files: Mapping[str, str], gib: int) -> None:
    for name, text in {**HOST, **files}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert memory_limit(tmp_path) == gib * GIB


def test_where_nothing_tells_nothing_is_known(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
