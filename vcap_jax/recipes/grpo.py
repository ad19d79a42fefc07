"""A whole run, from a configuration to a folder with a better captioner in it.

    judge -> data -> starting policy -> references -> reward -> evaluation -> training -> evaluation -> pictures

Every phase leaves a file, and is skipped when an earlier start of the run has left it. So ``--resume``
takes up the work where it stopped, even after a kill. The judge comes first because it is the one
thing that a run needs and does not hold: if it cannot be asked, nothing has been done in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import jax

from vcap_jax.configuration import plain_settings
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.config import HELDOUT, JUDGED
from vcap_jax.grpo.collect import Collector
from vcap_jax.grpo.programs import UpdatePrograms
from vcap_jax.grpo.trainer import Training
from vcap_jax.grpo.update import StepUpdate
from vcap_jax.kernels.attention import require_kernel
from vcap_jax.parallel.host_memory import free, to_host
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.references import heldout_pool, reference_pool, references_by_policy
from vcap_jax.report.evaluations import REFERENCES, START, TRAINED, Results, evaluations_of
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.pages import told_if_not_drawn
from vcap_jax.report.plots import plot_comparison, plot_run
from vcap_jax.report.run_folder import RunFolder, flat_settings
from vcap_jax.report.summary import fact_row, shares_table, write_summary
from vcap_jax.reward.second_judge import SecondJudge
from vcap_jax.reward.session import RewardSession
from vcap_jax.run.checks import check_run
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.evaluation import Evaluations
from vcap_jax.run.inputs import check_sources
from vcap_jax.run.judge import answering_judge, own_data, reward_family, reward_session, reward_settings
from vcap_jax.run.judge_domain import check_judge_domain
from vcap_jax.run.keeping_best import best_row
from vcap_jax.run.log import RunLog
from vcap_jax.run.manifest_note import remember_samples
from vcap_jax.run.resume import resume
from vcap_jax.run.setup import drawing, prepare
from vcap_jax.run.trackers import Trackers, run_trackers
from vcap_jax.run.turns import all_asleep
from vcap_jax.run.warm_up import compile_decoding
from vcap_jax.training.optimizer import TrainState, build_optimizer, learning_rate_schedule
from vcap_jax.world.splits import EmbeddedData

HELDOUT_REFERENCES = "references.jsonl"
"""The pool for the held-out scenes, in the folder of their evaluations."""


def run(
    config: RunConfig,
    folder: RunFolder,
    *,
    say: Callable[[str], None] = print,
    processes: Processes = ALONE,
) -> Mapping[str, object]:
    """Runs, or goes on with, the run in ``folder``; returns its summary.

    say: where messages to the user go. processes: those that share the run, each calling this with the same
    configuration and a folder they all see; the first one returns the summary.
    Raises ConfigError, before anything is done, for settings that these processes and devices cannot
    train with. Raises TrainingStopped, or Stopped after a signal, if the run ended early and can be
    resumed; PeerFailed if another process ended; and the phases' own errors for unusable input.
    """
    check_run(config, processes)
    processes.on_process_0("files of samples", partial(check_sources, config))
    folder.claim("training")
    family = reward_family(config)
    with ExitStack() as stack:
        seconds = stack.enter_context(folder.counting_seconds(noted=processes.first))
        trackers = stack.enter_context(
            run_trackers(config, folder, say, processes, config.grpo.groups_per_step)
        )
        all_asleep(config, say)
        judge = stack.enter_context(
            answering_judge(
                config,
                folder,
                say,
                processes,
                second=config.second_judge,
                other=config.evaluation.other_judge if config.data.holds_out else None,
            )
        )
        # -- data, starting policy ------------------------------------------------------------------------
        # Those who draw are asked for before there is any other work: servers may not answer.
        prepared = prepare(config, folder, say, processes=processes, logprobs=True)
        prepared = stack.enter_context(drawing(prepared))
        ctx, samples, world = prepared.ctx, prepared.samples, prepared.world
        remember_samples(folder, config.data.manifest, samples, prepared.heldout)
        if family.asks_judge(config.reward):
            check_judge_domain(ctx, samples)

        # -- references -----------------------------------------------------------------------------------
        pool = reference_pool(ctx, samples) if family.uses_reference(config.reward) else None
        if pool is not None:
            samples = pool.covered(samples, say)
        steps = config.total_steps(len(samples))  # before any evaluation, as too few may be left
        compared_with = None
        if prepared.heldout and family.uses_reference(config.reward):
            compared_with = heldout_pool(ctx, prepared.heldout)

        # -- reward ---------------------------------------------------------------------------------------
        reward = reward_settings(ctx, pool, world)
        session = stack.enter_context(reward_session(ctx, reward, pool, judge))
        second = None
        if config.second_judge is not None and processes.first:
            asked = config.second_judge.of_one(processes.count)
            references = {} if pool is None else pool.texts()
            second = stack.enter_context(
                SecondJudge(asked, reward, seed=config.seed, references=references, say=say)
            )
        own = stack.enter_context(
            own_data(ctx, prepared.heldout, compared_with, session=session, reward=reward, pool=pool)
        )
        evaluations = Evaluations(
            ctx, world, judge if family.asks_judge(config.reward) else None, own, trackers.evaluated
        )

        # -- the starting policy, evaluated -----------------------------------------------------------------
        compared = _references(ctx, evaluations, world)
        compared |= {START: evaluations.of_policy(START, ctx.policy.trainable, step=0).get(HELDOUT)}
        evaluations.of_references()

        # -- training -------------------------------------------------------------------------------------
        state = _train(ctx, samples, pool, session, second, world, evaluations, trackers)

        # -- the trained policy, evaluated ------------------------------------------------------------------
        compared |= {TRAINED: evaluations.at_end(state.params, step=steps).get(HELDOUT)}

    # -- summary and pictures ------------------------------------------------------------------------------
    if not processes.first:
        return {}
    rows = read_metrics(folder.metrics)
    shares = {row: fact_row(found.metrics) for row, found in compared.items() if found}
    if shares:
        say(shares_table(shares))
    summary: dict[str, object] = {
        **shares,
        "seconds": seconds(),
        "steps": steps,
        "attention": ctx.policy.attention,
        "decode_attention": ctx.policy.decode_attention,
        "evaluations": evaluations.summary(),
        **best_row(folder, say),
    }
    write_summary(folder.summary, summary)
    if shares:
        with told_if_not_drawn(folder.comparison_plot, say):
            plot_comparison(shares, folder.comparison_plot, title=f"Held-out {config.modality} scenes")
    with told_if_not_drawn(folder.plots, say):
        plot_run(rows, folder.plots, title=folder.title, evaluations=evaluations_of(folder))
    pages = "".join(
        f"{page.name}, "
        for name in evaluations.using(JUDGED)
        if (page := folder.before_after_page(name)).exists()
    )
    say(f"{folder.root}: summary.json, plots.png, samples.html, {pages}checkpoints/")
    return summary


def _references(
    ctx: RunContext, evaluations: Evaluations, world: EmbeddedData | None
) -> dict[str, Results | None]:
    """References of the held-out scenes by who wrote those that the run trains on, evaluated as captions are: the
    starting policy's, those that a recipe has left in the folder, those of the pool, or of the run that wrote it.
    Nothing of a pool where neither has these scenes."""
    if world is None or HELDOUT not in evaluations:
        return {}
    path = ctx.folder.evaluation(HELDOUT) / HELDOUT_REFERENCES
    scenes, given, each = read_manifest(world.heldout), ctx.config.data.references, 1
    if given is None or ctx.processes.on_process_0("references of held-out scenes", path.exists):
        pool, each = references_by_policy(ctx, path, scenes), ctx.config.references.per_sample
    else:
        pool = ReferencePool.read(given)  # whose training scenes have other ids
        if pool.missing(scenes) and (beside := _written_beside(given, ctx.config)) is not None:
            pool = ReferencePool.read(beside)
        if pool.missing(scenes):
            ctx.say(
                f"{given} has no references of the held-out scenes, so none stand beside the policy's captions"
            )
            return {}
    return {REFERENCES: evaluations.of_pool(HELDOUT, REFERENCES, pool, each=each)}


def _written_beside(pool: str, config: RunConfig) -> Path | None:
    """Where a run's own pool is given: what its writer wrote for the held-out scenes, if they are the same."""
    run = RunFolder(Path(pool).parent.parent)
    written = run.evaluation(HELDOUT) / HELDOUT_REFERENCES
    if run.own_references != Path(pool) or not written.exists():
        return None
    theirs, ours = (dict(flat_settings(of)) for of in (run.written_config(), plain_settings(config)))
    return written if all(theirs.get(key) == ours[key] for key in ("modality", "world.seed")) else None


