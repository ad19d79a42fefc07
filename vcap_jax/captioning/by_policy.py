"""Captions by a policy: those of a sample are drawn as one group, many samples side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

from vcap_jax.data.examples import Example
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.models.policy import Params
from vcap_jax.parallel.fingerprint import fingerprint
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.context import RunContext, group_sampler
from vcap_jax.system.shutdown import requested


class PolicyCaptioner:
    """Captions samples, images and videos alike.

    ctx: its policy gives the model; params: its trainable parameters, on the whole mesh. name: the captioner in words.
    rollout: how captions are drawn. All processes must make it at the same time.
    """

    def __init__(self, ctx: RunContext, params: Params, *, name: str, rollout: RolloutConfig) -> None:
        self.name = name
        self._ctx, self._given, self._params = ctx, params, ctx.own_params(params)
        own = rollout == ctx.config.rollout
        self._sampler = ctx.sampler if own else group_sampler(ctx.policy, rollout, ctx.processes)

    def drawing(self, rollout: RolloutConfig) -> PolicyCaptioner:
        """The same captioner by other rules; parameters are shared."""
        other = copy.copy(self)
        other._sampler = group_sampler(self._ctx.policy, rollout, self._ctx.processes)
        return other

    def weights(self) -> str:
        """Fingerprint of the parameters as they are trained and kept: the same whatever the number of processes."""
        return fingerprint(self._given, self._ctx.policy.frozen)

    def captions(
        self,
        samples: Sequence[Sample],
        *,
        seed: int,
        first: int = 0,
        indices: Sequence[int] | None = None,
        load: Callable[[Sample], Example] | None = None,
        on_bad: Callable[[BadSample], None],
    ) -> Iterator[Captioned]:
        """One entry for every usable sample, in their order; what is in work when a signal comes is the last.

        seed, first, indices: what the draws depend on, see ``rollout.captioner.ManifestCaptioner.run``. load: reads a
        sample; None for the context's own way. Ids of the samples must differ.
        """
        captioner = (
            self._ctx.captioner(self._sampler) if load is None else self._ctx.captioner(self._sampler, load)
        )
        yield from captioner.run(
            self._params, samples, seed=seed, first=first, indices=indices, on_bad=on_bad, stop=requested
        )
