"""A run's own held-out samples, ready to be evaluated: what their captions are compared with, and who scores them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.protocol import OwnData
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.endpoint import Role
from vcap_jax.reward.session import RewardSession
from vcap_jax.run.context import RunContext
from vcap_jax.run.judge import media_for_judge, reward_session
from vcap_jax.system.shutdown import requested

OTHER_JUDGE = Role(who="the other judge of the evaluation", settings="evaluation.other_judge")


@contextmanager
def own_data(
    ctx: RunContext,
    heldout: Sequence[Sample],
    references: ReferencePool | None,
    *,
    session: RewardSession,
    reward: RewardConfig,
    pool: ReferencePool | None,
) -> Iterator[OwnData | None]:
    """The held-out samples with the run's reward and, where one is configured, another judge; None without samples.

    references: of the held-out samples. pool: what is trained on, for rewards that look at all of it. All processes
    must enter the context together; the other judge is asked by the first.
    Raises JudgeUnavailable where the other judge does not answer, PeerFailed where another process cannot reach it.
    """
    if not heldout:
        yield None
        return
    config = ctx.config
    with ExitStack() as stack:

        def other() -> RewardSession | None:
            judge = config.evaluation.other_judge
            if judge is None or not ctx.processes.first:
                return None
            return stack.enter_context(
                reward_session(
                    ctx, reward, pool, judge, role=OTHER_JUDGE, store="judgements-of-the-other.sqlite"
                )
            )

        yield OwnData(
            samples=tuple(heldout),
            references=references,
            session=session,
            media=media_for_judge(config, ctx.policy.processor.video),
            seed=config.seed,
            other=ctx.processes.together("other judge", other),
            stop=requested,
            threads=config.data.reading_threads,
        )
