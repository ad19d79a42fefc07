"""A captioner from whatever holds one: a Hugging Face folder, an Orbax checkpoint folder, or a run.

A run holds only what it trained. The rest is in what it started from, which its config.yaml names
(``model.path``, ``model.step``). That may be a run itself. At the end of the line is a checkpoint
folder, the origin.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flax import nnx

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.models.family import CaptionModel, Processor, VisualBudget
from vcap_jax.models.lora import LoraConfig
from vcap_jax.models.policy import ModelConfig, Params, Policy, policy_of
from vcap_jax.models.registry import family_at
from vcap_jax.parallel.sharding import Placement
from vcap_jax.report.best_checkpoint import BEST, AskedStep, read_best
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.model_loading import checkpoint_folder, load_adapted
from vcap_jax.system.digests import digest_of
from vcap_jax.system.json_values import JsonDict
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError


@dataclass(frozen=True, kw_only=True)
class CheckpointSource:
    """Where parameters come from.

    path: as the user named it; folder: of the checkpoint; run: it is a run; step: of a run's checkpoint.
    """

    path: str
    folder: Path
    run: bool
    step: int | None = None

    def __str__(self) -> str:
        return f"{self.path} at step {self.step}" if self.run else self.path


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run that parameters went through. model: what it trained, and what it started from."""

    source: CheckpointSource
    model: ModelConfig


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """How a captioner came about. origin: the checkpoint folder at the beginning; runs: since then, the last first."""

    origin: Path
    runs: tuple[TrainedRun, ...] = ()


def under_adapters(runs: Sequence[TrainedRun]) -> CheckpointSource | None:
    """Of ``Lineage.runs`` the last whose parameters themselves were trained: what the adapters since then lie on. None
    where that is the origin."""
    return next((run.source for run in runs if run.model.lora is None), None)


def named_source(path: str, step: AskedStep = None) -> CheckpointSource:
    """What ``path`` is; the step is not looked for, but for which is the best. Raises as ``checkpoint_source``."""
    folder = checkpoint_folder(path)
    run = RunFolder(folder)
    is_run = _is_run(folder)
    if not is_run and run.config.exists() and not ((folder / "config.json").exists() or runs_in(folder)):
        raise _none_yet(path)
    if step is not None and not is_run:
        raise ConfigError(f"{path} is a single checkpoint, not a run: leave the step out")
    if step == BEST:
        best = read_best(run)
        if best is None:
            raise CheckpointError(
                f"{path} keeps no best checkpoint (logging.keep_best): name a step, or leave it out for the last"
            )
        step = best.step
    return CheckpointSource(path=path, folder=folder, run=is_run, step=step)


def _is_run(folder: Path) -> bool:
    run = RunFolder(folder)
    return run.config.exists() and run.checkpoints.is_dir()


def _none_yet(path: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is a run that has no complete checkpoint yet: if it is going on, wait for its first "
        "(logging.save_every); if it has stopped, go on with it by the command that began it, with --resume"
    )


def runs_in(root: Path) -> list[Path]:
    """The runs in a folder of rounds, or of distillation, which has no checkpoints of its own; none in a run."""
    if RunFolder(root).checkpoints.is_dir():
        return []
    return sorted(path.parent for where in ("*", "*/student") for path in root.glob(f"{where}/config.yaml"))


def checkpoint_source(path: str, step: AskedStep = None) -> CheckpointSource:
    """What ``path`` is. A run's step is ``step`` or that of its last checkpoint.

    Raises CheckpointError if a run has no such checkpoint, or keeps no best one, ConfigError for a step of something
    that is no run.
    """
    source = named_source(path, step)
    if not source.run:
        return source
    # Read only: the run may still be going on.
    with Checkpointer(RunFolder(source.folder).checkpoints, read_only=True) as checkpoints:
        if not checkpoints.steps():
            raise _none_yet(path)
        return dataclasses.replace(source, step=checkpoints.existing_step(source.step))


def starting_source(config: RunConfig) -> CheckpointSource:
    """What a run with ``config`` starts from; raises what ``checkpoint_source`` raises."""
    return checkpoint_source(config.model.path, config.model.step)


def lineage(path: str, step: AskedStep = None) -> Lineage:
    """The line of what ``path`` is (of a run, at ``step`` or its last checkpoint). No checkpoint is opened.

    Raises ConfigError if a run started from something that is not there, or from itself.
    """
    runs: list[TrainedRun] = []
    source = named_source(path, step)
    while source.run:
        if any(run.source.folder.resolve() == source.folder.resolve() for run in runs):
            raise ConfigError(f"{source.path} is named as its own start: was the folder of a run replaced?")
        model = load_config(RunConfig, [RunFolder(source.folder).config]).model
        runs.append(TrainedRun(source=source, model=model))
        # What has been lost of a start is told with who started from it.
        folder = checkpoint_folder(model.path)
        source = CheckpointSource(path=model.path, folder=folder, run=_is_run(folder), step=model.step)
    if runs and not (source.folder / "config.json").is_file():
        raise ConfigError(
            f"{runs[-1].source.path} started from {source.path}, which is neither a checkpoint (config.json) "
            "nor a run with checkpoints: put it back, or correct model.path in the run's config.yaml"
        )
    return Lineage(origin=source.folder, runs=tuple(runs))


