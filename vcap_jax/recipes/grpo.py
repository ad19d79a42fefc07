"""A whole run, from a configuration to a folder with a better captioner in it.

    judge -> data -> starting policy -> references -> training -> held-out captions -> summary and pictures

Every phase leaves a file and is skipped when an earlier start of the same run has left it, so ``--resume`` after a
kill at any moment goes on where the work stopped. The judge comes first because it is what a run needs and does not
hold itself: if it cannot be asked, nothing has been done in vain.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from vcap_jax.evals.heldout import HeldOut
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.recipes.training import train
from vcap_jax.references import reference_pool
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.plots import plot_comparison, plot_run
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.step_log import replace_file
from vcap_jax.report.summary import comparison_table, write_summary
from vcap_jax.reward.second_judge import SecondJudge
from vcap_jax.run.checks import check_run
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import rollout_engine
from vcap_jax.run.judge import answering_judge, reward_family, reward_session, reward_settings
from vcap_jax.run.judge_domain import check_judge_domain
from vcap_jax.run.setup import prepare


def run(
    config: RunConfig,
    folder: RunFolder,
    *,
    say: Callable[[str], None] = print,
    processes: Processes = ALONE,
) -> Mapping[str, Any]:
    """Runs, or goes on with, the run in ``folder``; returns its summary.

    say: where messages to the user go. processes: those that share the run, each calling this with the same
    configuration and a folder they all see; the first one returns the summary.
    Raises ConfigError, before anything is done, for settings that these processes and devices cannot train with;
    TrainingStopped, or Stopped after a signal, if the run ended early but can be resumed, PeerFailed if another process
    ended, and the typed errors of the phases for input that cannot be used.
    """
    begin = time.monotonic()
    check_run(config, processes)
    folder.claim("training")
    family = reward_family(config)
    with ExitStack() as stack:
        judge = stack.enter_context(
            answering_judge(config, folder, say, processes, second=config.second_judge)
        )
        # -- data, starting policy ------------------------------------------------------------------------
        prepared = prepare(config, folder, say, processes=processes)
        ctx, samples, world = prepared.ctx, prepared.samples, prepared.world
        if family.asks_judge(config.reward):
            check_judge_domain(ctx, samples)
        # Before there is any other work: its servers may not answer.
        engine = stack.enter_context(rollout_engine(ctx))

        # -- references -----------------------------------------------------------------------------------
        pool = reference_pool(ctx, samples) if family.uses_reference(config.reward) else None
        if pool is not None:
            without = pool.missing(samples)
            if without:
                say(
                    f"{len(without)} samples have no reference and are left out, the first: {', '.join(without[:5])}"
                )
            samples = [sample for sample in samples if sample.id in pool]

        # -- the starting policy on held-out scenes --------------------------------------------------------
        evaluation = None if world is None else HeldOut(ctx, world)
        if evaluation is not None:
            evaluation.references()
            evaluation.captions("start", ctx.policy.trainable)

        # -- training -------------------------------------------------------------------------------------
        reward = reward_settings(ctx, pool, world)
        session = stack.enter_context(reward_session(ctx, reward, pool, judge))
        second = None
        if config.second_judge is not None:
            second = stack.enter_context(SecondJudge(config.second_judge, reward, seed=config.seed, say=say))
        state = train(ctx, samples, pool, engine, session, second, world)

    # -- the trained policy, summary and pictures ----------------------------------------------------------
    if evaluation is not None:
        evaluation.captions("trained", state.params)
    if not processes.first:
        return {}
    rows = read_metrics(folder.metrics)
    seconds = _elapsed(folder.root / "elapsed.json", time.monotonic() - begin)
    how = {"steps": len(rows), "attention": ctx.policy.attention}
    summary: Mapping[str, Any] = {"seconds": seconds, **how}
    if evaluation is not None:
        summary = evaluation.summary(seconds, **how)
        plot_comparison(summary, folder.comparison_plot, title=f"Held-out {config.modality} scenes")
        say(comparison_table(summary))
    write_summary(folder.summary, summary)
    plot_run(rows, folder.plots, title=config.name)
    say(f"{folder.root}: summary.json, plots.png, samples.html, checkpoints/")
    return summary


def _elapsed(path: Path, seconds: float) -> float:
    """Adds this process's seconds to those of the run's earlier processes."""
    before = json.loads(path.read_text())["seconds"] if path.exists() else 0.0
    replace_file(path, json.dumps({"seconds": before + seconds}).encode())
    return before + seconds


def device_summary(processes: Processes = ALONE) -> str:
    """For the first line of a run: what it runs on."""
    devices = jax.devices()
    shared = f" of {processes.count} processes" if processes.count > 1 else ""
    kind = f"{devices[0].device_kind} ({jax.default_backend()})"
    return f"{len(devices)} x {kind}{shared}, JAX {jax.__version__}"
