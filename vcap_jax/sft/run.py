"""A supervised run, from a configuration and captions to a folder with a captioner in it.

    data -> starting policy -> captions to learn -> training -> held-out captions -> summary and pictures

The folder is a run's (configuration, metrics, checkpoints), so whatever takes a run takes it: conversion to Hugging
Face, reference pools, distillation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from vcap_jax.checkpoint import Checkpointer
from vcap_jax.config import RunConfig
from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import GroupIterator, PipelineSettings
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.world_facts import count_captions
from vcap_jax.grpo.optimizer import TrainState, build_optimizer, learning_rate_schedule
from vcap_jax.heldout import HeldOut
from vcap_jax.preparing import prepare
from vcap_jax.references import remember_pool
from vcap_jax.report.metrics import MetricsWriter, read_metrics
from vcap_jax.report.plots import plot_run
from vcap_jax.report.progress import Progress
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.step_log import replace_file
from vcap_jax.report.summary import fact_shares, shares_table, write_summary
from vcap_jax.sft.step import SFTPrograms
from vcap_jax.sft.targets import Targets, tokenise_targets
from vcap_jax.sft.trainer import SHOWN, SupervisedTraining
from vcap_jax.workplace import Workplace


def run_sft(config: RunConfig, folder: RunFolder, *, say: Callable[[str], None] = print) -> Mapping[str, Any]:
    """Runs, or goes on with, the supervised run in ``folder``; returns its summary.

    Raises TrainingStopped if it ended early but can be resumed, RunFolderError if the folder is that of another kind of
    run, ConfigError in a run of several processes, and the typed errors of data and checkpoints.
    """
    if jax.process_count() > 1:
        raise ConfigError(["supervised fine-tuning runs in one process, on as many devices as it has"])
    begin = time.monotonic()
    folder.claim("supervised")
    prepared = prepare(config, folder, say, judged=False)
    place, world = prepared.place, prepared.world
    pool, source = caption_pool(config, prepared.samples)
    remember_pool(place, pool, source)
    max_tokens = config.sft.max_caption_tokens or config.rollout.max_completion_length
    targets = tokenise_targets(pool, prepared.samples, place.policy.processor, max_tokens)
    samples = [sample for sample in prepared.samples if sample.id in targets.captions]
    if len(samples) < len(prepared.samples):
        say(f"{len(prepared.samples) - len(samples)} samples have no caption that fits and are left out")
    if targets.too_long:
        say(f"{targets.too_long} captions are longer than {max_tokens} tokens and are left out")
    heldout = None if world is None else HeldOut(place, world)
    if heldout is not None:
        heldout.captions("start", place.policy.trainable)

    state = _train(place, samples, targets, max_tokens)

    rows = read_metrics(folder.metrics)
    summary: dict[str, Any] = {"steps": len(rows), "seconds": _elapsed(folder, time.monotonic() - begin)}
    if heldout is not None and world is not None:
        heldout.captions("trained", state.params)
        learned = {sample.id: pool[sample.id].references for sample in samples}
        summary |= {
            "targets": fact_shares(count_captions(world.train_scenes, learned)),
            "start": fact_shares(heldout.counts("start")),
            "trained": fact_shares(heldout.counts("trained")),
        }
        say(shares_table({name: summary[name] for name in ("targets", "start", "trained")}))
    write_summary(folder.summary, summary)
    plot_run(rows, folder.plots, title=config.name)
    say(f"{folder.root}: summary.json, plots.png, checkpoints/")
    return summary


def caption_pool(config: RunConfig, samples: list[Sample]) -> tuple[ReferencePool, str]:
    """The captions to learn and where they come from. Raises ManifestError, ConfigError if there are none."""
    if config.sft.captions is not None:
        return ReferencePool.read(config.sft.captions), config.sft.captions
    own = ReferencePool.of_samples(samples)
    if not len(own):
        raise ConfigError(
            [
                (
                    "there is nothing to learn: give a pool of captions with sft.captions, or references in the "
                    "manifest's rows"
                )
            ]
        )
    return own, "the manifest"


def _train(place: Workplace, samples: list[Sample], targets: Targets, max_tokens: int) -> TrainState:
    config, folder, policy, sft = place.config, place.folder, place.policy, place.config.sft
    total = sft.total_steps(len(samples))
    programs = SFTPrograms(
        policy.graphdef, build_optimizer(sft.optimizer, total), logprob_chunk=sft.logprob_chunk
    )
    data = GroupIterator(
        samples,
        place.load,
        PipelineSettings(
            batch_groups=sft.groups_per_step,
            seed=config.seed,
            threads=config.data.threads,
            prefetch=config.data.prefetch,
            on_bad_sample=config.data.on_bad_sample,
        ),
    )
    checkpoints = Checkpointer(folder.checkpoints, keep=config.logging.keep)
    metrics = MetricsWriter(folder.metrics)
    state = programs.initial_state(policy.trainable, place.placement)
    if folder.resumed and checkpoints.latest_step() is not None:
        state, data_state = checkpoints.restore(place.placement.abstract(state))
        data.set_state(data_state)
    done = int(state.step)
    # What was logged after the last checkpoint is done again, and comes out the same.
    metrics.truncate_after(done)
    if done:
        place.say(f"resuming after step {done} of {total}")
    progress = Progress(total, start=done, every=config.logging.print_every, shown=SHOWN)
    training = SupervisedTraining(
        config=sft,
        total_steps=total,
        programs=programs,
        frozen=policy.frozen,
        data=data,
        targets=targets,
        max_tokens=max_tokens,
        buckets=config.data.buckets,
        merge_size=policy.processor.merge_size,
        checkpoints=checkpoints,
        metrics=metrics,
        progress=progress,
        place=place.placement.batch,
        learning_rate=learning_rate_schedule(sft.optimizer, total),
        save_every=config.logging.save_every,
    )
    try:
        return training.run(state)
    finally:
        data.close()
        progress.close()
        metrics.close()
        checkpoints.close()


def _elapsed(folder: RunFolder, seconds: float) -> float:
    """Adds this process's seconds to those of the run's earlier processes."""
    path = folder.root / "elapsed.json"
    before = json.loads(path.read_text())["seconds"] if path.exists() else 0.0
    replace_file(path, json.dumps({"seconds": before + seconds}).encode())
    return before + seconds
