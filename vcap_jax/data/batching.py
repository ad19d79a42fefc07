"""Device batches of prompts: padded alike, placed, and seen by the vision tower once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from vcap_jax.data.examples import Example
from vcap_jax.models.buckets import Buckets, PaddedSizes
from vcap_jax.models.family import Features, Params, PromptBatch
from vcap_jax.models.policy import Policy, frozen_vision_encoder, vision_encoder
from vcap_jax.parallel.processes import Processes


@dataclass(frozen=True)
class PromptBatcher:
    """Makes device batches of up to ``groups`` prompts.

    policy: whose vision tower looks at the pictures. put: puts a host batch on the devices. frozen_vision: whether the
    tower is frozen, and is to be found in ``policy`` alone: the parameters that a batch is made with may then lie
    anywhere.
    """

    policy: Policy
    buckets: Buckets
    groups: int
    put: Callable[[PromptBatch], PromptBatch]
    frozen_vision: bool = False

    def sizes(self, examples: Sequence[Example]) -> PaddedSizes:
        """What a batch of the examples is padded to. Raises PromptTooLargeError for one beyond the largest bucket."""
        names = [example.sample.id for example in examples]
        return self.policy.processor.padded_sizes(
            [example.prompt for example in examples], self.buckets, names
        )

    def batch(
        self, params: Params, examples: Sequence[Example], sizes: PaddedSizes | None = None
    ) -> tuple[PromptBatch, Features | None]:
        """The prompts on the devices, and what the vision tower makes of their pictures with ``params``.

        sizes: what to pad to, else the smallest that hold all. The prompts come without their pixels: nobody asks for
        them again, and they would stay on the devices as long as the batch.
        """
        prompt = self.put(
            self.policy.processor.collate(
                [example.prompt for example in examples],
                self.buckets,
                names=[example.sample.id for example in examples],
                batch_size=self.groups,
                sizes=sizes,
            )
        )
        if prompt.vision is None:
            return prompt, None
        features = self._encode(params, self.policy.frozen, prompt)
        return prompt.without_vision(), features

    @cached_property
    def _encode(self) -> Callable[[Params, Params, PromptBatch], Features]:
        if self.frozen_vision:
            return frozen_vision_encoder(self.policy)
        return vision_encoder(self.policy.graphdef)


def common_sizes(processes: Processes, sizes: list[PaddedSizes]) -> list[PaddedSizes]:
    """For each of a step's batches the sizes that hold the prompts of all processes: their batches become one."""
    if processes.count == 1:
        return sizes
    names = [field.name for field in fields(PaddedSizes)]
    told = processes.all_gather_objects(
        "sizes of prompts", [[getattr(s, name) for name in names] for s in sizes]
    )
    largest = np.max(np.asarray(told), axis=0).tolist()
    return [PaddedSizes(**dict(zip(names, batch, strict=True))) for batch in largest]
