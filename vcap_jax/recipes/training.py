"""The training phase of a run: optimizer, data, checkpoints and log put together, or found again where they stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.grpo.collect import Collector
from vcap_jax.grpo.programs import UpdatePrograms
from vcap_jax.grpo.trainer import Training
from vcap_jax.grpo.update import StepUpdate
from vcap_jax.kernels.attention import require_kernel
from vcap_jax.models.buckets import Buckets
from vcap_jax.reward.second_judge import SecondJudge
from vcap_jax.reward.session import RewardSession
from vcap_jax.rollout.engine import RolloutEngine
from vcap_jax.run.context import RunContext
from vcap_jax.run.log import RunLog, SilentLog
from vcap_jax.run.resume import resume
from vcap_jax.training.optimizer import TrainState, build_optimizer, learning_rate_schedule
from vcap_jax.world.splits import EmbeddedData

_FEW_SIZES = 16
"""Of prompts, for which decoding is compiled before the first step: each has programs of its own, and takes minutes."""


def train(
    ctx: RunContext,
    samples: Sequence[Sample],
    pool: ReferencePool | None,
    engine: RolloutEngine,
    session: RewardSession,
    second: SecondJudge | None,
    world: EmbeddedData | None,
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
    with ExitStack() as stack:
        resumed = resume(
            stack, ctx, samples, programs, groups_per_step=config.grpo.groups_per_step, total_steps=total
        )
        data, checkpoints, state = resumed.data, resumed.checkpoints, resumed.state
        done = int(state.step) // updates
        log: RunLog | SilentLog = SilentLog()
        if processes.first:
            log = RunLog(
                config,
                folder,
                total=total,
                done=done,
                learning_rate=lambda step: schedule(step * updates),
                world=world,
                second_judge=second,
            )
        stack.callback(log.close)
        groups_per_batch = config.rollout.share(processes.count).groups_per_batch
        training = Training(
            config=config.grpo,
            max_completion_length=config.rollout.max_completion_length,
            total_steps=total,
            data=data,
            collector=Collector(
                policy=ctx.own_policy,
                engine=engine,
                session=session,
                pool=pool,
                batcher=ctx.batcher(groups_per_batch),
                seed=config.seed,
                processes=processes,
                second_judge=second,
            ),
            update=StepUpdate(
                config=config.grpo,
                groups_per_batch=groups_per_batch,
                max_completion_length=config.rollout.max_completion_length,
                programs=programs,
                frozen=policy.frozen,
                reference=policy.reference_params(config.model.frozen_dtype)
                if config.grpo.objective.beta > 0
                else None,
                placement=ctx.placement,
                rollout_weights=programs.rollout_weights(config.rollout, policy.processor.banned_token_ids)
                if config.rollout.engine == "vllm"
                else None,
                processes=processes.count,
            ),
            own_params=ctx.own_params,
            checkpoints=checkpoints,
            save_every=config.logging.save_every,
            log=log,
            processes=processes,
        )
        try:
            _compile_decoding(ctx)
            return training.run(state)
        except BaseException as error:
            # Before anything is closed: the others may be waiting for this process, and closing for them.
            processes.fail(error)
            raise


def prompt_sizes(buckets: Buckets) -> tuple[int, ...]:
    """The padded lengths that a prompt may have, ascending; none where they are unbounded or more than a few."""
    if buckets.tokens or not buckets.max_tokens:
        return buckets.tokens
    multiple, longest = buckets.token_multiple, buckets.fit("tokens", buckets.max_tokens)
    sizes = tuple(range(multiple, longest + 1, multiple))
    return sizes if len(sizes) <= _FEW_SIZES else ()


def _compile_decoding(ctx: RunContext) -> None:
    """Before the first step, where the sizes of prompts are known: which shapes captions decode in follows from how
    they end, so some would turn up, and be compiled, much later."""
    if ctx.config.rollout.engine != "jax" or ctx.config.rollout.shrink == 1:
        return
    sizes = prompt_sizes(ctx.config.data.buckets)
    if not sizes:
        ctx.say(
            "prompts may have too many padded lengths to compile decoding for all of them now: it is compiled as they "
            "come. Name a few in data.buckets.tokens, or give data.buckets.max_tokens and a larger token_multiple"
        )
        return
    begin = time.monotonic()
    own = ctx.own_policy
    count = ctx.sampler.warm(own.trainable, own.frozen, sizes)
    if count:
        ctx.say(f"{count} decode programs compiled in {time.monotonic() - begin:.0f} s")
