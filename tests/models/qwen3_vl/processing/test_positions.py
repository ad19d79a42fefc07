from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.models.qwen3_vl.processing.positions import rope_positions

IMAGE, VIDEO = 90, 91


def positions(tokens: list[int], grids: list[tuple[int, int]]) -> np.ndarray:
    return rope_positions(
        np.asarray(tokens), np.asarray(grids), visual_token_ids=(IMAGE, VIDEO), merge_size=2
    )


def test_text_alone_counts_on_all_axes() -> None:
    np.testing.assert_array_equal(positions([1, 2, 3], []), [[0, 1, 2]] * 3)


def test_a_frame_stands_still_in_time_and_the_text_goes_on_after_its_longer_side() -> None:
    # Two tokens, a frame of 2 x 3 merged tokens, one token.
    got = positions([1, 2, *[IMAGE] * 6, 3], [(4, 6)])
    np.testing.assert_array_equal(got[0], [0, 1, 2, 2, 2, 2, 2, 2, 5])
    np.testing.assert_array_equal(got[1], [0, 1, 2, 2, 2, 3, 3, 3, 5])
    np.testing.assert_array_equal(got[2], [0, 1, 2, 3, 4, 2, 3, 4, 5])


def test_images_and_frames_of_a_video_follow_the_order_of_appearance() -> None:
    got = positions([VIDEO, 1, VIDEO, 2, *[IMAGE] * 4], [(2, 2), (2, 2), (4, 4)])
    np.testing.assert_array_equal(got[0], [0, 1, 2, 3, 4, 4, 4, 4])
    np.testing.assert_array_equal(got[2], [0, 1, 2, 3, 4, 5, 4, 5])


@pytest.mark.parametrize("tokens", [[1, IMAGE], [IMAGE, IMAGE, 1, IMAGE, IMAGE]])
def test_placeholders_that_are_not_the_frames_are_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="placeholders"):
        positions(tokens, [(4, 4)])
