"""The configuration of a run: one typed tree, read from YAML and overridden on the command line.

Each room keeps its own settings beside the code that obeys them; this file only composes them. Loading, checking
and printing are in ``vcap_jax.configuration``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from vcap_jax.configuration import ConfigError, settings
from vcap_jax.data.config import DataConfig
from vcap_jax.evals.config import EvaluationConfig
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.objective import ObjectiveConfig
from vcap_jax.models.policy import ModelConfig
from vcap_jax.parallel.processes import DistributedConfig
from vcap_jax.parallel.sharding import MeshConfig
from vcap_jax.report.trackers.config import TrackersConfig
from vcap_jax.reward.alarms import AlarmConfig
from vcap_jax.reward.config import JudgeConfig, RewardConfig, SecondJudgeConfig
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.sft.config import SFTConfig
from vcap_jax.training.optimizer import OptimizerConfig
from vcap_jax.world.config import WorldConfig
from vcap_jax.world.noisy_perception import PerceptionConfig


@settings
class ReferenceConfig:
    """How a captioner writes references: those the data lack, or a pool of its own
    (launch/references.py)."""

    per_sample: int = Field(default=1, ge=1)
    """References of each sample; a step uses one of them."""
    segments: int = Field(default=0, ge=0)
    """Windows of each video that get references of their own, drawn as reward.local says, for
    reward.local.reference: segment."""
    segment_prompt: str = "Describe this video clip in detail."
    """The request that follows such a window."""
    sampling: SamplingConfig | None = None
    """null draws as the rollout does."""
    max_completion_length: int | None = Field(default=None, ge=1)
    """Tokens of a reference at most; null takes rollout.max_completion_length. An answer to a question
    has as many."""
    questions: tuple[str, ...] = ()
    """What the captioner is asked about a sample beside its request. The questions are put behind the
    reference, each with its answer on a line of its own."""
    questions_per_sample: int = Field(default=0, ge=0)
    """How many of these each sample is asked, drawn from its id; 0 asks all."""

    def __post_init__(self) -> None:
        if self.questions_per_sample > len(self.questions):
            raise ValueError(
                f"references.questions_per_sample is {self.questions_per_sample}, and references.questions has "
                f"{len(self.questions)}: give more questions, or ask fewer of them"
            )
        if any(not question.strip() for question in self.questions):
            raise ValueError("references.questions has one without text: leave it out")
        if not self.segment_prompt.strip():
            raise ValueError("references.segment_prompt has no text: give the request, or leave it out")


@settings
class LoggingConfig:
    """What a run leaves behind and how often."""

    save_every: int = Field(default=20, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(default=3, ge=1)
    """How many of the last checkpoints are kept."""
    keep_best: str | None = None
    """EVALUATOR/METRIC, such as judged/reward: the best checkpoint by it is kept as well, and
    --step best names it. null keeps none; it needs evaluation.every."""
    best_is: Literal["highest", "lowest"] = "highest"
    """Which value of logging.keep_best is the best."""
    samples_every: int = Field(default=10, ge=1)
    """Steps between samples on the page."""
    samples_per_step: int = Field(default=2, ge=0)
    """Groups shown each time; 0 for none."""
    plot_every: int = Field(default=20, ge=1)
    """Steps between two drawings of the plots."""
    print_every: int = Field(default=1, ge=1)
    """Steps between lines in a log file."""
    profile_steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Steps, such as [3], of which JAX's profiler writes a trace to the run's profile/. The state
    before each is saved. The first steps compile."""