def _train(
    ctx: RunContext,
    samples: Sequence[Sample],
    pool: ReferencePool | None,
    session: RewardSession,
    second: SecondJudge | None,
    world: EmbeddedData | None,
    evaluations: Evaluations,
    trackers: Trackers,
) -> TrainState:
    """Trains to the last step, from the last checkpoint if there is one; returns the final state.

    A checkpoint may have been written by another number of processes and on another mesh.
    Raises what ``Training.run`` raises, and UnsupportedAttention if the compiled gradient lacks the attention kernel
    that was chosen.
    """
    config, folder, policy, processes = ctx.config, ctx.folder, ctx.policy, ctx.processes
    total = config.total_steps(len(samples))
    updates = config.grpo.num_iterations
    schedule = learning_rate_schedule(config.optimizer, total * updates)
    programs = UpdatePrograms(
        policy.graphdef,
        config.objective,
        build_optimizer(config.optimizer, total * updates),
        temperature=config.rollout.sampling.temperature,
        logprob_chunk=config.grpo.logprob_chunk,
    )
    programs.accumulate.check_next(partial(require_kernel, policy.merge().kernel))

    def log(updates_done: int) -> RunLog:
        return RunLog(
            config,
            folder,
            total=total,
            done=updates_done // updates,
            learning_rate=schedule,
            world=world,
            second_judge=second,
            trackers=trackers,
        )

    with resume(
        ctx,
        samples,
        programs,
        evaluations,
        log,
        judged=True,
        groups_per_step=config.grpo.groups_per_step,
        total_steps=total,
    ) as resumed:
        reference = None
        if config.grpo.objective.beta > 0:
            reference = policy.reference_params(config.model.frozen_dtype)
        if "reference" in config.rollout.offload:
            reference = to_host(reference)
        training = Training(
            config=config.grpo,
            max_completion_length=config.rollout.max_completion_length,
            total_steps=total,
            data=resumed.data,
            collector=Collector(
                policy=ctx.own_policy,
                engine=ctx.engine,
                session=session,
                pool=pool,
                batcher=ctx.batcher(config.grpo.groups_per_micro_batch // processes.count),
                seed=config.seed,
                group_size=config.rollout.group_size,
                processes=processes,
                second_judge=second,
                # Between its vision tower and its captions the devices change hands.
                looks_first=ctx.servers is not None and config.rollout.vllm.sleep_mode,
            ),
            update=StepUpdate(
                config=config.grpo,
                max_completion_length=config.rollout.max_completion_length,
                programs=programs,
                frozen=policy.frozen,
                reference=reference,
                placement=ctx.placement,
                rollout_weights=programs.rollout_weights(config.rollout, policy.processor.banned_token_ids)
                if config.rollout.engine == "vllm"
                else None,
            ),
            own_params=ctx.own_params,
            give_up=ctx.give_up,
            checkpoints=resumed.checkpoints,
            save_every=config.logging.save_every,
            log=resumed.log,
            processes=processes,
            between=resumed.between,
            ahead=config.rollout.ahead,
            short_length=config.rollout.short_length,
            saved_draw=resumed.ahead,
            offload=config.rollout.offload,
            taken=ctx.taken,
        )
        if int(resumed.state.step) // updates < total:
            compile_decoding(ctx)
        # The state has a copy of its own, and nobody asks for the starting policy any more.
        free(policy.trainable, keep=jax.tree.leaves(reference))
        return training.run(resumed.state)
