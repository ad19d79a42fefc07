"""Run folders as commands open them: one of its own, and those of an undertaking of several over the same data."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from vcap_jax.captioners import check_start, starting_source
from vcap_jax.config import RunConfig
from vcap_jax.configuration import load_config
from vcap_jax.distributed import ALONE, Processes
from vcap_jax.report.run_folder import RunFolder

MAY_DIFFER = (
    "logging",
    "alarms",
    "judge",
    "distributed",
    "mesh",
    "grpo.groups_per_micro_batch",
    "sft.groups_per_micro_batch",
    "rollout.groups_per_batch",
    "data.threads",
    "data.prefetch",
    "compilation_cache",
)
"""What an undertaking may be resumed with that it was not begun with: how it reports, whom it asks, what it runs on."""

STAGE_MAY_DIFFER = (*MAY_DIFFER, "data.references", "sft.captions")
"""Of a stage that is resumed. The folder of the whole may have moved, or be named from elsewhere: which captions a
stage began with is known by their digest (``references.remember_pool``), not by their path."""


def open_whole(
    config: RunConfig, root: Path, processes: Processes = ALONE, *, resume: bool = True
) -> tuple[RunConfig, RunFolder]:
    """The run folder ``root`` of an undertaking or a single run, and the configuration to do it with: where it starts
    from a run, ``model.step`` says which checkpoint, in the folder's config.yaml too, and stays when that run goes on.

    All processes must call it together. resume: go on with what is there, if anything is. Raises RunFolderError
    and, for a new one, what ``check_start`` and ``starting_source`` raise.
    """

    def opened() -> tuple[bool, int | None]:
        pinned = _pinned(config, RunFolder(root))
        folder = RunFolder.open(root, pinned, resume=resume, may_differ=MAY_DIFFER)
        return folder.resumed, pinned.model.step

    resumed, step = processes.by_first("run folder", opened)
    return _starting_at(config, step), RunFolder(root, resumed=resumed)


def _pinned(config: RunConfig, folder: RunFolder) -> RunConfig:
    """``config`` with the step of the run it starts from: as ``folder`` was begun, else the one that is there now."""
    if not folder.config.exists():
        check_start(config)
        return _starting_at(config, starting_source(config).step)
    if config.model.step is not None:
        return config
    return _starting_at(config, load_config(RunConfig, [folder.config]).model.step)


def _starting_at(config: RunConfig, step: int | None) -> RunConfig:
    return replace(config, model=replace(config.model, step=step))


def open_stage(config: RunConfig, whole: RunFolder, root: Path, processes: Processes = ALONE) -> RunFolder:
    """The run folder ``root`` of a stage of ``whole``, new or to go on with. All processes must call it together.

    config: made of the one that ``open_whole`` returned. The stages share the embedded world of the whole, which is
    rendered once. Raises RunFolderError.
    """

    def opened() -> bool:
        stage = RunFolder.open(root, config, resume=True, may_differ=STAGE_MAY_DIFFER)
        _share_world(config, whole, stage)
        return stage.resumed

    return RunFolder(root, resumed=processes.by_first(f"stage {root.name}", opened))


def _share_world(config: RunConfig, whole: RunFolder, stage: RunFolder) -> None:
    if config.data.manifest is None and not stage.data.exists():
        whole.data.mkdir(parents=True, exist_ok=True)
        stage.data.symlink_to(os.path.relpath(whole.data, stage.root), target_is_directory=True)
