"""Our input processing equals the public one: ids, grids, positions exactly, pixels within 1/255."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.qwen3_vl.processing.cases import CASES, Case
from vcap_jax.qwen3_vl.inputs import EncodedPrompt

GOLDEN = Path(__file__).parent / "golden"


def assert_equal(case: Case, ours: EncodedPrompt, public: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(ours.tokens, public["tokens"])
    np.testing.assert_array_equal(ours.positions, public["positions"])
    processor = case.processor()
    is_video = ours.tokens == processor.video_token_id
    np.testing.assert_array_equal(ours.is_visual, is_video | (ours.tokens == processor.image_token_id))
    # Ours are in the order of appearance; the public processor keeps images and videos apart.
    starts = np.cumsum([0] + [len(frame) // processor.merge_size**2 for frame in ours.frames])[:-1]
    of_video = is_video[ours.is_visual][starts] if ours.frames else np.zeros(0, bool)
    for kind, tolerance in (("image", 0.01), ("video", 1.01)):
        chosen = np.flatnonzero(of_video == (kind == "video"))
        grids = public.get(f"{kind}_grids", np.zeros((0, 3), np.int32))
        expanded = np.repeat(grids[:, 1:], grids[:, 0], axis=0)
        np.testing.assert_array_equal(ours.grids[chosen], expanded)
        if len(chosen):
            levels = np.concatenate([ours.frames[i] for i in chosen]) * 127.5 + 127.5
            # Images go through the same Pillow call. Videos: torchvision rounds otherwise here and there.
            assert np.abs(levels - public[f"{kind}_levels"]).max() < tolerance


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_output_of_the_public_processor(name: str) -> None:
    with np.load(GOLDEN / f"{name}.npz") as golden:
        assert_equal(CASES[name], CASES[name].encode(), dict(golden))


@pytest.mark.live
@pytest.mark.parametrize("name", CASES)
def test_equals_the_installed_public_processor(name: str) -> None:
    pytest.importorskip("torch")
    from tests.qwen3_vl.processing.public_processor import public_encode

    assert_equal(CASES[name], CASES[name].encode(), public_encode(CASES[name]))
