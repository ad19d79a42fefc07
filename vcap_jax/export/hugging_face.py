"""Runs and checkpoints to Hugging Face folders, and back.

A run's checkpoints hold what is trained. What is frozen stays in what the run started from
(``run.checkpoint_source``). A Hugging Face folder written from both is complete: config.json,
safetensors, tokenizer and processor files, and a model card (README.md). Adapters are merged into
it, or written alone as a folder that PEFT reads.

The way back makes an Orbax checkpoint folder of a Hugging Face one: ``params/`` holds all parameters, the small files
lie beside it. ``model.path`` takes either; Orbax restores each device's part alone, which on a large mesh is quicker
than cutting it out of safetensors.

Each folder is written inside of itself, in ``.unfinished``. Its files move to their places when all are whole, the one
that tells what the folder is last: where an export is killed nobody takes what it left for a checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vcap_jax.captioning.settings import CAPTIONING_FILE, write_captioning
from vcap_jax.configuration import load_config
from vcap_jax.export.model_card import CARD, write_model_card
from vcap_jax.models.family import CaptionModel, ModelFamily, Processor, VisualBudget
from vcap_jax.models.lora_files import CONFIG_FILE, save_adapter
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.report.best_checkpoint import AskedStep
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.checkpoint_source import (
    Lineage,
    checkpoint_source,
    lineage,
    load_captioner,
    named_source,
    runs_in,
    under_adapters,
)
from vcap_jax.run.config import RunConfig
from vcap_jax.run.model_loading import PARAMS_FOLDER, load_model
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import taken_for_a_pattern
from vcap_jax.system.json_values import JsonObject, read_json_object
from vcap_jax.training.checkpoint import Checkpointer

GENERATION_CONFIG = "generation_config.json"
_UNFINISHED = ".unfinished"
_LAST = ("config.json", CONFIG_FILE)
"""Without which nothing reads the folder."""


class ConversionError(VCapError, ValueError):
    """A source or target that cannot be converted; the message names it and the remedy."""


class Exported(NamedTuple):
    """step: of the run's checkpoint; None if the source was no run. adapters_kept: the share of what LoRA adapters add
    that rounding has left in the merged tensors, see ``lora.Additions.kept``; None without adapters."""

    step: int | None
    adapters_kept: float | None


class Imported(NamedTuple):
    """dtype: that parameters are kept in, but for those that the model computes with in float32. stated: what
    config.json says of it, None for nothing."""

    dtype: str
    stated: str | None


def checkpoint_to_hf(
    source: Path,
    target: Path,
    *,
    step: AskedStep = None,
    dtype: str = "bfloat16",
    family: str | None = None,
) -> Exported:
    """Writes the policy of a run folder (its checkpoint ``step``, by default the last) or of a folder made by
    ``checkpoint_from_hf`` to ``target``.

    dtype: of the stored tensors. family: of a folder, see ``ModelConfig``; a run names its own.
    Raises ConversionError if ``source`` is neither or ``target`` is not empty.
    """
    _refuse_used(target)
    placement = Placement.build(MeshConfig())
    if (source / PARAMS_FOLDER).is_dir():
        if step is not None:
            raise ConversionError(f"{source} is a single checkpoint, not a run: leave --step out")
        line, model = Lineage(origin=source), load_model(source, placement=placement, family=family)
        trained_step = None
    else:
        line, model = _trained(source, step, placement)
        trained_step = line.runs[0].source.step
    with _whole(target) as folder:
        # First: what it reads of the runs may be damaged.
        write_model_card(folder, family=model.family(), base=line.origin, runs=line.runs, dtype=dtype)
        kept = model.family().save(model, folder, dtype=jnp.dtype(dtype))
        _write_small_files(model.family(), line.origin, folder)
        if line.runs:
            run = load_config(RunConfig, [RunFolder(line.runs[0].source.folder).config])
            write_captioning(run, folder)
        else:
            _copy_of(line.origin, folder, CAPTIONING_FILE)
    return Exported(trained_step, kept)


def adapter_to_peft(
    source: Path, target: Path, *, step: AskedStep = None, dtype: str = "float32"
) -> int | None:
    """Writes the adapters of a LoRA run's checkpoint (``step``, by default the last) to ``target`` as a folder that
    PEFT reads; returns the step.

    It names its base: a checkpoint folder or, for adapters on what a run trained, that run and its step. Of a run, and
    of an Orbax folder, ``checkpoint_to_hf`` makes a folder that PEFT's user loads, as the model card says.
    dtype: of the stored tensors. Raises ConversionError if ``source`` is no run with ``model.lora`` or ``target`` is
    not empty.
    """
    _refuse_used(target)
    line, model = _trained(source, step, Placement.build(MeshConfig()))
    lora = line.runs[0].model.lora
    if lora is None:
        raise ConversionError(
            f"{source} trained the parameters themselves and has no adapters: leave --adapter out"
        )
    # Not always the origin: adapters may have been put on what a run had trained.
    full = under_adapters(line.runs)
    base = line.origin.absolute() if full is None else replace(full, path=str(full.folder.absolute()))
    with _whole(target) as folder:
        write_model_card(
            folder, family=model.family(), base=line.origin, runs=line.runs, dtype=dtype, adapter=True
        )
        save_adapter(model, folder, lora, base=str(base), dtype=jnp.dtype(dtype))
    return line.runs[0].source.step


def _trained(source: Path, step: AskedStep, placement: Placement) -> tuple[Lineage, CaptionModel]:
    """How a run's checkpoint came about, and its model; raises ConversionError if ``source`` is no run."""
    run = RunFolder(source)
    if not run.config.exists():
        raise ConversionError(
            f"{source} is neither a run folder (config.yaml) nor a checkpoint ({PARAMS_FOLDER}/)"
        )
    if parts := runs_in(source):
        raise ConversionError(f"{source} holds runs, name one of them: {', '.join(map(str, parts))}")
    path = str(source.absolute())
    step = checkpoint_source(path, step).step
    config = load_config(RunConfig, [run.config])
    # Nothing is computed, and the machine that trained may have had kernels of its own.
    anywhere = replace(config.model, attention="chunked", decode_attention="dense")
    policy = load_captioner(replace(config, model=anywhere), path, placement, step=step)
    return lineage(path, step), policy.merge()


