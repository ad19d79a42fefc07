"""benchmarks/gpu_new_tokens.py, as far as no GPU is needed."""

from __future__ import annotations

import jax
import pytest

from benchmarks import gpu_new_tokens
from benchmarks.gpu_new_tokens import SIZES, Size
from benchmarks.gpu_trace import Kernel


def test_kernels_are_told_apart_by_their_names():
    ran = [
        Kernel(f"{name}_mosaic_gpu_kernel", 0, 1000 * microseconds)
        for name, times in (("vcap_decode_prompt", (1, 2, 9)), ("vcap_decode_captions", (4, 5, 6)))
        for microseconds in times
    ]
    ran += [Kernel("loop_add_fusion_7", 0, 500), Kernel("loop_maximum_fusion", 0, 1000)]
    assert gpu_new_tokens.by_part(ran, calls=3) == {"prompt": 2, "captions": 5, "rest": pytest.approx(0.5)}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.model} {size.groups} x {size.prompt}")
def test_what_must_be_read_is_what_the_caches_hold(size: Size):
    """But for the columns that no token has yet."""
    _, keys, values, own_keys, own_values = (
        shape.size * shape.dtype.itemsize for shape in gpu_new_tokens.shapes(size)
    )
    tokens = (size.tokens + gpu_new_tokens.NEW) / (size.width + gpu_new_tokens.CHUNK)
    least = size.microseconds(1e6)  # a byte a microsecond
    assert least["prompt"] == keys + values
    assert least["captions"] == pytest.approx(tokens * (own_keys + own_values))


def test_without_a_gpu_it_says_so(capsys, monkeypatch, tmp_path):
    assert jax.devices()[0].platform == "cpu"
    monkeypatch.setattr("sys.argv", ["gpu_new_tokens.py", "--out", str(tmp_path / "found.json")])
    assert gpu_new_tokens.main() == 1
    assert "JAX sees cpu and no NVIDIA GPU" in capsys.readouterr().err
