"""What a path to a captioner may be; that a run's parameters are found is tested with the runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.models.policy import ModelConfig
from vcap_jax.report.best_checkpoint import Best, write_best
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.checkpoint_source import (
    checkpoint_files,
    checkpoint_source,
    configured_processor,
    lineage,
    named_source,
)
from vcap_jax.run.config import RunConfig
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError
from vcap_jax.world.backbone import BACKBONE_FOLDER


def test_a_checkpoint_folder_has_no_steps() -> None:
    source = checkpoint_source("embedded")
    assert (source.folder, source.run, str(source)) == (BACKBONE_FOLDER, False, "embedded")
    with pytest.raises(ValueError, match="leave the step out"):
        checkpoint_source("embedded", 3)


def test_a_run_has_its_last_checkpoint_or_the_one_asked_for(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run", RunConfig())
    with Checkpointer(folder.checkpoints, keep=2) as checkpoints:
        with pytest.raises(CheckpointError, match="no complete checkpoint"):
            checkpoint_source(str(folder.root))
        for step in (4, 8):
            checkpoints.save(step, {"params": jnp.zeros(2)})
        checkpoints.wait()
    source = checkpoint_source(str(folder.root))
    assert (source.run, source.step) == (True, 8)
    assert str(source).endswith("run at step 8")
    assert checkpoint_source(str(folder.root), 4).step == 4
    with pytest.raises(CheckpointError, match="no checkpoint of step 5"):
        checkpoint_source(str(folder.root), 5)


def test_a_run_that_stopped_before_its_first_checkpoint_is_to_be_gone_on_with(tmp_path: Path) -> None:
    """It was taken for a Hugging Face folder without a config.json."""
    folder = RunFolder.open(tmp_path / "run", RunConfig())
    path = str(folder.root)
    told = rf"^{path} is a run that has no complete checkpoint yet: .* with --resume$"
    for find in (named_source, checkpoint_source, lineage):
        for step in (None, 3):
            with pytest.raises(CheckpointError, match=told):
                find(path, step)
    folder.checkpoints.mkdir()
    with pytest.raises(CheckpointError, match=told):
        checkpoint_source(path)
    # Those of several runs are told otherwise, and whoever started from such a run is named.
    RunFolder.open(tmp_path / "rounds", RunConfig())
    RunFolder.open(tmp_path / "rounds" / "e1", RunConfig())
    assert not named_source(str(tmp_path / "rounds")).run
    folder.checkpoints.rmdir()
    later = RunFolder.open(tmp_path / "later", RunConfig(model=ModelConfig(path=path, step=4)))
    later.checkpoints.mkdir()
    with pytest.raises(ConfigError, match=rf"later started from {path}, which is neither"):
        lineage(str(later.root))


def test_best_names_the_checkpoint_that_the_run_keeps_as_its_best(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run", RunConfig())
    with Checkpointer(folder.checkpoints) as checkpoints:
        for step in (4, 8):
            checkpoints.save(step, {"params": jnp.zeros(2)})
    with pytest.raises(CheckpointError, match=r"keeps no best checkpoint \(logging.keep_best\)"):
        checkpoint_source(str(folder.root), "best")
    best = Best(metric="judged/reward", best_is="highest", step=4, value=0.5, low=0.4, high=0.6, n=9)
    write_best(folder, best)
    assert checkpoint_source(str(folder.root), "best").step == 4
    assert lineage(str(folder.root), "best").runs[0].source.step == 4
    assert checkpoint_source(str(folder.root)).step == 8
    with pytest.raises(ValueError, match="leave the step out"):
        checkpoint_source("embedded", "best")


def test_files_of_a_checkpoint_that_is_being_removed_are_those_of_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.open(tmp_path / "run", RunConfig())
    with Checkpointer(folder.checkpoints) as checkpoints:
        checkpoints.save(4, {"params": jnp.zeros(2)})
    assert checkpoint_files(str(folder.root), 4) is not None
    is_file = Path.is_file

    def going(path: Path) -> bool:
        """Each goes as soon as it was listed."""
        there = is_file(path)
        if there and folder.checkpoints in path.parents:
            path.unlink()
        return there

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_file", going)
        assert checkpoint_files(str(folder.root), 4) is None
    shutil.rmtree(folder.checkpoints / "4")
    assert checkpoint_files(str(folder.root), 4) is None


def test_pictures_and_clips_are_bounded_as_the_settings_say() -> None:
    budget = {"max_pixels": 4096, "max_frames": 6, "max_frame_tokens": 5, "fps": 1.5}
    config = load_config(RunConfig, [], [f"data.{name}={value}" for name, value in budget.items()])
    made: Any = configured_processor(config, BACKBONE_FOLDER)
    found = (made.image.max_pixels, made.video.max_frames, made.video.max_video_tokens, made.video.fps)
    assert found == tuple(budget.values())
