"""Several questions about one picture, answered side by side: the picture is looked at and computed once.

The answers are the candidates of one group. Their common prompt ends with the picture, and each begins with a question
of its own, which is fed to it as if it had been drawn (``rollout.slots.Suffixes``). Each is the answer that the
question by itself would get, but for rounding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.models.family import Params
from vcap_jax.references.writers import Report
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.context import RunContext, group_sampler, sample_reader
from vcap_jax.system.shutdown import requested


class Answering:
    """Answers by a context's policy.

    rollout: how they are drawn, ``group_size`` of each question. questions: all that may be asked. each: of one sample.
    """

    def __init__(
        self, ctx: RunContext, rollout: RolloutConfig, *, questions: Sequence[str], each: int
    ) -> None:
        self._ctx, self._answers, self._each = ctx, rollout.group_size, each
        # No more candidates than a step's groups have, which fit beside their prompts.
        groups = math.ceil(each * self._answers / max(ctx.config.rollout.group_size, self._answers))
        self._together = math.ceil(each / groups)
        self._sampler = group_sampler(
            ctx.policy,
            dataclasses.replace(rollout, group_size=self._together * self._answers),
            ctx.processes,
            suffix_tokens=max(len(ctx.policy.processor.suffix(question)) for question in questions),
        )

    def run(
        self, params: Params, items: Sequence[Sample], *, seed: int, indices: Sequence[int], on_bad: Report
    ) -> Iterator[Captioned]:
        """Yields an entry for every item, in their order: a sample's ``each`` questions are in a row. indices: of the
        items, ascending by one within a sample."""
        groups: dict[str, Sequence[Sample]] = {}
        firsts: list[int] = []
        for sample in range(0, len(items), self._each):
            for first in range(sample, sample + self._each, self._together):
                groups[items[first].id] = items[first : min(first + self._together, sample + self._each)]
                firsts.append(indices[first])

        def requests(first: Sample) -> list[str]:
            """As many of every group, so that all have one shape: the last again where there are fewer."""
            asked = [item.prompt or "" for item in groups[first.id]]
            return asked + asked[-1:] * (self._together - len(asked))

        def report(bad: BadSample) -> None:
            asked = groups[bad.id]
            several = f"the answers to {len(asked)} questions"
            part = several if len(asked) > 1 else f"the answer to {asked[0].prompt!r}"
            on_bad(dataclasses.replace(bad, part=part))

        load = sample_reader(self._ctx.config, self._ctx.policy.processor, judged=False, requests=requests)
        captioned = self._ctx.captioner(self._sampler, load).run(
            params,
            [group[0] for group in groups.values()],
            seed=seed,
            indices=firsts,
            on_bad=report,
            stop=requested,
        )
        for done in captioned:
            for k, item in enumerate(groups[done.sample.id]):
                own = slice(k * self._answers, (k + 1) * self._answers)
                yield Captioned(item, done.captions[own], done.lengths[own], done.truncated[own])
