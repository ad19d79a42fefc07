r"""Checks what a run is given before anything is started: configuration, manifest, group counts, the host's memory.

    python launch/preflight.py --devices 6 --config configs/paper/image.yaml data.manifest=rows.jsonl \
        'judge.urls=[http://127.0.0.1:8000]'

--devices are those of one process. --target names hardware of the table (launch/target.py): its attention kernels, and
its host's memory where --host-memory does not ask for this host's, and its devices where --devices gives none. Prints a
line for each check, "ok" or "PROBLEM", what was checked, and the remedy, set apart by tabs, which
launch/h800_8x.sh and launch/tpu.sh read; the exit status is 1 if there was a problem.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_judge.vllm_server.settings import ServeSettings
from vcap_jax.run.command_line import config_parser, read_config
from vcap_jax.system.errors import VCapError, problems_of
from vcap_jax.system.hardware import Hardware, hardware
from vcap_jax.system.host_limits import memory_limit
from vcap_jax.system.json_values import JsonDict, read_json_object
from vcap_jax.system.sleep_mode import PINNED

if TYPE_CHECKING:
    from vcap_jax.run.config import RunConfig

GIB = 2**30


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = config_parser(__doc__)
    parser.add_argument("--devices", type=int, help="of each process; left out, group counts are not checked")
    parser.add_argument("--host-memory", action="store_true", help="check this host's memory as well")
    parser.add_argument("--target", help="hardware that the run is for, such as h800x8 or v5p-16")
    parser.add_argument("--run-dir", type=Path, help="a folder that the run may be gone on with in")
    parser.add_argument("--judges", type=int, default=0, help="judge servers on this host")
    parser.add_argument(
        "--judge-model", type=Path, help="the checkpoint that they serve (default: the policy's)"
    )
    parser.add_argument(
        "--judge-cache-gb", type=float, help="their --media-cache-gb (default: that of the modality)"
    )
    return parser.parse_intermixed_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    from vcap_jax.run.checks import check_processes, check_settings, check_target

    what = "configuration"
    try:
        target = hardware(args.target) if args.target else None
        given = read_config(args, say=lambda _: None)
        config = on_hosts(given, target)
        first_checkpoint(config)  # what a run started from may be gone
        check_settings(config)
        check_processes(config, config.distributed.processes or 1)
        if target is not None:
            check_target(config, target.chip)
        named = ", ".join(str(file) for file in args.config or ())
        wrong = say(f"configuration {named}")
        if args.run_dir is not None:
            wrong |= say(*run_folder(given, args.run_dir))  # what the run's own start compares
            wrong |= say(*judgements(config, args.run_dir))
            wrong |= say(*checkpoints(config, args.run_dir))
        wrong |= say(*starting_policy(config))
        wrong |= say(*inputs(config))
        if no_judge := embedded_judge(config, target):
            wrong |= say(*no_judge)
        devices: int | None = args.devices
        if not devices and target is not None:
            devices = target.devices // (config.distributed.processes or 1)
        if devices:
            wrong |= say(*group_counts(config, devices))
        what = "rollout.offload"
        waiting = waiting_bytes(config, devices)
        what = "rollout.short_groups"
        checks_memory = args.host_memory or target is not None
        outgrown = outgrown_groups(config) if checks_memory else 0
    except (VCapError, FileNotFoundError, ValueError) as error:
        return say(what, "; ".join(problems_of(error)))
    if checks_memory:
        asked = None if args.host_memory else target
        needs = host_memory(
            config,
            args.judges,
            asked,
            waiting=waiting * (devices or 1),
            outgrown=outgrown,
            judge_model=args.judge_model,
            judge_cache_gb=args.judge_cache_gb,
        )
        wrong |= say(*needs)
    if pool := pinned_pool(config, waiting, devices, target):
        wrong |= say(*pool)
    return wrong


def on_hosts(config: RunConfig, target: Hardware | None) -> RunConfig:
    """With the number of processes of a slice that finds them itself: one on each host of the target."""
    if target is None or not config.distributed.automatic:
        return config
    found = replace(
        config.distributed, automatic=False, processes=target.hosts, process_id=0, coordinator="found:1"
    )
    return replace(config, distributed=found)


def say(what: str, remedy: str = "") -> int:
    print("\t".join(["PROBLEM" if remedy else "ok", what, remedy]).replace("\n", " "))
    return 1 if remedy else 0


def run_folder(config: RunConfig, root: Path) -> tuple[str, str]:
    """Whether a run that lies there goes on with this configuration; it would be refused once the judge is there."""
    from vcap_jax.run.folders import check_resumption
    from vcap_jax.system.file_locks import LOCK, taken

    what = f"run folder {root}"
    if taken(root / LOCK):
        return (
            what,
            "another process is at work in it: wait until it has ended, or choose another with --run-dir",
        )
    try:
        resumed = check_resumption(config, root)
    except (VCapError, FileNotFoundError) as error:
        return what, "; ".join(problems_of(error))
    return f"{what}: {'the run there goes on' if resumed else 'a new run'}", ""


def judgements(config: RunConfig, root: Path) -> tuple[str, str]:
    """Whether there are the file locks that the store of judgements needs, which some shared storage has not."""
    from vcap_jax.reward.store import StoreError, check_place

    place = root if config.judge.store is None else Path(config.judge.store).parent
    what = f"file locks at {place}, for the store of judgements"
    try:
        check_place(place)
    except (StoreError, OSError) as error:
        return what, str(error)
    return what, ""


def checkpoints(config: RunConfig, root: Path) -> tuple[str, str]:
    """What the kept checkpoints take of the run folder's disk, with a warning where it has less: a short run keeps
    fewer, and other files may go before."""
    folder = root.absolute() / "checkpoints"
    count = config.logging.keep + (config.logging.keep_best is not None)
    # The next one is whole before the oldest goes.
    needed = (count + 1) * saved_bytes(config) * (config.distributed.processes or 1)
    there = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    free = shutil.disk_usage(next(place for place in folder.parents if place.exists())).free
    what = f"up to {needed / GIB:.0f} GiB of checkpoints in {root}, the next beside {count} (logging.keep)"
    if needed > there + free:
        what += f"; warning: {free / GIB:.0f} GiB are free there: free space, keep fewer, or choose another folder"
    return what, ""


def starting_policy(config: RunConfig) -> tuple[str, str]:
    """Whether a run can start from ``model.path``."""
    from vcap_jax.run.inputs import check_policy

    what = f"starting policy {config.model.path}"
    try:
        check_policy(config)
    except (VCapError, FileNotFoundError) as error:
        return what, "; ".join(problems_of(error))
    return what, ""


def inputs(config: RunConfig) -> tuple[str, str]:
    """What else the run would read, looked at as the run itself does before it makes its folder."""
    from vcap_jax.run.inputs import check_inputs
    from vcap_jax.run.setup import manifest_samples

    what = f"what the run reads, manifest {config.data.manifest}"
    if config.data.manifest is None:
        return what, "name one: --manifest"
    try:
        notes = check_inputs(config, policy=False)
        samples = manifest_samples(config, notes.append)
    except (VCapError, FileNotFoundError) as error:
        return what, "; ".join(problems_of(error))
    return "; ".join([f"{what}: {len(samples):,} {config.modality}s", *notes]), ""


def embedded_judge(config: RunConfig, target: Hardware | None) -> tuple[str, str] | None:
    """The problem that the trainer would start the embedded judge, to which a user's own pictures mean nothing; None
    where it would not, and where the samples cannot be read, which ``inputs`` tells."""
    from vcap_jax.run.judge import reward_family
    from vcap_jax.run.judge_domain import judge_domain
    from vcap_jax.run.setup import manifest_samples

    if config.judge.urls or config.data.manifest is None:
        return None
    try:
        if not reward_family(config).asks_judge(config.reward):
            return None
        domain = judge_domain(manifest_samples(config, lambda _: None), threads=config.data.reading_threads)
    except (VCapError, FileNotFoundError):
        return None
    if domain.looked_at and not domain.strange:
        return None
    none_left = target is not None and target.chip.platform == "cuda" and not target.judges
    why = f"no GPU of {target.name} is left for a judge, and " if target is not None and none_left else ""
    return "a judge is named", (
        f"{why}judge.urls is empty: reward.family {config.reward.family} would ask the embedded judge, to which these "
        f"{config.modality}s mean nothing. --judge-url or judge.urls names one (gpu_judge/README.md has how to start "
        "it), --judge-turns of launch/h800_8x.sh has it on the policy's GPUs"
    )


def group_counts(config: RunConfig, devices: int) -> tuple[str, str]:
    """Whether every device gets groups of its own; it would compute those of all others as well."""
    processes = config.distributed.processes or 1
    try:
        data, fsdp, _ = config.mesh.sizes(devices * processes)
    except ValueError as error:
        return "mesh", str(error)
    ways = data * fsdp
    uneven = [f"{name}={count}" for name, count in config.groups_at_once.items() if count % ways]
    remedy = f"would have every device compute the groups of all; give a multiple of {ways}"
    what = f"groups divide by {ways}, the devices they are split over"
    return what, f"{' and '.join(uneven)} {remedy}" if uneven else ""


def host_memory(
    config: RunConfig,
    judges: int,
    target: Hardware | None = None,
    *,
    waiting: int = 0,
    outgrown: int = 0,
    judge_model: Path | None = None,
    judge_cache_gb: float | None = None,
) -> tuple[str, str]:
    """What is known to be needed of the memory of this host, against what it has (or this job, if that is less); of a
    target, against what its hosts have. waiting: bytes of ``rollout.offload``; outgrown: of groups that wait for long
    caches. judge_model: folder of the judges' checkpoint; None is the policy's. judge_cache_gb: GiB of media in each of
    a judge server's two processes; None is what it keeps of the modality."""
    cache_gb = judge_cache_gb
    if cache_gb is None:
        cache_gb = ServeSettings(model=Path(), gpus=None, modality=config.modality).cache_gb
    needs = {
        f"what waits while captions are drawn (rollout.offload={list(config.rollout.offload)})": waiting,
        f"groups that outgrow caches for {config.rollout.short_length} tokens (rollout.short_length)": outgrown,
        f"what waits for the backward pass (model.remat={config.model.remat})": offloaded_bytes(config),
        "the copy that a checkpoint is written from": saved_bytes(config),
        f"media caches of {judges} judge servers (--media-cache-gb)": round(2 * judges * cache_gb * GIB),
        f"weights of {judges} sleeping judges (judge.sleep_mode)": judges * slept_bytes(config, judge_model),
    }
    total = sum(needs.values())
    whose, has = ("this host", memory_limit()) if target is None else (target.name, target.host_memory)
    what = f"{total / GIB:.0f} GiB of {whose}'s memory"
    if waiting:
        what += f", {waiting / GIB:.0f} of them for what waits while captions are drawn"
    if outgrown:
        what += f", {outgrown / GIB:.0f} of them for a step's groups if all outgrow short caches"
    if has is None or total <= has:
        return what, ""
    parts = ", ".join(f"{need / GIB:.0f} for {name}" for name, need in needs.items() if need)
    if config.distributed.automatic:
        parts += "; that is of all processes together, and --target, such as v5p-16, says how many there are"
    return what, f"there are {has / GIB:.0f} GiB: {parts}"


