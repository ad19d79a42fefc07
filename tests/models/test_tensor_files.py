"""Tensor files may be read by whoever may read the folder's other files."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding
from safetensors.numpy import load_file

from vcap_jax.models.tensor_files import write_tensors

WRITE = """
import os, sys
from pathlib import Path
import numpy as np
from vcap_jax.models.tensor_files import write_tensors
os.umask(int(sys.argv[2], 8))
write_tensors({"a": np.arange(3)}, Path(sys.argv[1]))
"""


@pytest.mark.parametrize(("umask", "mode"), [("022", 0o644), ("077", 0o600), ("002", 0o664)])
def test_the_umask_decides(tmp_path: Path, umask: str, mode: int) -> None:
    path = tmp_path / "model.safetensors"
    for _ in range(2):  # also in place of what is there
        subprocess.run(
            [sys.executable, "-c", WRITE, str(path), umask],
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert path.stat().st_mode & 0o777 == mode
        assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_arrays_are_written_as_they_are_however_they_lie_in_memory(tmp_path: Path) -> None:
    """NumPy gives an array of a device in the device's order, which need not be row after row."""
    rows = np.arange(6.0).reshape(2, 3)
    columns_first = Format(Layout(major_to_minor=(1, 0)), SingleDeviceSharding(jax.devices("cpu")[0]))
    arrays = {
        "device": np.asarray(jax.device_put(np.float32(rows), columns_first)),
        "part": rows[:, :2],
        "turned": rows.T,
        "one": np.array(3.0),
    }
    assert not arrays["device"].flags.c_contiguous
    write_tensors(arrays, tmp_path / "model.safetensors")
    read = load_file(tmp_path / "model.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array, err_msg=name)


def test_what_the_system_refuses_is_told_as_of_any_other_file(tmp_path: Path) -> None:
    """A full disk is one line with a remedy then, and no traceback of safetensors; a limit stands for it here."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match=r"model\.safetensors") as refused:
            write_tensors({"a": np.zeros(100_000)}, tmp_path / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.value.errno == errno.EFBIG
    assert not (tmp_path / "model.safetensors").exists()
