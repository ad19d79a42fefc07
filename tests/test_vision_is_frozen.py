"""What reinforcement learning cannot train is refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.config import RunConfig
from vcap_jax.configuration import ConfigError
from vcap_jax.policy import ModelConfig
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run import run


@pytest.mark.parametrize("frozen", [(), ("visual.blocks",), ("text.embed_tokens",)])
def test_a_run_that_would_train_the_vision_tower_is_refused(tmp_path: Path, frozen: tuple[str, ...]) -> None:
    """Its gradient would be zero and weight decay all that moves it: features are computed outside of the gradient."""
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"keep visual in model\.frozen"):
        run(RunConfig(model=ModelConfig(frozen=frozen)), folder)
    assert not folder.root.exists()