def waiting_bytes(config: RunConfig, devices: int | None) -> int:
    """Of each of a process's devices, for what waits in the host's memory while captions are drawn. devices: None
    counts the whole as if for one. Raises ValueError for a mesh that does not fit them, PlanningError for a model whose
    sizes are not to be found."""
    if not config.rollout.offload:
        return 0
    from vcap_jax.parallel.sharding import MeshConfig
    from vcap_jax.plan.abstract import model_of
    from vcap_jax.plan.offload import waiting_bytes as of_each

    mesh = config if devices else replace(config, mesh=MeshConfig())
    count = (devices or 1) * (config.distributed.processes or 1 if devices else 1)
    return sum(of_each(mesh, model_of(config.model), count).values())


def outgrown_groups(config: RunConfig) -> int:
    """Bytes of this process's memory if all of its groups of a step outgrow short caches. Raises PlanningError for a
    model, or a largest prompt, whose sizes are not to be found."""
    if not config.rollout.short_groups:
        return 0
    from vcap_jax.plan.abstract import model_of
    from vcap_jax.plan.offload import outgrown_bytes

    return outgrown_bytes(config, model_of(config.model))


def pinned_pool(
    config: RunConfig, waiting: int, devices: int | None, target: Hardware | None
) -> tuple[str, str] | None:
    """Whether XLA may pin as much for a GPU as waits on the host; None where nothing is to be said."""
    from vcap_jax.plan.offload import POOL, POOL_VARIABLE, pool_needed

    if target is not None and target.chip.platform != "cuda":
        return None
    pinned = waiting + offloaded_bytes(config) // (devices or 1)
    given = os.environ.get(POOL_VARIABLE, "")
    limit = int(given) * GIB if given.isdecimal() else POOL
    needed = pool_needed(pinned, limit)
    if not waiting and not needed:
        return None
    what = f"{pinned / GIB:.1f} GiB of pinned host memory for each GPU"
    if not needed:
        return what, ""
    return what, f"XLA takes at most {limit // GIB} GiB: set {POOL_VARIABLE}={needed} in the environment"