def checkpoint_from_hf(source: Path, target: Path, *, family: str | None = None) -> Imported:
    """Writes an Orbax checkpoint folder of a Hugging Face one, parameters in the precision they are stored in: of
    several the one that holds all, whatever config.json says.

    family: see ``ModelConfig``.
    Raises ConversionError if ``target`` is not empty or ``source`` is a run, CheckpointError if it is not complete.
    """
    _refuse_used(target)
    if (wrong := taken_for_a_pattern(target)) is not None:
        raise ConversionError(f"{wrong}; choose another name")
    if named_source(str(source)).run:
        raise ConversionError(
            f"{source} is a run, which model.path takes as it is: from-hf takes the folder that to-hf makes of it"
        )
    model = load_model(source, placement=Placement.build(MeshConfig()), family=family)
    with _whole(target) as folder:
        with Checkpointer(folder / PARAMS_FOLDER, keep=1) as checkpoints:
            checkpoints.save(0, {"params": nnx.state(model)})
            checkpoints.wait()
        (folder / "config.json").write_bytes((source / "config.json").read_bytes())
        _write_small_files(model.family(), source, folder)
        # What it was, and under which licence, holds for the copy too.
        _copy_of(source, folder, CAPTIONING_FILE, CARD)
    config = read_json_object(source / "config.json")
    stated = config.get("dtype") or config.get("torch_dtype")
    kept = min((leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))), key=lambda dtype: dtype.itemsize)
    return Imported(kept.name, None if stated is None else str(stated))


def write_new(
    target: Path, model: CaptionModel, config: JsonObject, processor: Processor, *, dtype: DTypeLike
) -> None:
    """Writes a model that comes from no folder to one that is complete, in place of what was there.

    config: its config.json. dtype: of the stored tensors.
    """
    target.mkdir(parents=True, exist_ok=True)
    model.family().save(model, target, dtype=dtype)
    ends = {"eos_token_id": list(processor.eos_token_ids), "pad_token_id": processor.pad_token_id}
    for name, fields in (("config.json", config), (GENERATION_CONFIG, ends)):
        (target / name).write_text(json.dumps(fields, indent=2) + "\n")
    processor.save_pretrained(target)
    write_model_card(target, family=model.family(), base=target, dtype=jnp.dtype(dtype).name)


def _write_small_files(family: ModelFamily, origin: Path, target: Path) -> None:
    before = set(target.iterdir())
    processor = family.processor(origin, VisualBudget())
    processor.save_pretrained(target)
    # As the origin has them: transformers 5 writes a tokenizer_config.json that 4 cannot read, and 4 the origin's.
    written = (file.name for file in set(target.iterdir()) - before)
    _copy_of(origin, target, *written, GENERATION_CONFIG)
    if (file := target / GENERATION_CONFIG).exists():
        values, ends = read_json_object(file), list(processor.eos_token_ids)
        named = values.get("eos_token_id")
        # What ends a turn may be missing there, and public generation would go on behind a caption.
        if not set(ends) <= set(named if isinstance(named, list) else [named]):
            file.write_text(json.dumps({**values, "eos_token_id": ends}, indent=2) + "\n")


def _copy_of(origin: Path, target: Path, *names: str) -> None:
    """Those of the files that ``origin`` has, as they are."""
    for name in names:
        if (origin / name).is_file():
            (target / name).write_bytes((origin / name).read_bytes())


def _refuse_used(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise ConversionError(f"{target} is a file: give a new folder")
    if (target / _UNFINISHED).exists():
        raise ConversionError(
            f"{target} holds an export that was ended before it was whole, or is at work: if it is not, remove the "
            "folder, or give a new one"
        )
    if target.exists() and any(target.iterdir()):
        raise ConversionError(f"{target} is not empty: give a new folder")


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Gives a folder of the same name to fill, whose files are ``target``'s in the end; an error leaves none.

    Inside of ``target``, not beside it: that may be a disk of its own.
    """
    new = not target.exists()
    work = target / _UNFINISHED
    folder = work / target.resolve().name
    folder.mkdir(parents=True)
    try:
        yield folder
        for file in sorted(folder.iterdir(), key=lambda file: file.name in _LAST):
            file.rename(target / file.name)
    finally:
        shutil.rmtree(work)
        if new and not any(target.iterdir()):
            target.rmdir()
