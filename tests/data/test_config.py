"""Settings of the data."""

from __future__ import annotations

import pytest

from vcap_jax.data import config
from vcap_jax.data.config import DataConfig


def test_samples_are_read_by_all_cores_and_a_step_ahead_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "usable_cores", lambda: 6)
    assert DataConfig().reading_threads == 6
    # A process's share of a step, but something for each thread, and no more than memory is sure to hold.
    assert [DataConfig().read_ahead(share) for share in (1, 16, 128)] == [6, 16, 32]
    monkeypatch.setattr(config, "usable_cores", lambda: 128)
    assert DataConfig().reading_threads == 16
    told = DataConfig(threads=3, prefetch=5)
    assert (told.reading_threads, told.read_ahead(64)) == (3, 5)


@pytest.mark.parametrize("name", ["image_prompt", "video_prompt"])
@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_request_without_text_is_refused(name: str, blank: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.{name} has no text"):
        DataConfig(**{name: blank})
