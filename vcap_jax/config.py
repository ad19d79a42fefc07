"""The configuration of a run: one typed tree, read from YAML and overridden on the command line.

Each room keeps its own settings beside the code that obeys them; this file only composes them. Loading, checking
and printing are in ``vcap_jax.configuration``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from vcap_jax.alarms import AlarmConfig
from vcap_jax.configuration import ConfigError
from vcap_jax.data.judge_media import JudgeMediaSettings
from vcap_jax.distributed import DistributedConfig
from vcap_jax.grpo.advantages import AdvantageConfig, OverlongConfig
from vcap_jax.grpo.objective import ObjectiveConfig
from vcap_jax.grpo.optimizer import OptimizerConfig
from vcap_jax.policy import ModelConfig
from vcap_jax.qwen3_vl.processing import Buckets
from vcap_jax.reward.config import JudgeConfig, RewardConfig
from vcap_jax.reward.second_judge import SecondJudgeConfig
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.sft.config import SFTConfig
from vcap_jax.sharding import MeshConfig
from vcap_jax.world.imperfect_sight import PerceptionConfig


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """The embedded visual world, rendered into the run folder when no manifest is given.

    train_scenes, heldout_scenes: how many. seed: of the scenes (the held-out split is independent).
    judge_perception: only of the judge that the run starts itself; other judges have eyes of their own.
    """

    train_scenes: int = 1024
    heldout_scenes: int = 256
    seed: int = 0
    judge_perception: PerceptionConfig = field(default_factory=PerceptionConfig)

    def __post_init__(self) -> None:
        for name in ("train_scenes", "heldout_scenes"):
            if getattr(self, name) < 1:
                raise ValueError(f"world.{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"world.seed is {self.seed}: give a whole number from 0 to 2**32 - 1")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where prompts and references come from.

    manifest: JSONL, a row per image or video; None renders the embedded world.
    references: a reference pool (JSONL). None takes the references in the manifest's rows; samples without any
        are captioned by the starting policy before training, which is the paper's pool for e1.
    image_prompt, video_prompt: the request that follows the picture, where a row has no "prompt" of its own.
    max_pixels: of an image, height x width (paper: 6,422,528); None keeps the checkpoint's own.
    max_frames, max_frame_tokens: of a video (paper: 200 and 256); None keeps the checkpoint's own.
    fps: video frames sampled per second; None keeps the checkpoint's own.
    on_bad_sample: "skip" reports a sample that cannot be read and goes on without it, "refuse" ends the run.
    threads, prefetch: samples read at the same time, and read ahead.
    """

    manifest: str | None = None
    references: str | None = None
    image_prompt: str = "Describe this image in detail."
    video_prompt: str = (
        "Describe this video in detail. Divide it into segments, one per line, each beginning with its time range "
        'in seconds like "[0.0 - 12.5]", and end with a line "Summary: ..." about the whole video.'
    )
    max_pixels: int | None = None
    max_frames: int | None = None
    max_frame_tokens: int | None = None
    fps: float | None = None
    buckets: Buckets = field(default_factory=Buckets)
    on_bad_sample: Literal["skip", "refuse"] = "skip"
    threads: int = 2
    prefetch: int = 8
    judge_media: JudgeMediaSettings = field(default_factory=JudgeMediaSettings)

    def __post_init__(self) -> None:
        for name in ("threads", "prefetch"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("max_pixels", "max_frames", "max_frame_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(
                    f"data.{name} is {value}; it must be at least 1, or null for the checkpoint's own"
                )
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise ValueError(
                f"data.fps is {self.fps}; it must be positive and finite, or null for the checkpoint's own"
            )


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig:
    """How a captioner writes references: those the data lack, or a pool of its own (launch/references.py).

    per_sample: references of each sample; a step uses one of them.
    segments: windows of each video that get references of their own, drawn as reward.local says, for
        reward.local.reference: segment.
    segment_prompt: the request that follows such a window.
    sampling: as in the rollout where None. max_completion_length: tokens; as in the rollout where None.
    """

    per_sample: int = 1
    segments: int = 0
    segment_prompt: str = "Describe this video clip in detail."
    sampling: SamplingConfig | None = None
    max_completion_length: int | None = None

    def __post_init__(self) -> None:
        if self.segments < 0:
            raise ValueError(
                f"references.segments is {self.segments}; give a number of windows, or 0 for none"
            )
        if self.per_sample < 1:
            raise ValueError(f"references.per_sample is {self.per_sample}; it must be at least 1")
        if self.max_completion_length is not None and self.max_completion_length < 1:
            raise ValueError(
                f"references.max_completion_length is {self.max_completion_length}; it must be at least 1, or null "
                "for that of the rollout"
            )


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """The shape of a GRPO step.

    groups_per_step: prompts per optimizer step; times rollout.group_size it is the effective batch (paper: 256).
    groups_per_micro_batch: prompts whose gradients are computed at a time; best a multiple of the devices. Where it
        does not divide groups_per_step, the last micro-batch of a step is filled up with groups that take no part.
    updates_per_step: optimizer updates on the same captions; beyond 1 the old policy's log-probabilities are
        computed once and the clip begins to matter.
    logprob_chunk: caption positions whose vocabulary logits exist at a time.
    caption_buckets: lengths that a step's captions are padded to in the update (rollout.max_completion_length is
        always one of them); each compiles once.
    """

    groups_per_step: int = 32
    groups_per_micro_batch: int = 4
    updates_per_step: int = 1
    logprob_chunk: int = 512
    caption_buckets: tuple[int, ...] = ()
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    advantages: AdvantageConfig = field(default_factory=AdvantageConfig)
    overlong: OverlongConfig = field(default_factory=OverlongConfig)

    def __post_init__(self) -> None:
        for name in ("groups_per_step", "groups_per_micro_batch", "updates_per_step", "logprob_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"grpo.{name} is {getattr(self, name)}; it must be at least 1")
        if any(length < 1 for length in self.caption_buckets):
            raise ValueError(
                f"grpo.caption_buckets is {list(self.caption_buckets)}; each must be at least 1 token"
            )


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """What a run leaves behind and how often.

    save_every: steps between checkpoints. keep: how many of the last checkpoints are kept.
    samples_every: steps between samples on the page. samples_per_step: groups shown each time; 0 for none.
    plot_every: steps between two drawings of the plots. print_every: steps between lines in a log file.
    """

    save_every: int = 20
    keep: int = 3
    samples_every: int = 10
    samples_per_step: int = 2
    plot_every: int = 20
    print_every: int = 1

    def __post_init__(self) -> None:
        for name in ("save_every", "keep", "samples_every", "plot_every", "print_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"logging.{name} is {getattr(self, name)}; it must be at least 1")
        if self.samples_per_step < 0:
            raise ValueError(
                f"logging.samples_per_step is {self.samples_per_step}; it must not be negative, 0 shows none"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run.

    name: of its folder under runs/, unless --run-dir says otherwise. modality: what the data are.
    seed: of data order, sampling and local windows. epochs: passes over the data (paper: 1).
    max_steps: the number of optimizer steps, whatever the epochs; the data are repeated as needed. Null: whole epochs.
    compilation_cache: folder for compiled programs, which makes later starts quick.
    second_judge: it sees a share of the captions and never enters the reward; null for none.
    """

    name: str = "run"
    modality: Literal["image", "video"] = "image"
    seed: int = 0
    epochs: int = 1
    max_steps: int | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    data: DataConfig = field(default_factory=DataConfig)
    references: ReferenceConfig = field(default_factory=ReferenceConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    second_judge: SecondJudgeConfig | None = None
    alarms: AlarmConfig = field(default_factory=AlarmConfig)
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    compilation_cache: str | None = None

    def __post_init__(self) -> None:
        if self.rollout.groups_per_batch % self.grpo.groups_per_micro_batch:
            raise ValueError(
                f"rollout.groups_per_batch {self.rollout.groups_per_batch} must be a multiple of "
                f"grpo.groups_per_micro_batch {self.grpo.groups_per_micro_batch}"
            )
        if self.rollout.sampling.temperature == 0 and self.rollout.group_size > 1:
            raise ValueError("rollout.sampling.temperature is 0: all captions of a group would be the same")
        if self.judge.urls and self.world.judge_perception != PerceptionConfig():
            raise ValueError(
                "world.judge_perception is for the judge that the run starts itself, and judge.urls names others; "
                "leave judge.urls empty, or start the embedded judge with serve.py --miss-rate, --invent-rate, ..."
            )
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}: give a whole number from 0 to 2**32 - 1")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(
                f"max_steps is {self.max_steps}; it must be at least 1, or null for whole epochs"
            )
        if self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs}; it must be at least 1")

    @property
    def objective(self) -> ObjectiveConfig:
        """``grpo.objective`` with the length that it leaves to the rollout."""
        objective = self.grpo.objective
        if objective.max_completion_length is None:
            objective = replace(objective, max_completion_length=self.rollout.max_completion_length)
        return objective

    def total_steps(self, samples: int) -> int:
        """Optimizer steps: ``max_steps`` if given, else floor(samples / groups_per_step) per epoch.

        Raises ConfigError if the data do not fill one step.
        """
        if self.max_steps is not None:
            return self.max_steps
        steps = samples // self.grpo.groups_per_step * self.epochs
        if steps < 1:
            raise ConfigError(
                [
                    (
                        f"{samples} samples do not fill one step of {self.grpo.groups_per_step} groups; "
                        "lower grpo.groups_per_step or set max_steps to go through them more than once"
                    )
                ]
            )
        return steps