@settings
class RunConfig:
    """A whole run."""

    name: str = "run"
    """Name of the run's folder under runs/, unless --run-dir says otherwise."""
    modality: Literal["image", "video"] = "image"
    """What the data are."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of data order, sampling and local windows."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the data (paper: 1)."""
    max_steps: int | None = Field(default=None, ge=1)
    """The number of steps, whatever the epochs; the data are repeated as needed. null: whole
    epochs."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    world: WorldConfig = Field(default_factory=WorldConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    references: ReferenceConfig = Field(default_factory=ReferenceConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    second_judge: SecondJudgeConfig | None = None
    """null for none. It sees a share of the captions and never enters the reward."""
    alarms: AlarmConfig = Field(default_factory=AlarmConfig)
    grpo: GRPOConfig = Field(default_factory=GRPOConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    sft: SFTConfig = Field(default_factory=SFTConfig)
    mesh: MeshConfig = Field(default_factory=MeshConfig)
    distributed: DistributedConfig = Field(default_factory=DistributedConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    trackers: TrackersConfig = Field(default_factory=TrackersConfig)
    compilation_cache: str | None = None
    """Folder for compiled programs, which makes later starts quick. Of several processes all must
    share it, or it is not used."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name is empty, and a run's folder under runs/ is called by it: give one")
        if self.logging.keep_best is not None:
            if "/" not in self.logging.keep_best.strip("/"):
                raise ValueError(
                    f"logging.keep_best is {self.logging.keep_best}: give EVALUATOR/METRIC, such as judged/reward"
                )
            if self.evaluation.every is None:
                raise ValueError(
                    "logging.keep_best chooses among evaluations between steps, and evaluation.every is null: set it"
                )
        if self.rollout.sampling.temperature == 0 and self.rollout.group_size > 1:
            raise ValueError("rollout.sampling.temperature is 0: all captions of a group would be the same")
        if self.grpo.advantages.per_component and self.reward.family == "claim_differences":
            raise ValueError(
                "grpo.advantages.per_component normalises the components of a weighted sum, and the reward "
                "claim_differences is none: set it to false, or take another reward.family"
            )
        if self.judge.sleep_mode and self.rollout.ahead:
            raise ValueError(
                "rollout.ahead draws the next captions while the judge works, and judge.sleep_mode has the judge wait "
                "for its turn on the devices that draw them: set rollout.ahead=0, or judge.sleep_mode=false"
            )
        if (other := self.evaluation.other_judge) is not None and other.sleep_mode:
            raise ValueError(
                "evaluation.other_judge.sleep_mode is true, and only the run's own judge takes turns: give the other "
                "one GPUs of its own, or leave out evaluation.other_judge"
            )
        if self.judge.urls and self.world.judge_perception != PerceptionConfig():
            raise ValueError(
                "world.judge_perception is for the judge that the run starts itself, and judge.urls names others; "
                "leave judge.urls empty, or start the embedded judge with serve.py --miss-rate, --invent-rate, ..."
            )

    @property
    def objective(self) -> ObjectiveConfig:
        """``grpo.objective`` with the length that it leaves to the rollout."""
        objective = self.grpo.objective
        if objective.max_completion_length is None:
            objective = replace(objective, max_completion_length=self.rollout.max_completion_length)
        return objective

    @property
    def groups_at_once(self) -> dict[str, int]:
        """Settings that say how many groups are computed together, each of which devices share out."""
        counts = {
            "grpo.groups_per_micro_batch": self.grpo.groups_per_micro_batch,
            "rollout.groups_per_batch": self.rollout.groups_per_batch,
            "rollout.short_groups": self.rollout.short_groups,
            "rollout.single_groups": self.rollout.single_groups,
        }
        return {name: count for name, count in counts.items() if count}

    def total_steps(self, samples: int) -> int:
        """Steps: ``max_steps`` if given, else floor(samples / groups_per_step) per epoch.

        Raises ConfigError if the data do not fill one step.
        """
        if self.max_steps is not None:
            return self.max_steps
        steps = samples // self.grpo.groups_per_step * self.epochs
        if steps < 1:
            raise ConfigError(
                f"{samples} samples do not fill one step of {self.grpo.groups_per_step} groups; "
                "lower grpo.groups_per_step (and grpo.groups_per_micro_batch with it), or set max_steps to go "
                "through them more than once"
            )
        return steps
