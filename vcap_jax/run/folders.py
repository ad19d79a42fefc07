"""Run folders as commands open them: a run's own, and those of a recipe that is made of several runs; and what is done
next with one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import jax

from vcap_jax.parallel.processes import ALONE, DistributedConfig, Processes, device_summary
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.checkpoint_source import check_start, starting_source
from vcap_jax.run.checks import repeats_exactly
from vcap_jax.run.command_line import other_command
from vcap_jax.run.config import RunConfig
from vcap_jax.run.inputs import Work, check_inputs
from vcap_jax.run.judge_record import note_same_judge, noted_judge
from vcap_jax.system.json_values import JsonObject, as_object, as_whole

logger = logging.getLogger(__name__)

JUDGE_MAY_DIFFER = (
    "urls",
    "api_key_env",
    "concurrency",
    "deadline_s",
    "max_tries",
    "backoff_s",
    "max_backoff_s",
    "max_retry_after_s",
    "ready_timeout_s",
    "outage_timeout_s",
    "breaker_failures",
    "media_uuid",
    "lead_request",
    "sleep_mode",
    "store",
)
"""Of ``judge``: where it is, how long it is waited for and how requests travel. The rest decides scores: who judges,
how it draws, what it is shown, how much it may write."""

ROLLOUT_SERVERS_MAY_DIFFER = (
    "urls",
    "weights_dir",
    "concurrency",
    "timeout_s",
    "attempts",
    "load_timeout_s",
    "outage_timeout_s",
    "sleep_mode",
)
"""Of ``rollout.vllm``: where the servers are and how long they are waited for."""

_MICRO_BATCH = "grpo.groups_per_micro_batch"
_PROCESSES = ("distributed.processes", "distributed.automatic")

MAY_DIFFER = (
    "logging",
    "trackers",
    "evaluation.every",
    "alarms",
    *(f"judge.{name}" for name in JUDGE_MAY_DIFFER),
    *(f"second_judge.judge.{name}" for name in JUDGE_MAY_DIFFER),
    "second_judge.max_pending",
    *(f"evaluation.other_judge.{name}" for name in JUDGE_MAY_DIFFER),
    "distributed",
    "mesh",
    _MICRO_BATCH,
    "grpo.caption_buckets",
    "sft.groups_per_micro_batch",
    "sft.caption_buckets",
    "rollout.groups_per_batch",
    "rollout.short_groups",
    "rollout.single_groups",
    "rollout.short_length",
    "rollout.offload",
    *(f"rollout.vllm.{name}" for name in ROLLOUT_SERVERS_MAY_DIFFER),
    "data.threads",
    "data.prefetch",
    "compilation_cache",
)
"""Settings that may change when a run is resumed: how it reports, whom it asks, what it runs on."""

SUBRUN_MAY_DIFFER = (*MAY_DIFFER, "data.references", "sft.captions")
"""The same for a run that is part of a recipe. Its pool is known by the captions' digest
(``references.remember_pool``), not by its path, since the recipe's folder may have moved."""


_SINGLE_RUNS = ("training", "supervised")
"""Of what ``RunFolder.claim`` notes."""

_UNKEPT = ("distributed",)
"""Says where a run was done, and is another at every start."""


def open_told_run(
    config: RunConfig,
    root: Path,
    processes: Processes,
    say: Callable[[str], None],
    *,
    resume: bool,
    work: Work = "training",
) -> tuple[RunConfig, RunFolder]:
    """``open_run``, and says what is opened, on which devices, and that there was nothing to resume."""
    config, folder = open_run(config, root, processes, resume=resume, work=work)
    say(f"run {root} on {device_summary(processes)}")
    if not repeats_exactly(jax.default_backend(), os.environ.get("XLA_FLAGS", "")):
        say(
            "sums on a GPU come in no fixed order: the same run again, or resumed, differs by rounding, unless "
            "XLA_FLAGS has --xla_gpu_deterministic_ops=true (docs/resuming.md)"
        )
    if resume and not folder.resumed:
        say(f"{root} holds no run yet: a new one begins")
    return config, folder


def open_run(
    config: RunConfig,
    root: Path,
    processes: Processes = ALONE,
    *,
    resume: bool = True,
    work: Work = "training",
) -> tuple[RunConfig, RunFolder]:
    """Opens the run folder ``root`` of a recipe or a single run. Returns the configuration, and the folder.

    If the run starts from another run, ``model.step`` of that configuration says which checkpoint. The
    folder's config.yaml notes it, so it stays the same when the other run trains further.

    All processes must call it together. resume: take up what is there, if anything is. work: what the
    folder is for.
    Raises RunFolderError. For a new folder, and before it is made, also what ``check_inputs``,
    ``check_start`` and ``starting_source`` raise.
    """

    def opened() -> tuple[bool, int | None]:
        there = RunFolder(root)
        if not there.begun:
            for note in check_inputs(config, work):
                logger.info("%s", note)
        pinned = _pinned(config, there, resume)
        folder = _open(root, pinned, MAY_DIFFER, resume=resume)
        return folder.resumed, pinned.model.step

    resumed, step = processes.on_process_0("run folder", opened)
    return _starting_at(config, step), RunFolder(root, resumed=resumed)


