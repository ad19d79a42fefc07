"""What all phases of a run share, and the captioner they share it for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vcap_jax.config import RunConfig
from vcap_jax.data.examples import Example
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.policy import Policy
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.rollout.captioner import Captioner
from vcap_jax.rollout.engine import JaxEngine, RolloutEngine
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.vllm_engine import VllmEngine
from vcap_jax.sharding import Placement


@dataclass(frozen=True)
class Workplace:
    """A run's settings, folder, starting policy and devices.

    sampler: draws captions as training does. load: reads a sample. say: where messages to the user go.
    """

    config: RunConfig
    folder: RunFolder
    policy: Policy
    placement: Placement
    sampler: GroupSampler
    load: Callable[[Sample], Example]
    say: Callable[[str], None]

    def captioner(
        self, sampler: GroupSampler | None = None, load: Callable[[Sample], Example] | None = None
    ) -> Captioner:
        """Captions samples with the run's sampling rules and reading, or with others."""
        return Captioner(
            self.policy,
            sampler or self.sampler,
            load or self.load,
            buckets=self.config.data.buckets,
            place=self.placement.batch,
            threads=self.config.data.threads,
        )

    def report_bad_sample(self, bad: BadSample) -> None:
        """Says which sample is left out, and why."""
        self.say(f"skipped sample {bad.id}: {bad.reason}")


def group_sampler(policy: Policy, rollout: RolloutConfig) -> GroupSampler:
    """A sampler for the policy's captions."""
    return GroupSampler(
        policy.graphdef,
        rollout,
        end_ids=policy.processor.eos_token_ids,
        banned_ids=policy.processor.banned_token_ids,
    )


@contextmanager
def rollout_engine(place: Workplace) -> Iterator[RolloutEngine]:
    """Who draws the captions that are trained on, as configured; raises RolloutError if it cannot."""
    config = place.config
    if config.rollout.engine == "jax":
        place.say("captions are drawn by the JAX sampler")
        yield JaxEngine(place.sampler, place.policy.frozen, config.seed)
        return
    with VllmEngine(place.policy, config.rollout, seed=config.seed, dtype=config.model.dtype) as engine:
        for server in engine.connect():
            place.say(f"captions are drawn by vLLM at {server.url}, model {server.model}")
        yield engine
