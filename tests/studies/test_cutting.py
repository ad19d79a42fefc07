"""Cut references say less, and nothing that the whole does not say."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.studies.cutting import cut
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import caption_claims


@pytest.mark.parametrize("modality", ["image", "video"])
def test_claims_of_a_cut_caption_are_among_those_of_the_whole(modality):
    for index in range(12):
        scene = sample_scene(modality, 0, index, "train")
        whole = full_caption(scene, np.random.default_rng(index))
        claims = [set(caption_claims(scene, cut(whole, modality, k))) for k in (1, 2, 99)]
        assert set() < claims[0] < claims[1] <= claims[2] == set(caption_claims(scene, whole))


def test_a_video_sentence_keeps_its_time():
    text = (
        "[0.0 - 2.0] A red circle moves left at the top left. The top right shows a ring.\n[2.0 - 4.0] More."
    )
    assert cut(text, "video", 1) == "[0.0 - 2.0] A red circle moves left at the top left."
    assert cut(text, "video", 3) == text
    assert cut("", "video", 1) == ""


@pytest.mark.parametrize("modality", ["image", "video"])
@pytest.mark.parametrize("text", ["[0.0 - 2.0]", "..."])
def test_what_has_no_sentence_stays(modality, text):
    """A policy drawing at temperature 1 writes such a reference once in a while; a pool may hold no empty one."""
    assert cut(text, modality, 1).strip()


def test_nothing_at_all_is_refused():
    with pytest.raises(ValueError, match="keep at least one"):
        cut("A. B.", "image", 0)
