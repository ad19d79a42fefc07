"""A whole run, from a configuration to a folder with a better captioner in it.

    data -> starting policy -> references -> judge -> training -> held-out captions -> summary and pictures

Every phase leaves a file and is skipped when an earlier start of the same run has left it, so ``--resume`` after a
kill at any moment goes on where the work stopped.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from vcap_jax.checkpoint import Checkpointer
from vcap_jax.config import RunConfig
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import GroupIterator, PipelineSettings
from vcap_jax.data.references import ReferencePool
from vcap_jax.embedded import EmbeddedData
from vcap_jax.evals.world_facts import fact_metrics
from vcap_jax.grpo.collect import Collector, GroupRecord
from vcap_jax.grpo.optimizer import TrainState, build_optimizer, learning_rate_schedule
from vcap_jax.grpo.step import UpdatePrograms
from vcap_jax.grpo.trainer import Training
from vcap_jax.heldout import HeldOut
from vcap_jax.judge_process import embedded_judge
from vcap_jax.observers import RunObserver
from vcap_jax.preparing import prepare
from vcap_jax.references import reference_pool
from vcap_jax.report.metrics import MetricsWriter, read_metrics
from vcap_jax.report.plots import plot_comparison, plot_run
from vcap_jax.report.progress import Progress
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.step_log import replace_file
from vcap_jax.report.summary import comparison_table, write_summary
from vcap_jax.reward.alarms import AlarmWatch
from vcap_jax.reward.second_judge import SecondJudge
from vcap_jax.reward.session import RewardSession
from vcap_jax.rollout.engine import RolloutEngine
from vcap_jax.workplace import Workplace, rollout_engine


def run(config: RunConfig, folder: RunFolder, *, say: Callable[[str], None] = print) -> Mapping[str, Any]:
    """Runs, or goes on with, the run in ``folder``; returns its summary.

    say: where messages to the user go. Raises TrainingStopped if the run ended early but can be resumed, and the
    typed errors of the phases for input that cannot be used.
    """
    begin = time.monotonic()
    # -- data, starting policy ----------------------------------------------------------------------------
    prepared = prepare(config, folder, say)
    place, samples, world = prepared.place, prepared.samples, prepared.world
    policy = place.policy

    # -- references ---------------------------------------------------------------------------------------
    pool = reference_pool(place, samples) if config.reward.use_reference else None
    if pool is not None:
        without = pool.missing(samples)
        if without:
            say(
                f"{len(without)} samples have no reference and are left out, the first: {', '.join(without[:5])}"
            )
        samples = [sample for sample in samples if sample.id in pool]

    # -- the starting policy on held-out scenes ------------------------------------------------------------
    evaluation = None if world is None else HeldOut(place, world)
    if evaluation is not None:
        evaluation.references()
        evaluation.captions("start", policy.trainable)

    # -- training -----------------------------------------------------------------------------------------
    with ExitStack() as stack:
        engine = stack.enter_context(rollout_engine(place))
        judge = config.judge
        if not judge.urls:
            say("no judge.urls are configured: starting the embedded judge")
            url = stack.enter_context(
                embedded_judge(folder.root / "judge.log", config.world.judge_perception)
            )
            judge = dataclasses.replace(judge, urls=(url,))
        if judge.store is None:
            judge = dataclasses.replace(judge, store=str(folder.root / "judgements.sqlite"))
        session = stack.enter_context(
            RewardSession.witness_adjudicator(config.reward, judge, seed=config.seed, say=say)
        )
        say(f"judge {session.wait_until_ready()} at {', '.join(judge.urls)} is ready")
        second = None
        if config.second_judge is not None:
            second = stack.enter_context(
                SecondJudge(config.second_judge, config.reward, seed=config.seed, say=say)
            )
        state = _train(place, samples, pool, engine, session, second, world)

    # -- the trained policy, summary and pictures ----------------------------------------------------------
    rows = read_metrics(folder.metrics)
    seconds = _elapsed(folder.root / "elapsed.json", time.monotonic() - begin)
    summary: Mapping[str, Any] = {"steps": len(rows), "seconds": seconds}
    if evaluation is not None:
        evaluation.captions("trained", state.params)
        summary = evaluation.summary(seconds, steps=len(rows))
        plot_comparison(summary, folder.comparison_plot, title=f"Held-out {config.modality} scenes")
        say(comparison_table(summary))
    write_summary(folder.summary, summary)
    plot_run(rows, folder.plots, title=config.name)
    say(f"{folder.root}: summary.json, plots.png, samples.html, checkpoints/")
    return summary


def _train(
    place: Workplace,
    samples: Sequence[Sample],
    pool: ReferencePool | None,
    engine: RolloutEngine,
    session: RewardSession,
    second: SecondJudge | None,
    world: EmbeddedData | None,
) -> TrainState:
    config, folder, policy = place.config, place.folder, place.policy
    total = config.total_steps(len(samples))
    optimizer = build_optimizer(config.optimizer, total * config.grpo.updates_per_step)
    programs = UpdatePrograms(
        policy.graphdef,
        config.grpo.objective,
        optimizer,
        temperature=config.rollout.sampling.temperature,
        logprob_chunk=config.grpo.logprob_chunk,
    )
    data = GroupIterator(
        samples,
        place.load,
        PipelineSettings(
            batch_groups=config.grpo.groups_per_step,
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
    done = int(state.step) // config.grpo.updates_per_step
    # What was logged after the last checkpoint is done again, and comes out the same.
    metrics.truncate_after(done)
    if done:
        place.say(f"resuming after step {done} of {total}")
    progress = Progress(total, start=done, every=config.logging.print_every)
    schedule = learning_rate_schedule(config.optimizer, total * config.grpo.updates_per_step)
    observer = RunObserver(config, folder, progress, world, done)
    training = Training(
        config=config,
        total_steps=total,
        programs=programs,
        frozen=policy.frozen,
        reference=policy.reference_params(config.model.frozen_dtype)
        if config.grpo.objective.beta > 0
        else None,
        data=data,
        collector=Collector(
            policy=policy,
            programs=programs,
            engine=engine,
            session=session,
            pool=pool,
            buckets=config.data.buckets,
            groups_per_batch=config.rollout.groups_per_batch,
            use_reference=config.reward.use_reference,
            seed=config.seed,
            place=place.placement.batch,
            second_judge=second,
        ),
        checkpoints=checkpoints,
        metrics=metrics,
        progress=progress,
        place=place.placement.batch,
        rollout_weights=programs.rollout_weights(config.rollout, policy.processor.banned_token_ids)
        if config.rollout.engine == "vllm"
        else None,
        learning_rate=lambda step: schedule(step * config.grpo.updates_per_step),
        measure=lambda records: _facts(world, records),
        observe=observer,
        alarms=AlarmWatch(config.alarms, read_metrics(folder.metrics)),
    )
    try:
        return training.run(state)
    finally:
        data.close()
        progress.close()
        observer.close()
        metrics.close()
        checkpoints.close()


def _facts(world: EmbeddedData | None, records: Sequence[GroupRecord]) -> Mapping[str, float]:
    """What the captions of a step cover and make up, where the facts of its scenes are known."""
    if world is None:
        return {}
    return fact_metrics(world.train_scenes, {r.example.sample.id: r.captions for r in records})


def _elapsed(path: Path, seconds: float) -> float:
    """Adds this process's seconds to those of the run's earlier processes."""
    before = json.loads(path.read_text())["seconds"] if path.exists() else 0.0
    replace_file(path, json.dumps({"seconds": before + seconds}).encode())
    return before + seconds


def device_summary() -> str:
    """For the first line of a run: what it runs on."""
    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind} ({jax.default_backend()}), JAX {jax.__version__}"
