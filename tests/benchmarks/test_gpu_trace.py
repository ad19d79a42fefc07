"""benchmarks/gpu_trace.py on a profile of known events; no GPU is needed to read one."""

import pytest
from jax.profiler import ProfileData

from benchmarks import gpu_trace
from benchmarks.gpu_trace import Kernel

NAMES = {1: "loop_add_fusion_28", 2: "loop_add_fusion_3", 3: "gemm_fusion_dot.121_0", 4: "MemcpyD2H"}
"""What ran, by number."""


def profile(streams: list[list[tuple[int, int, int]]], plane: str = "/device:GPU:0") -> ProfileData:
    """Events (name, start and duration in microseconds) on streams, and a line that is none."""

    def line(name: str, events: list[tuple[int, int, int]]) -> str:
        listed = "".join(
            f"events {{ metadata_id: {of} offset_ps: {start * 10**6} duration_ps: {duration * 10**6} }}"
            for of, start, duration in events
        )
        return f'lines {{ name: "{name}" {listed} }}'

    names = "".join(
        f'event_metadata {{ key: {key} value {{ id: {key} name: "{name}" }} }}' for key, name in NAMES.items()
    )
    lines = [line(f"Stream #{number}(Compute)", events) for number, events in enumerate(streams)]
    lines.append(line("XLA Modules", [(1, 0, 1000)]))
    text = f'planes {{ name: "{plane}" {"".join(lines)} {names} }}'
    return ProfileData.from_serialized_xspace(ProfileData.text_proto_to_serialized_xspace(text))


def test_time_is_busy_where_a_kernel_of_any_stream_runs():
    ran = gpu_trace.kernels(profile([[(1, 0, 10), (2, 20, 10), (3, 30, 40)], [(4, 25, 10)]]))
    found = gpu_trace.summary(ran)
    assert found["kernels"] == 4
    assert found["seconds"] == pytest.approx(70e-6)
    assert found["busy_seconds"] == pytest.approx(60e-6)  # all but 10 to 20
    kinds = {row["kind"]: (row["kernels"], row["seconds"]) for row in found["kinds"]}
    assert kinds == {
        "gemm_fusion_dot": (1, pytest.approx(40e-6)),
        "loop_add_fusion": (2, pytest.approx(20e-6)),
        "MemcpyD2H": (1, pytest.approx(10e-6)),
    }
    lines = gpu_trace.table(found).splitlines()
    assert "4 kernels in 0.07 ms, the GPU busy for 86%" in lines[0]
    assert lines[1].split()[:4] == ["57.1%", "1", "x", "40.0"]


def test_rare_kinds_are_summed():
    found = gpu_trace.summary([Kernel(f"kernel{'a' * n}", n, 1) for n in range(gpu_trace.LARGEST + 3)])
    assert len(found["kinds"]) == gpu_trace.LARGEST + 1
    assert found["kinds"][-1]["kind"] == "3 others"
    assert sum(row["kernels"] for row in found["kinds"]) == found["kernels"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fusion.2447", "fusion"),
        ("input_transpose_fusion_25", "input_transpose_fusion"),
        ("gemm_fusion_dot.121_0", "gemm_fusion_dot"),
        ("nvjet_tst_64x8_64x16_2x1_v_bz_TNT", "nvjet_tst_64x8_64x16_2x1_v_bz_TNT"),
    ],
)
def test_layers_have_the_same_kernel(name: str, kind: str):
    assert gpu_trace.kind(name) == kind


def test_a_profile_without_a_gpu_is_told_so():
    with pytest.raises(ValueError, match="no Stream of a /device:GPU"):
        gpu_trace.kernels(profile([[]], plane="/host:CPU"))