def offloaded_bytes(config: RunConfig) -> int:
    """What a micro-batch's layers leave in the host's memory for the backward pass: hidden states, and attention's
    output where it waits there too; 0 where nothing does, or a checkpoint of another family does not say its sizes."""
    from vcap_jax.models.remat import offloads, offloads_attention
    from vcap_jax.models.widths import columns_for

    text = model_config(config).get("text_config")
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim")
    layers, width, heads, size = (text.get(key) if isinstance(text, dict) else None for key in keys)
    if not isinstance(layers, int) or not isinstance(width, int):
        return 0  # not as this family's checkpoints say it
    buckets = config.data.buckets
    longest = buckets.tokens[-1] if buckets.tokens else buckets.max_tokens
    if not offloads(config.model.remat) or not (layers and width and longest):
        return 0
    caption = columns_for(config.rollout.max_completion_length)
    tokens = buckets.fit("tokens", longest) + config.rollout.group_size * caption
    groups = -(-config.grpo.groups_per_micro_batch // (config.distributed.processes or 1))
    if offloads_attention(config.model.remat):
        width += heads * size if isinstance(heads, int) and isinstance(size, int) else width
    return groups * tokens * width * layers * (2 if config.model.dtype == "bfloat16" else 4)


def first_checkpoint(config: RunConfig) -> Path:
    """``model.path``, or the folder that the runs behind it began with. Raises ConfigError if they lead nowhere."""
    from vcap_jax.run.checkpoint_source import lineage

    return lineage(config.model.path, config.model.step).origin


def saved_bytes(config: RunConfig) -> int:
    """Trained parameters and Adam's two moments; adapters are small. Where a checkpoint does not say its sizes, of all
    weights, as if they lay on disk in two bytes."""
    if config.model.lora is not None:
        return 0
    of_type = {"float32": 4, "bfloat16": 2}
    parameter = of_type[config.model.param_dtype]
    moment = of_type[config.optimizer.moment_dtype or config.model.param_dtype]
    from vcap_jax.plan.abstract import parameter_counts

    counts = parameter_counts(config)
    trained = bytes_on_disk(first_checkpoint(config)) // 2 if counts is None else counts[0]
    return trained * (2 * parameter + moment) // (config.distributed.processes or 1)


def slept_bytes(config: RunConfig, judge_model: Path | None = None) -> int:
    """What a judge's weights take of the host while it sleeps; 0 of one that never does. judge_model: folder of its
    checkpoint; None is the policy's."""
    if not config.judge.sleep_mode:
        return 0
    from vcap_jax.models.policy import ModelConfig
    from vcap_jax.plan.abstract import parameter_counts

    folder = judge_model or first_checkpoint(config)
    stored, counts = (
        bytes_on_disk(folder),
        parameter_counts(replace(config, model=ModelConfig(path=str(folder)))),
    )
    # vLLM takes float32 as two bytes.
    return round(PINNED * (stored if counts is None else min(stored, 2 * sum(counts))))


def bytes_on_disk(checkpoint: Path) -> int:
    """Of its weights."""
    return sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))


def model_config(config: RunConfig) -> JsonDict:
    try:
        return read_json_object(first_checkpoint(config) / "config.json")
    except (OSError, ValueError):
        return {}  # the scripts check the checkpoint themselves
