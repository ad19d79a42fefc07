"""References written by a policy: its captions, several of a sample drawn as one group."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.models.errors import InputError
from vcap_jax.models.policy import Policy
from vcap_jax.parallel.fingerprint import fingerprint
from vcap_jax.references.asking import Answering
from vcap_jax.references.beside import Asking, WindowDraw
from vcap_jax.references.writers import CaptionWriter, Report
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext, group_sampler, sample_reader
from vcap_jax.system.shutdown import requested

_SEED = 1_000_003
"""Added to the run's seed: never met by the training rollouts, whose fold is (seed, step)."""


def reference_seed(config: RunConfig) -> int:
    """Of the draws of references: a run that writes its own and a pool made beforehand come out the same."""
    return config.seed + _SEED


def reference_rollout(config: RunConfig) -> RolloutConfig:
    """How references are drawn: as in the rollout, but for what ``config.references`` says."""
    asked = config.references
    return dataclasses.replace(
        config.rollout.limited_to(asked.max_completion_length or config.rollout.max_completion_length),
        group_size=asked.per_sample,
        sampling=asked.sampling or config.rollout.sampling,
    )


def configured_writer(
    ctx: RunContext, samples: Sequence[Sample], *, name: str, ended_only: bool = False
) -> CaptionWriter:
    """``policy_writer`` as ``config.references`` asks."""
    references = ctx.config.references
    return policy_writer(
        ctx,
        samples,
        name=name,
        seed=reference_seed(ctx.config),
        rollout=reference_rollout(ctx.config),
        segments=references.segments,
        asking=Asking.of(references),
        ended_only=ended_only,
    )


def _check_prompts(policy: Policy, asking: Asking | None, of_windows: str | None) -> None:
    """Before anything is written: they are asked only once all whole samples have references."""
    texts = [] if asking is None else [("questions", text) for text in asking.questions]
    texts += [] if of_windows is None else [("segment_prompt", of_windows)]
    for key, text in texts:
        try:
            policy.processor.suffix(text)
        except InputError as error:
            raise ConfigError(f"references.{key}: {text!r} cannot be asked: {error}") from error


def policy_writer(
    ctx: RunContext,
    samples: Sequence[Sample],
    *,
    name: str,
    seed: int,
    rollout: RolloutConfig,
    segments: int = 0,
    asking: Asking | None = None,
    ended_only: bool = False,
) -> CaptionWriter:
    """References by the context's policy.

    samples: all that the pool is for. name: the writer in words. rollout, seed: how captions are drawn. segments:
    windows of each video. asking: questions to each sample. ended_only: leave out captions that the token budget cut
    off, as targets of imitation must. All processes must make it at the same time.

    Raises ConfigError for a question, or the request for a window, that cannot be a prompt.
    """
    config, policy = ctx.config, ctx.policy
    windows = segments > 0 and config.modality == "video"
    _check_prompts(policy, asking, config.references.segment_prompt if windows else None)
    params = ctx.own_params(policy.trainable)
    own = rollout == config.rollout
    sampler = ctx.sampler if own else group_sampler(policy, rollout, ctx.processes)

    @functools.cache
    def answering(questions: int) -> Answering:
        assert asking is not None
        return Answering(ctx, rollout, questions=asking.questions, each=questions)

    def draws(
        samples: Sequence[Sample],
        window: WindowDraw | None,
        *,
        seed: int,
        indices: Sequence[int],
        on_bad: Report,
        questions: int = 1,
    ) -> Iterator[Captioned]:
        if questions > 1 and ctx.servers is None:  # servers keep prefixes by themselves
            return answering(questions).run(params, samples, seed=seed, indices=indices, on_bad=on_bad)
        load = None
        if window is not None:
            load = sample_reader(config, policy.processor, window=window, judged=False)
        captioner = ctx.captioner(sampler, load)
        return captioner.run(params, samples, seed=seed, indices=indices, on_bad=on_bad, stop=requested)

    return CaptionWriter(
        config,
        draws,
        samples,
        name=name,
        # Of the parameters as they are trained and kept: the same whatever the number of processes.
        weights=fingerprint(policy.trainable, policy.frozen),
        seed=seed,
        rollout=rollout,
        own={"dtype": config.model.dtype, "ended_only": ended_only}
        | ({} if ctx.servers is None else {"engine": "vllm"}),
        segments=segments,
        asking=asking,
        ended_only=ended_only,
    )