def checkpoint_files(path: str, step: AskedStep = None) -> str | None:
    """A digest of the names, sizes and times of all files that the captioner at ``path`` is read from; None where a
    run's checkpoint is not there, or is being removed.

    The same digest means the same parameters. Another one says nothing: files may have been copied. Raises what
    ``lineage`` raises.
    """
    line = lineage(path, step)
    folders, single = [line.origin], list[Path]()
    for run in line.runs:
        folder = RunFolder(run.source.folder)
        own = "" if run.source.step is None else str(run.source.step)
        if not (folder.checkpoints / own).is_dir():
            return None
        folders.append(folder.checkpoints / own)
        single.append(folder.config)
    rows = []
    try:
        files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
        for file in sorted([*files, *single]):
            about = file.stat()
            rows.append([str(file), about.st_size, about.st_mtime_ns])
    except FileNotFoundError:  # between being listed and being looked at
        return None
    return digest_of(json.dumps(rows))


def check_start(config: RunConfig) -> None:
    """Raises ConfigError if a run with ``config`` cannot start from what ``config.model.path`` names.

    That is so for a run whose adapters are not those of ``model.lora``. A run without adapters can be
    the base of new ones, or of another ``model.frozen``.
    """
    line = lineage(config.model.path, config.model.step)
    theirs = line.runs[0].model.lora if line.runs else None
    if theirs is not None:
        _check_same_adapters(line.runs[0].source, theirs, config.model.lora)


def load_start(config: RunConfig, placement: Placement) -> Policy:
    """The policy that a run with ``config`` starts from, split into trained and frozen as ``config.model`` says.

    Raises what ``check_start`` raises, CheckpointError if a checkpoint is gone.
    """
    check_start(config)
    return _load(config, config.model, lineage(config.model.path, config.model.step), placement)


def load_captioner(config: RunConfig, path: str, placement: Placement, *, step: AskedStep = None) -> Policy:
    """The policy at ``path``, in the precision and with the visual budget of ``config``.

    A run's policy is split into trained and frozen as the run split it.
    Raises what ``checkpoint_source`` and ``lineage`` raise.
    """
    line = lineage(path, checkpoint_source(path, step).step)
    model = dataclasses.replace(config.model, lora=None)
    if line.runs:
        theirs = line.runs[0].model.for_restoring()
        model = dataclasses.replace(
            config.model, lora=theirs.lora, frozen=theirs.frozen, family=theirs.family
        )
    return _load(config, model, line, placement)


def configured_processor(config: RunConfig, origin: Path) -> Processor:
    """The processor of a checkpoint folder with the visual budget of ``config``."""
    budget = VisualBudget(
        max_pixels=config.data.max_pixels,
        max_frames=config.data.max_frames,
        max_frame_tokens=config.data.max_frame_tokens,
        fps=config.data.fps,
    )
    return family_at(origin, config.model.family).processor(origin, budget)


def export_command(source: CheckpointSource) -> str:
    """How a run's checkpoint is made a folder that stays."""
    step = "" if source.step is None else f" --step {source.step}"
    return f"python launch/convert.py to-hf {shlex.quote(source.path)} FOLDER{step}"


def _check_same_adapters(source: CheckpointSource, theirs: LoraConfig, ours: LoraConfig | None) -> None:
    there = _adapter_settings(theirs) | {"adapter": None}  # a folder would be another start
    here = {} if ours is None else _adapter_settings(ours)
    differing = [key for key in there if here.get(key) != there[key]]
    if not differing:
        return
    given = "null" if ours is None else ", ".join(f"{key}: {json.dumps(here[key])}" for key in differing)
    wanted = " ".join(shlex.quote(f"model.lora.{key}={json.dumps(there[key])}") for key in differing)
    raise ConfigError(
        f"{source.path} trained adapters, and model.lora is not theirs ({given}). To go on with them set "
        f"{wanted}; to train anything else export it merged and set model.path=FOLDER: {export_command(source)}"
    )


def _adapter_settings(lora: LoraConfig) -> JsonDict:
    settings = dataclasses.asdict(lora) | {"targets": sorted(lora.targets)}
    return {key: value for key, value in settings.items() if key != "seed"}


def _load(config: RunConfig, model: ModelConfig, line: Lineage, placement: Placement) -> Policy:
    processor = configured_processor(dataclasses.replace(config, model=model), line.origin)
    whole = load_adapted(model, line.origin, placement=placement)
    return policy_of(model, _with_trained(whole, line.runs, placement), processor)


def _with_trained(model: CaptionModel, runs: Sequence[TrainedRun], placement: Placement) -> CaptionModel:
    """``model`` with what the runs trained.

    runs: the last first. Parameters that a later run holds are not read from an earlier one.
    """
    placement = placement.with_rules(model.family().partition_rules)
    graphdef, state = nnx.split(model)
    arrays = dict(nnx.to_flat_state(state))
    left = set(arrays)
    for run in runs:
        wanted = {path for path in left if run.model.trains(path)}
        if wanted:
            # In the tree's own order, which is the same for all processes.
            part = nnx.from_flat_state((path, leaf) for path, leaf in arrays.items() if path in wanted)
            arrays.update(nnx.to_flat_state(_restored(run.source, part, placement)))
            left -= wanted
    trained: CaptionModel = nnx.merge(graphdef, nnx.from_flat_state(arrays.items()))
    return trained


def _restored(source: CheckpointSource, params: Params, placement: Placement) -> Params:
    """The parameters of a run's checkpoint that are named in ``params``, in their types."""
    with Checkpointer(RunFolder(source.folder).checkpoints, read_only=True) as checkpoints:
        steps = checkpoints.steps()
        if source.step is not None and source.step not in steps:
            raise CheckpointError(
                f"{source.path} has no checkpoint of step {source.step} (model.step); there are {steps}, the last that "
                "its logging.keep leaves. What started from that step cannot go on without it: start a new run, best "
                "from a copy that stays (model.path=FOLDER): "
                f"{export_command(dataclasses.replace(source, step=max(steps, default=None)))}"
            )
        restored, _ = checkpoints.restore({"params": placement.abstract(params)}, source.step, partial=True)
    return restored["params"]
