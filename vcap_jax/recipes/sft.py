"""A supervised run, from a configuration and captions to a folder with a captioner in it.

    data -> starting policy -> captions to learn -> training -> held-out captions -> summary and pictures

The folder is a run's (configuration, metrics, checkpoints), so whatever takes a run takes it: conversion to Hugging
Face, reference pools, distillation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.config import HELDOUT
from vcap_jax.evals.protocol import OwnData
from vcap_jax.kernels.attention import require_kernel
from vcap_jax.parallel.host_memory import free
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.references import heldout_pool, remember_pool
from vcap_jax.report.evaluations import START, TRAINED, evaluations_of
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.pages import told_if_not_drawn
from vcap_jax.report.plots import plot_run
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.summary import fact_row, fact_shares, shares_table, write_summary
from vcap_jax.report.world_facts import count_captions
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.run.checks import check_sft_run
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.evaluation import Evaluations
from vcap_jax.run.inputs import check_sources
from vcap_jax.run.judge import answering_judge, own_data, reward_family, reward_session, reward_settings
from vcap_jax.run.keeping_best import best_row
from vcap_jax.run.log import SupervisedLog
from vcap_jax.run.manifest_note import remember_samples
from vcap_jax.run.resume import resume
from vcap_jax.run.setup import Prepared, drawing, prepare
from vcap_jax.run.trackers import Trackers, run_trackers
from vcap_jax.run.turns import all_asleep
from vcap_jax.sft.step import SFTPrograms
from vcap_jax.sft.targets import Targets, caption_pool, tokenise_targets
from vcap_jax.sft.trainer import SHOWN, SupervisedTraining
from vcap_jax.training.optimizer import TrainState, build_optimizer, learning_rate_schedule


def run_sft(
    config: RunConfig,
    folder: RunFolder,
    *,
    say: Callable[[str], None] = print,
    processes: Processes = ALONE,
) -> Mapping[str, object]:
    """Runs, or goes on with, the supervised run in ``folder``; returns its summary.

    processes: those that share the run, each calling this with the same configuration and a folder they all see; the
    first one returns the summary.
    Raises ConfigError, before anything is done, for settings that these processes and devices cannot
    train with, and RunFolderError if the folder is that of another kind of run. Raises TrainingStopped
    if the run ended early and can be resumed, PeerFailed if another process ended, and the errors of
    data, checkpoints and, where samples are held out, of the judge.
    """
    check_sft_run(config, processes)
    processes.on_process_0("files of samples", partial(check_sources, config, "supervised"))
    folder.claim("supervised")
    with ExitStack() as stack:
        seconds = stack.enter_context(folder.counting_seconds(noted=processes.first))
        trackers = stack.enter_context(
            run_trackers(config, folder, say, processes, config.sft.groups_per_step)
        )
        all_asleep(config, say)
        judge = None
        if config.data.holds_out:  # a supervised run asks a judge for nothing else
            other = config.evaluation.other_judge
            judge = stack.enter_context(answering_judge(config, folder, say, processes, other=other))
        prepared = stack.enter_context(drawing(prepare(config, folder, say, processes=processes)))
        remember_samples(folder, config.data.manifest, prepared.samples, prepared.heldout)
        lesson = _lesson(prepared)  # before any work: what is refused can be corrected
        own = None if judge is None else stack.enter_context(_heldout(prepared, judge))
        return _run(prepared, lesson, own, trackers, seconds)


@dataclass(frozen=True)
class _Lesson:
    """samples: those with captions to learn. max_tokens: of a caption. steps: of the whole run."""

    samples: list[Sample]
    targets: Targets
    max_tokens: int
    steps: int


def _lesson(prepared: Prepared) -> _Lesson:
    """What there is to learn, which the run folder notes. Raises ConfigError for captions that cannot be learned or
    fill no step, ManifestError and PoolError."""
    ctx, sft, say = prepared.ctx, prepared.ctx.config.sft, prepared.ctx.say
    pool, source = caption_pool(sft.captions, prepared.samples)
    max_tokens = sft.max_caption_tokens or ctx.config.rollout.max_completion_length
    targets = tokenise_targets(pool, prepared.samples, ctx.policy.processor, max_tokens)
    samples = [sample for sample in prepared.samples if sample.id in targets.captions]
    if len(samples) < len(prepared.samples):
        say(f"{len(prepared.samples) - len(samples)} samples have no caption that fits and are left out")
    if targets.too_long:
        say(f"{targets.too_long} captions are longer than {max_tokens} tokens and are left out")
    steps = sft.total_steps(len(samples))
    remember_pool(ctx, pool, source)
    return _Lesson(samples, targets, max_tokens, steps)


@contextmanager
def _heldout(prepared: Prepared, judge: JudgeConfig) -> Iterator[OwnData | None]:
    """The held-out samples, scored as a reinforcement-learning run with these settings scores them."""
    ctx = prepared.ctx
    reward = reward_settings(ctx, None, prepared.world)
    references = pool = None
    if reward_family(ctx.config).uses_reference(reward):
        # First: the policy may have to write the others.
        trained = training_references(ctx.config, prepared.samples)
        references = heldout_pool(ctx, prepared.heldout)
        pool = references if trained is None else trained
    with (
        reward_session(ctx, reward, pool, judge) as session,
        own_data(ctx, prepared.heldout, references, session=session, reward=reward, pool=pool) as own,
    ):
        yield own


def training_references(config: RunConfig, samples: Sequence[Sample]) -> ReferencePool | None:
    """What a reinforcement-learning run with these settings would train with, where it need not be written first.

    Raises ConfigError where it is needed and is not there: imitation weighs words by how many of these references have
    them, so by others the reward would be another one.
    """
    if config.data.references is not None:
        return ReferencePool.read(config.data.references)
    own = ReferencePool.of_samples(samples)
    if not own.missing(samples):
        return own
    if config.reward.family == "imitation":
        raise ConfigError(
            "reward.family imitation scores held-out captions by the word frequencies of the references that "
            "a run trains on, and there are none: give the pool with data.references, or another reward.family"
        )
    return None


def _run(
    prepared: Prepared,
    lesson: _Lesson,
    own: OwnData | None,
    trackers: Trackers,
    seconds: Callable[[], float],
) -> Mapping[str, object]:
    ctx, world = prepared.ctx, prepared.world
    folder, say, processes = ctx.folder, ctx.say, ctx.processes
    evaluations = Evaluations(ctx, world, own=own, on_results=trackers.evaluated)
    start = evaluations.of_policy(START, ctx.policy.trainable, step=0)
    evaluations.of_references()

    state = _train(ctx, lesson, evaluations, trackers)

    trained = evaluations.at_end(state.params, step=lesson.steps)
    if not processes.first:
        return {}
    rows = read_metrics(folder.metrics)
    summary: dict[str, object] = {"steps": lesson.steps, "seconds": seconds()}
    if world is not None and HELDOUT in trained:
        told = {
            "targets": fact_shares(count_captions(world.train_scenes, lesson.targets.texts)),
            START: fact_row(start[HELDOUT].metrics),
            TRAINED: fact_row(trained[HELDOUT].metrics),
        }
        summary |= told
        say(shares_table(told))
    summary["evaluations"] = evaluations.summary()
    summary |= best_row(folder, say)
    write_summary(folder.summary, summary)
    with told_if_not_drawn(folder.plots, say):
        plot_run(rows, folder.plots, title=folder.title, evaluations=evaluations_of(folder))
    say(f"{folder.root}: summary.json, plots.png, checkpoints/")
    return summary


def _train(ctx: RunContext, lesson: _Lesson, evaluations: Evaluations, trackers: Trackers) -> TrainState:
    """Trains to the last step, from the last checkpoint if there is one, which may have been written by another number
    of processes and on another mesh; returns the final state."""
    config, policy, sft = ctx.config, ctx.policy, ctx.config.sft
    total = lesson.steps
    if config.max_steps is not None and sft.max_steps is None:
        ctx.say(
            f"max_steps={config.max_steps} is for reinforcement learning: this run takes {total} steps "
            f"(sft.epochs={sft.epochs}; sft.max_steps sets their number)"
        )
    programs = SFTPrograms(
        policy.graphdef, build_optimizer(sft.optimizer, total), logprob_chunk=sft.logprob_chunk
    )
    programs.accumulate.check_next(partial(require_kernel, policy.merge().kernel))

    def log(done: int) -> SupervisedLog:
        return SupervisedLog(config, ctx.folder, total=total, done=done, trackers=trackers, shown=SHOWN)

    with resume(
        ctx,
        lesson.samples,
        programs,
        evaluations,
        log,
        judged=False,
        groups_per_step=sft.groups_per_step,
        total_steps=total,
    ) as resumed:
        training = SupervisedTraining(
            config=sft,
            total_steps=total,
            programs=programs,
            frozen=policy.frozen,
            data=resumed.data,
            targets=lesson.targets,
            max_tokens=lesson.max_tokens,
            buckets=config.data.buckets,
            processor=policy.processor,
            checkpoints=resumed.checkpoints,
            log=resumed.log,
            placement=ctx.placement,
            learning_rate=learning_rate_schedule(sft.optimizer, total),
            save_every=config.logging.save_every,
            processes=ctx.processes,
            between=resumed.between,
        )
        # The state has a copy of its own, and nobody asks for the starting policy any more.
        free(policy.trainable)
        return training.run(resumed.state)
