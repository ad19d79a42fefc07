"""The configuration of a run: one typed tree, read from YAML and overridden on the command line.

Each room keeps its own settings beside the code that obeys them; this file only composes them. Loading, checking
and printing are in ``vcap_jax.configuration``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from vcap_jax.configuration import ConfigError
from vcap_jax.data.config import DataConfig
from vcap_jax.evals.config import EvaluationConfig
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.objective import ObjectiveConfig
from vcap_jax.models.policy import ModelConfig
from vcap_jax.parallel.processes import DistributedConfig
from vcap_jax.parallel.sharding import MeshConfig
from vcap_jax.reward.alarms import AlarmConfig
from vcap_jax.reward.config import JudgeConfig, RewardConfig
from vcap_jax.reward.second_judge import SecondJudgeConfig
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.sft.config import SFTConfig
from vcap_jax.training.optimizer import OptimizerConfig
from vcap_jax.world.config import WorldConfig
from vcap_jax.world.noisy_perception import PerceptionConfig


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
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
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