def _pinned(config: RunConfig, folder: RunFolder, resume: bool) -> RunConfig:
    """``config`` with the step of the run it starts from: as ``folder`` was begun, else the one that is there now."""
    begun_with = _section(folder, "model")
    same = resume and folder.config.exists() and begun_with.get("path") == config.model.path
    if not (same or folder.begun):
        check_start(config)
        return _starting_at(config, starting_source(config).step)
    if config.model.step is not None:
        return config
    step = begun_with.get("step")
    return _starting_at(config, None if step is None else as_whole(step, f"{folder.config}: model.step"))


def _starting_at(config: RunConfig, step: int | None) -> RunConfig:
    return replace(config, model=replace(config.model, step=step))


def check_resumption(config: RunConfig, root: Path) -> bool:
    """Whether ``open_run`` would go on with a run at ``root``; nothing is written. Raises RunFolderError."""
    folder = RunFolder(root)
    if folder.config.exists():  # what a new run starts from is looked at when it begins
        config = _pinned(config, folder, resume=True)
    terms = _resuming(config, folder, MAY_DIFFER)
    return folder.check_resumption(config, may_differ=terms.may_differ, remedies=terms.remedies)


def _open(root: Path, config: RunConfig, may_differ: tuple[str, ...], *, resume: bool) -> RunFolder:
    terms = _resuming(config, RunFolder(root), may_differ)
    return RunFolder.open(
        root,
        config,
        resume=resume,
        may_differ=terms.may_differ,
        unkept=_UNKEPT,
        remedies=terms.remedies,
    )


@dataclass(frozen=True)
class _Terms:
    """On which a run is gone on with: what may differ, and what to do instead of changing the rest."""

    may_differ: tuple[str, ...]
    remedies: Mapping[str, str]


def _resuming(config: RunConfig, there: RunFolder, may_differ: tuple[str, ...]) -> _Terms:
    noted = noted_judge(there)
    # An undertaking of several runs has no checkpoint of its own to begin from.
    single = there.kind.exists() and there.kind.read_text(encoding="utf-8").strip() in _SINGLE_RUNS
    remedies = _step_remedies(there.root, config) if single else {}
    if config.judge.model is None or noted in (None, config.judge.model):
        # Null takes what answers, which the note is compared with as soon as it does.
        may_differ = (*may_differ, "judge.model")
    else:
        remedies["judge.model"] = (
            f"The run was judged by {noted}, and rewards of two judges do not compare: set judge.model={noted}, or "
            "start a new run in another folder."
        )
    if config.grpo.objective.aggregation == "bnpo":
        others = (f"distributed.{field.name}" for field in fields(DistributedConfig))
        decides = (_MICRO_BATCH, *_PROCESSES)
        may_differ = tuple(key for key in (*may_differ, *others) if key not in ("distributed", *decides))
        remedies |= dict.fromkeys(
            decides,
            "Under grpo.objective.aggregation bnpo the loss depends on the micro-batches, which each process makes of "
            "its own groups: set it back, or start a new run in another folder.",
        )
    return _Terms(may_differ, remedies)


def _section(folder: RunFolder, name: str) -> JsonObject:
    """Of the configuration that a run was last started with, as it was written; nothing where there is none."""
    return as_object(folder.written_config().get(name) or {}, f"{folder.config}: {name}")


def _step_remedies(root: Path, config: RunConfig) -> dict[str, str]:
    """What to do instead of giving a run another number of steps."""
    steps = {
        "max_steps": config.max_steps,
        "epochs": config.epochs,
        "sft.max_steps": config.sft.max_steps,
        "sft.epochs": config.sft.epochs,
    }
    return {
        key: (
            "The learning rate's schedule spans all steps, so a run keeps their number. To train on from where it is, "
            f"begin a run from its last checkpoint: the same command without --resume, with --run-dir {root}-2 "
            f"model.path={root} {key}={'null' if value is None else value} (those of the new run alone). To end it "
            "earlier, stop it with Ctrl-C: its last checkpoint can be used like that of a run that has ended."
        )
        for key, value in steps.items()
    }


def open_subrun(config: RunConfig, whole: RunFolder, root: Path, processes: Processes = ALONE) -> RunFolder:
    """Opens the folder ``root`` of a run that is part of the recipe in ``whole``, new or to be resumed.

    All processes must call it together.

    config: made of the one that ``open_run`` returned. The stages share the embedded world of the whole, which is
    rendered once. Raises RunFolderError.
    """

    def opened() -> bool:
        stage = _open(root, config, SUBRUN_MAY_DIFFER, resume=True)
        note_same_judge(stage, [whole, *map(RunFolder, sorted(whole.root.iterdir()))])
        _share_world(config, whole, stage)
        return stage.resumed

    return RunFolder(root, resumed=processes.on_process_0(f"stage {root.name}", opened))


def _share_world(config: RunConfig, whole: RunFolder, stage: RunFolder) -> None:
    if config.data.manifest is None and not stage.data.exists():
        whole.data.mkdir(parents=True, exist_ok=True)
        stage.data.symlink_to(os.path.relpath(whole.data, stage.root), target_is_directory=True)


def next_steps(folder: RunFolder, modality: Literal["image", "video"]) -> str:
    """For who has trained, a line for each: what to look at, how to caption with the run, how to export it."""
    root = str(folder.root)
    pages = (folder.before_after_page("judged"), folder.samples_page, folder.plots)
    page = next((page for page in pages if page.exists()), folder.summary)
    return "\n".join(
        [
            f"look at:  {page}",
            f"caption:  {other_command('caption', '--by', root)} {'CLIP' if modality == 'video' else 'PICTURE'}",
            f"export:   {other_command('convert', 'to-hf', root, 'exported')}",
        ]
    )
