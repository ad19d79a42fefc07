"""Our input processing equals the public one: ids, grids, positions exactly, pixels within 1/255."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.live_reference import require_torch, require_torchvision
from tests.models.qwen3_vl.processing.cases import CASES, Case, pixels
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt
from vcap_jax.models.qwen3_vl.processing.pixels import resize

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
    for kind in ("image", "video"):
        chosen = np.flatnonzero(of_video == (kind == "video"))
        grids = public.get(f"{kind}_grids", np.zeros((0, 3), np.int32))
        expanded = np.repeat(grids[:, 1:], grids[:, 0], axis=0)
        np.testing.assert_array_equal(ours.grids[chosen], expanded)
        if len(chosen):
            theirs = public[f"{kind}_levels"].astype(np.int32)
            if kind == "image":  # theirs repeat it in time
                first, second = np.moveaxis(theirs.reshape(len(theirs), 3, 2, -1), 2, 0)
                np.testing.assert_array_equal(first, second)
                theirs = first.reshape(len(theirs), -1)
            levels = np.concatenate([ours.frames[i] for i in chosen])
            # torchvision rounds otherwise here and there.
            assert np.abs(levels - theirs).max() <= 1


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_output_of_the_public_processor(name: str) -> None:
    with np.load(GOLDEN / f"{name}.npz") as golden:
        assert_equal(CASES[name], CASES[name].encode(), dict(golden))


@pytest.mark.live
@pytest.mark.parametrize("name", CASES)
def test_equals_the_installed_public_processor(name: str) -> None:
    pytest.importorskip("torch")
    from tests.models.qwen3_vl.processing.public_processor import public_encode

    assert_equal(CASES[name], CASES[name].encode(), public_encode(CASES[name]))


@pytest.mark.live
@pytest.mark.parametrize(
    "sizes", [((144, 176), (128, 192)), ((300, 900), (288, 896)), ((1350, 1080), (1344, 1088))]
)
def test_frames_are_resized_as_the_public_processor_does(
    sizes: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    """Where one side grows and the other shrinks Pillow 13 alone may differ by 25 levels."""
    before, after = sizes
    frame = pixels(*before, seed=3)
    torch = require_torchvision() and require_torch()
    from torchvision.transforms.v2 import functional

    whole = torch.from_numpy(frame.copy()).permute(2, 0, 1)
    theirs = functional.resize(
        whole, list(after), interpolation=functional.InterpolationMode.BICUBIC, antialias=True
    )
    difference = resize(frame, *after).astype(int) - theirs.permute(1, 2, 0).numpy()
    assert np.abs(difference).max() <= 2
