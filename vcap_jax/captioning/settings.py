"""Settings for captioning with any checkpoint: the run's own, the Hugging Face folder's, or those of a served model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, TypeAlias

import jax
import yaml

from vcap_jax.configuration import ConfigError, load_config, shipped_configs
from vcap_jax.data.config import DataConfig
from vcap_jax.models.buckets import Buckets
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.checkpoint_source import CheckpointSource, named_source
from vcap_jax.run.config import RunConfig
from vcap_jax.system.json_values import JsonDict, read_json_object

ASKING = ("image_prompt", "video_prompt", "max_pixels", "max_frames", "max_frame_tokens", "fps")
"""The data settings by which a captioner is asked."""
UNSEEN = ("max_pixels", "max_frame_tokens")
"""Those of them that a served model is not asked by: what it is sent ``data.judge_media`` makes smaller."""
CAPTIONING_FILE = "captioning.yaml"
"""In a checkpoint folder, how its captioner is asked: settings that an export has of its run."""
Modality: TypeAlias = Literal["image", "video"]
_MODALITIES: tuple[Modality, ...] = ("image", "video")

_UNSENT = re.compile(r"\b(top_k|repetition_penalty)\b")

MAX_TOKENS = 2048
"""Tokens of a caption at most, for a checkpoint that says nothing of it."""


def checkpoint_config(source: CheckpointSource, settings: Sequence[str] = ()) -> RunConfig:
    """The settings that captions by a checkpoint are drawn with.

    Of a run they are the run's own, of an export those of its run (``CAPTIONING_FILE``), of "embedded" those of the
    embedded world; of any other folder what its config.json and generation_config.json say, and defaults. settings:
    ``section.key=value``, before which all of that gives way.
    What concerns training, or the machine that trained, is left out.
    Raises ConfigError.
    """
    if source.run:
        # Before the settings, for ``drawn_by`` leaves short caches out, and captions may be as short.
        long = ["rollout.short_groups=0", "rollout.short_length=0"]
        config = load_config(RunConfig, [RunFolder(source.folder).config], [*long, *settings])
    elif source.path == "embedded":
        # The videos' file extends the images'.
        config = load_config(RunConfig, [shipped_configs() / "embedded" / "video.yaml"], settings)
    else:
        own = source.folder / CAPTIONING_FILE
        # What the run said of its captions is said more closely than what its base's files say.
        files = [own] if own.is_file() else []
        defaults = [_dtype(source.folder), *([] if files else _of_folder(source.folder))]
        config = load_config(RunConfig, files, [*defaults, *settings])
        config = replace(config, model=replace(config.model, path=str(source.folder)))
    return _for_captions(config, settings)


def is_served(by: str) -> bool:
    """Whether a captioner is named by its address, not by a folder."""
    return by.startswith(("http://", "https://"))


def own_requests(by: str, settings: Sequence[str] = ()) -> dict[Modality, str]:
    """What a captioner is asked for captions with, by modality, as far as it is known.

    Of a run it is what it trained with, of an export what its run trained with, of "embedded" what the world asks.
    Another folder and a served model say nothing of it. settings: ``section.key=value``; a request among them goes
    before all of that. Raises ConfigError.
    """
    given = {setting.partition("=")[0] for setting in settings}
    known: set[Modality] = {kind for kind in _MODALITIES if f"data.{kind}_prompt" in given}
    if is_served(by):
        config = endpoint_config(settings)
    else:
        source = named_source(by)
        config = checkpoint_config(source, settings)
        if source.run:
            known.add(config.modality)
        elif source.path == "embedded" or (source.folder / CAPTIONING_FILE).is_file():
            known.update(_MODALITIES)
    asked: dict[Modality, str] = {"image": config.data.image_prompt, "video": config.data.video_prompt}
    return {kind: asked[kind] for kind in _MODALITIES if kind in known}


def endpoint_config(settings: Sequence[str] = ()) -> RunConfig:
    """The settings that a served model is asked with. Raises ConfigError, also for what would change nothing: sampling
    rules that the chat format does not know, as the server would draw by its own, and sizes of a policy's pictures."""
    for word in settings:
        if word.startswith(("rollout.sampling", "rollout=")) and (rule := _UNSENT.search(word)):
            raise ConfigError(
                f"rollout.sampling.{rule[0]}: a served model is asked for temperature and top_p alone, as the "
                "chat format has it: set it at the server, and leave it out here"
            )
    defaults = [f"rollout.max_completion_length={MAX_TOKENS}"]
    config = load_config(RunConfig, [], [*defaults, *settings])
    for name in UNSEEN:
        if getattr(config.data, name) is not None:
            raise ConfigError(
                f"data.{name}: a served model brings pictures to its size itself: set that at the server, and leave it "
                "out here. data.judge_media.max_edge bounds what is sent, in pixels of the longer side"
            )
    return _for_captions(config, settings)


