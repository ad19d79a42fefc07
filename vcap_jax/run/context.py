"""What all phases of a run share, and the captioner they share it for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import jax

from vcap_jax.data.batching import PromptBatcher
from vcap_jax.data.examples import Example, example_loader
from vcap_jax.data.manifest import Sample
from vcap_jax.data.media import TimeWindow
from vcap_jax.data.pipeline import BadSample
from vcap_jax.models.family import Params, Processor
from vcap_jax.models.policy import Policy
from vcap_jax.parallel.host_memory import free
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.parallel.sharding import GROUP_AXES, Placement
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.rollout.captioner import ManifestCaptioner, SamplerCaptions
from vcap_jax.rollout.engine import CaptionSource, JaxEngine, RolloutEngine
from vcap_jax.rollout.placement import own_types
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.vllm_engine import VllmEngine
from vcap_jax.run.config import RunConfig
from vcap_jax.system.turns import Turns


@dataclass(frozen=True)
class RunContext:
    """A run's settings, folder, starting policy and devices.

    placement: on the devices of all processes; ``own_placement``, ``own_policy`` and ``own_params`` are on this
        process's devices alone, where it captions at its own pace. With one process the two are the same.
    sampler: draws captions as training does. say: where messages to the user go.
    servers: draw captions in the sampler's place, where ``rollout.engine`` says so (``run.setup.drawing``). turns: on
        the devices, of servers that share them with the policy.
    """

    config: RunConfig
    folder: RunFolder
    policy: Policy
    placement: Placement
    sampler: GroupSampler
    say: Callable[[str], None]
    processes: Processes = ALONE
    servers: VllmEngine | None = None
    turns: Turns = field(default_factory=Turns)

    @cached_property
    def own_placement(self) -> Placement:
        return self.placement.local()

    @cached_property
    def own_policy(self) -> Policy:
        """The starting policy; its trainable parameters are those of ``policy``."""
        return dataclasses.replace(self.policy, frozen=self.own_params(self.policy.frozen))

    def own_params(self, params: Params) -> Params:
        """Parameters, trained or frozen, for this process's devices, in the types that captions are drawn with. All
        processes must call it at the same time. With one process they are ``params`` themselves."""
        return self.placement.gathered(
            params, own_types(self.policy.graphdef, params, self.config.model.dtype)
        )

    def taken(self, params: Params) -> list[jax.Array]:
        """Those of the trained parameters that captions are drawn with as they are; of several processes each draws
        with parameters of its own, and servers draw with copies."""
        if self.processes.count > 1 or self.servers is not None:
            return []
        return self.sampler.taken(params, self.policy.frozen)

    def give_up(self, own: Params) -> None:
        """Frees trained parameters that ``own_params`` gave, once captions are drawn with a copy of them and pictures
        are looked at by a frozen tower. With one process they are the run's, and stay."""
        if self.processes.count > 1:
            free(own, keep=self.sampler.taken(own, self.own_policy.frozen))

    def batcher(self, groups: int) -> PromptBatcher:
        """Makes device batches of that many groups, on this process's devices."""
        return PromptBatcher(
            self.own_policy,
            self.config.data.buckets,
            groups,
            self.own_placement.batch,
            # While captions are drawn the trained parameters may lie in the host's memory, or be given up. In a
            # supervised run, whose tower may be one of them, they are not.
            frozen_vision="visual" in self.config.model.frozen
            and ("parameters" in self.config.rollout.offload or self.processes.count > 1),
        )

    def reader(self, *, judged: bool) -> Callable[[Sample], Example]:
        """Reads a sample. judged: whether a judge is shown it."""
        return sample_reader(self.config, self.policy.processor, judged=judged)

    def captioner(
        self, sampler: GroupSampler | None = None, load: Callable[[Sample], Example] | None = None
    ) -> ManifestCaptioner:
        """Captions samples with the run's sampling rules and reading, or with others. No judge sees what is read."""
        return ManifestCaptioner(
            self.own_policy,
            self._source(sampler or self.sampler),
            load or self.reader(judged=False),
            threads=self.config.data.reading_threads,
            prefetch=self.config.data.prefetch,
            on_bad_sample=self.config.data.on_bad_sample,
        )

    def _source(self, sampler: GroupSampler) -> CaptionSource:
        """Who draws captions by the rules of ``sampler``."""
        if self.servers is not None:
            return self.servers.drawing(sampler.config)
        # Pictures are looked at in batches as training looks at them, however many groups decode side by side.
        ways = math.prod(self.own_placement.mesh.shape[axis] for axis in GROUP_AXES)
        micro = -(-self.config.grpo.groups_per_micro_batch // (self.processes.count * ways)) * ways
        groups = min(sampler.config.groups_per_batch, micro)
        # However many samples are captioned, no more groups wait for long caches than in a step, or than begin at once.
        step = -(-self.config.grpo.groups_per_step // self.processes.count)
        waiting = max(1, step - sampler.config.short_groups + 1)
        return SamplerCaptions(sampler, self.own_policy.frozen, self.batcher(groups), waiting)

    @property
    def engine(self) -> RolloutEngine:
        """Who draws the captions that are trained on."""
        if self.servers is not None:
            return self.servers
        return JaxEngine(self.sampler, self.own_policy.frozen, self.config.seed)

    def own_file(self, name: str) -> Path:
        return own_file(self.folder, name, self.processes)

    def report_bad_sample(self, bad: BadSample) -> None:
        self.say(str(bad))


def sample_reader(
    config: RunConfig,
    processor: Processor,
    *,
    window: Callable[[Sample, float], TimeWindow] | None = None,
    judged: bool = True,
    requests: Callable[[Sample], Sequence[str]] | None = None,
) -> Callable[[Sample], Example]:
    """Reads and encodes a sample as the configuration says; the others: see ``example_loader``."""
    return example_loader(
        processor,
        image_prompt=config.data.image_prompt,
        video_prompt=config.data.video_prompt,
        judge=config.data.judge_media,
        buckets=config.data.buckets,
        window=window,
        judged=judged,
        requests=requests,
    )


def own_file(folder: RunFolder, name: str, processes: Processes) -> Path:
    """A file in the run folder that every process has one of; that of the first is called ``name``."""
    path, index = folder.root / name, processes.index
    return path.with_stem(f"{path.stem}-{index}") if index else path


def group_sampler(
    policy: Policy,
    rollout: RolloutConfig,
    processes: Processes = ALONE,
    *,
    suffix_tokens: int = 0,
    logprobs: bool = False,
) -> GroupSampler:
    """A sampler for this process's share of the policy's captions. suffix_tokens, logprobs: see ``GroupSampler``."""
    return GroupSampler(
        policy.graphdef,
        rollout.share(processes.count),
        end_ids=policy.processor.eos_token_ids,
        banned_ids=policy.processor.banned_token_ids,
        suffix_tokens=suffix_tokens,
        logprobs=logprobs,
    )