def groups_side_by_side(config: RunConfig, captions: int, inputs: int, ways: int) -> int:
    """How many inputs are decoded at a time: as many as have room where the run's micro-batch had, no more than there
    are.

    A group holds its prompt and its captions. With fewer captions of each there is room for more groups; a prompt is
    taken to be as long as two captions. captions: of each input. inputs: how many there are. ways: devices that groups
    are dealt out to; a multiple of it comes out.
    """
    rollout = config.rollout
    # Of these two the run's many devices may share the first, which depends on how little else each of them holds.
    run = min(rollout.groups_per_batch, config.grpo.groups_per_micro_batch)
    room = max(1, run * (2 + rollout.group_size) // (2 + captions))
    # By halves, so that few sizes are ever compiled.
    needed = ways * 2 ** max(0, math.ceil(math.log2(max(1, inputs) / ways)))
    return min(needed, -(-room // ways) * ways)


def _for_captions(config: RunConfig, settings: Sequence[str]) -> RunConfig:
    """Without what a run has for training, or for the machine that it ran on."""
    given = {setting.partition("=")[0].split(".")[0] for setting in settings}
    model = config.model
    if model.lora is None:
        # Nothing is trained, so nothing needs more digits than products use.
        model = replace(model, param_dtype=model.dtype, frozen_dtype=model.dtype)
    if "model.attention" not in {setting.partition("=")[0] for setting in settings}:
        model = replace(model, attention="auto", decode_attention="auto")
    data = replace(
        config.data,
        on_bad_sample="skip",
        threads=max(config.data.threads or 1, DataConfig().reading_threads),
        # Pictures of any size come, and the run's sizes are those of its own data.
        buckets=default_buckets(),
    )
    defaults = RunConfig()
    mesh = config.mesh if "mesh" in given else defaults.mesh
    return replace(config, model=model, data=data, mesh=mesh, distributed=defaults.distributed)


def default_buckets() -> Buckets:
    """Few sizes for prompts of every size: each is a third or a half larger than the one before."""

    def sizes(smallest: int, largest: int) -> tuple[int, ...]:
        found = [smallest]
        while found[-1] < largest:
            last = found[-1]
            found.append(last * 3 // 2 if last.bit_count() == 1 else last * 4 // 3)
        return tuple(found)

    return Buckets(tokens=sizes(32, 2**18), frames=(1, *sizes(2, 2**12)), patches=sizes(16, 2**20))


def write_captioning(config: RunConfig, folder: Path) -> None:
    """Writes into a checkpoint's folder how a run with ``config`` asks for captions: requests, visual budget, length
    and sampling rules."""
    data, rollout = config.data, config.rollout
    kept = {
        "data": {name: getattr(data, name) for name in ASKING},
        "rollout": {
            "max_completion_length": rollout.max_completion_length,
            "sampling": asdict(rollout.sampling),
        },
    }
    text = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=100)
    (folder / CAPTIONING_FILE).write_text(
        f"# How this captioner was trained to be asked; vcap caption reads it.\n{text}",
        encoding="utf-8",
    )


def _dtype(folder: Path) -> str:
    config = _read(folder / "config.json")
    stored = config.get("dtype") or config.get("torch_dtype")
    # Half precision is of accelerators: a CPU is quicker, and no less exact, in full.
    full = stored == "float32" or jax.default_backend() == "cpu"
    return f"model.dtype={'float32' if full else 'bfloat16'}"


def _of_folder(folder: Path) -> list[str]:
    """What a Hugging Face folder says of itself, as settings."""
    generation = _read(folder / "generation_config.json")
    rules = {
        key: generation[key]
        for key in ("temperature", "top_p", "top_k", "repetition_penalty")
        if isinstance(generation.get(key), int | float) and not isinstance(generation[key], bool)
    }
    rules = {"repetition_penalty": 1.0, **rules}
    longest = generation.get("max_new_tokens")
    return [
        f"rollout.sampling={json.dumps(rules)}",
        f"rollout.max_completion_length={longest if isinstance(longest, int) else MAX_TOKENS}",
    ]


def _read(path: Path) -> JsonDict:
    return read_json_object(path) if path.is_file() else {}
