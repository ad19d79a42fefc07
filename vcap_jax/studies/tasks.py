"""From studies to tasks: one for each arm, modality and seed, in an order that lets results of all claims come early.

A task's folder is named by its arm and by a digest of its resolved configuration, but for what only watches a run. Arms
that several studies share are therefore run once, what is complete is never done again, and a changed configuration is
another folder.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vcap_jax.configuration import load_config, plain_settings, shipped_configs
from vcap_jax.evals.config import HELDOUT, EvaluationConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.studies.arms import ARMS, MODALITIES, QUICK, STUDIES, Arm
from vcap_jax.system.digests import digest_of
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import JsonDict, as_object
from vcap_jax.world.scenes import Modality

CANDIDATES = 8
"""N of best-of-N distillation (paper, Section 3.4)."""


class PlanError(VCapError, ValueError):
    """The studies cannot be planned as asked; the message names the remedy."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One arm of one modality and seed.

    world: folder of the scenes, under worlds/. folder: of the whole, under runs/. result: the run in it whose captions
    count. after: keys of tasks that must be complete before. rounds, teachers: of self-improvement and distillation,
    those of earlier tasks included. cut: references are cut to so many sentences.
    """

    key: str
    arm: str
    modality: Modality
    seed: int
    kind: Literal["train", "improve", "distill"]
    world: str
    folder: str
    result: str = "."
    after: tuple[str, ...] = ()
    rounds: int = 0
    teachers: tuple[str, ...] = ()
    cut: int | None = None

    def run(self, out: Path) -> Path:
        """The run folder whose captions count."""
        return out / "runs" / self.folder / self.result

    def complete(self, out: Path) -> bool:
        """Whether nothing is left to do."""
        return (self.run(out) / "summary.json").exists()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be run. tasks: by key, in order. studies: names of those asked for, with their arms by modality.
    overrides: of every configuration. settled: claims looked at again, and with how many seeds (``settle``)."""

    tasks: Mapping[str, Task]
    configs: Mapping[str, RunConfig]
    studies: Mapping[str, Mapping[Modality, tuple[str, ...]]]
    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    settled: Mapping[str, int] = field(default_factory=dict)

    def of(self, arm: str, modality: Modality) -> dict[int, Task]:
        """Tasks of an arm by seed; empty if it is not planned."""
        name = ARMS[arm].same_as.get(modality, arm)
        return {t.seed: t for t in self.tasks.values() if t.arm == name and t.modality == modality}


def plan(
    *,
    quick: bool,
    seeds: Sequence[int],
    only: Iterable[str] = (),
    modalities: Iterable[Modality] = MODALITIES,
    overrides: Sequence[str] = (),
) -> Plan:
    """All tasks of the studies asked for.

    quick: of each study what ``QUICK`` says. only: names of studies, all if empty. overrides: of every configuration,
    as on the command line; those that a study chooses itself are refused. Raises PlanError, ConfigError.
    """
    wanted = list(only) or list(QUICK if quick else STUDIES)
    unknown = [name for name in wanted if name not in STUDIES]
    if unknown:
        raise PlanError(f"no study {unknown[0]!r}: choose among {', '.join(STUDIES)}")
    if len(set(seeds)) < len(seeds) or not seeds:
        raise PlanError(f"seeds {list(seeds)}: give different ones, at least one")
    chosen = tuple(modalities)
    studies: dict[str, Mapping[Modality, tuple[str, ...]]] = {}
    for name in wanted:
        source = QUICK.get(name, {}) if quick else STUDIES[name].arms
        there = {modality: source[modality] for modality in chosen if modality in source}
        if there:
            studies[name] = there
    if not studies:
        raise PlanError("nothing is left to run: leave out --only or --modality, or ask for --full")
    tasks: dict[str, Task] = {}
    configs: dict[str, RunConfig] = {}
    for seed in seeds:
        for by_modality in studies.values():
            for modality, arms in by_modality.items():
                for arm in arms:
                    _add(tasks, configs, ARMS[arm], modality, seed, overrides)
    return Plan(tasks=tasks, configs=configs, studies=studies, seeds=tuple(seeds), overrides=tuple(overrides))


def more_of(first: Plan, seeds: Mapping[tuple[Modality, str], int]) -> Plan:
    """The plan with more seeds of some arms: those from the plan's last one on, so many in all, seed after seed.

    seeds: by modality and arm. Raises ConfigError.
    """
    tasks, configs = dict(first.tasks), dict(first.configs)
    for seed in range(max(first.seeds) + 1, max(seeds.values(), default=0)):
        for (modality, arm), count in seeds.items():
            if seed < count:
                _add(tasks, configs, ARMS[arm], modality, seed, first.overrides)
    return dataclasses.replace(first, tasks=tasks, configs=configs)


def _add(
    tasks: dict[str, Task],
    configs: dict[str, RunConfig],
    arm: Arm,
    modality: Modality,
    seed: int,
    overrides: Sequence[str],
) -> str:
    """Adds an arm's task and those it needs; returns its key."""
    if modality in arm.same_as:
        return _add(tasks, configs, ARMS[arm.same_as[modality]], modality, seed, overrides)
    key = f"{modality}/{arm.name}/{seed}"
    if key in tasks:
        return key
    config = _config(arm, modality, seed, overrides)
    result, teachers = ".", tuple[str, ...]()
    if arm.kind == "improve":
        needed, result = [f"e{arm.round - 1}"] if arm.round > 1 else [], arm.name
    elif arm.kind == "distill":
        assert arm.teacher is not None
        names = ("self", "e1", "e2")
        # One folder, teacher after teacher, so that the references are written once.
        earlier = names[: names.index(arm.teacher)]
        needed = [*(f"from_{name}" for name in earlier[-1:]), "e1" if arm.teacher == "self" else arm.teacher]
        result, teachers = f"{arm.teacher}/student", (*earlier, arm.teacher)
    else:
        needed = ["e1"]  # it lends what the base wrote for this seed
    after = tuple(_add(tasks, configs, ARMS[name], modality, seed, overrides) for name in needed)
    world = _digest(config.world.train_scenes, config.world.heldout_scenes, config.world.seed)
    tasks[key] = Task(
        key=key,
        arm=arm.name,
        modality=modality,
        seed=seed,
        kind=arm.kind,
        world=f"{modality}-{world}",
        folder=f"{config.name}-{_digest(_decides(config), arm.kind, arm.cut)}",
        result=result,
        after=after,
        rounds=arm.round,
        teachers=teachers,
        cut=arm.cut,
    )
    configs[key] = config
    return key


def _config(arm: Arm, modality: Modality, seed: int, overrides: Sequence[str]) -> RunConfig:
    configs = shipped_configs()
    files = [configs / "studies" / f"{modality}.yaml", *(configs / name for name in arm.fragments)]
    config = load_config(RunConfig, files, [*overrides, *arm.overrides, f"seed={seed}"])
    _check_countable(config, overrides)
    what = {"improve": "self-improve", "distill": "distill"}.get(arm.kind, arm.name)
    return dataclasses.replace(config, name=f"{modality}-{what}-seed{seed}")


_CHOSEN: Mapping[str, str] = {
    "seed": "each arm is run with several, and --seeds says with how many",
    "name": "each run is named by its arm",
    "modality": "--modality chooses among the arms",
}
"""Settings of a run that a study chooses, and how it does."""


def _check_countable(config: RunConfig, overrides: Sequence[str]) -> None:
    """Raises PlanError for a setting that the studies choose themselves, or without which they have nothing to count:
    it would be passed over, or be missed once all runs are made."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in _CHOSEN:
            raise PlanError(f"{override}: {_CHOSEN[key]}, so leave it out")
    if config.data.manifest is not None:
        raise PlanError("data.manifest: studies count facts of the embedded world's scenes, so leave it out")
    if config.data.references is not None:
        raise PlanError("data.references: each arm has references of its own, so leave it out")
    if not any(one.use == HELDOUT and one.name in (None, HELDOUT) for one in config.evaluation.evaluators):
        raise PlanError(
            "evaluation.evaluators: studies count the captions of heldout: add {use: heldout}, without another name"
        )


def _decides(config: RunConfig) -> JsonDict:
    """The settings that decide what comes out. Those that are younger than studies on disk are left out unless they
    are set, and two have the names that they have in those, so that the tasks' folders keep theirs."""
    told = plain_settings(config)
    model = as_object(told["model"], "model")
    if model["family"] is None:
        del model["family"]
    if config.model.decode_attention == "auto":
        del model["decode_attention"]
    data = as_object(told["data"], "data")
    if not config.data.holds_out:
        for name in ("heldout", "heldout_share", "heldout_seed"):
            del data[name]
    if config.data.max_samples is None:
        del data["max_samples"]
    # How samples are read decides nothing; what was the default once is in the names.
    data["threads"], data["prefetch"] = 2, 8
    rollout = as_object(told["rollout"], "rollout")
    rollout["chunk"] = rollout.pop("decode_steps_per_call")
    for name in ("ahead", "short_groups", "short_length", "single_groups", "offload"):
        if not rollout[name]:
            del rollout[name]
    # How long a server is waited for decides nothing, nor whether it sleeps outside of its turn.
    vllm = as_object(rollout["vllm"], "rollout.vllm")
    del vllm["outage_timeout_s"], vllm["sleep_mode"]
    del as_object(told["judge"], "judge")["sleep_mode"]
    grpo = as_object(told["grpo"], "grpo")
    grpo["updates_per_step"] = grpo.pop("num_iterations")
    if not config.grpo.advantages.per_component:
        del as_object(grpo["advantages"], "grpo.advantages")["per_component"]
    if config.grpo.objective.surrogate == "clipped":
        del as_object(grpo["objective"], "grpo.objective")["surrogate"]
    if not config.references.questions:
        references = as_object(told["references"], "references")
        del references["questions"], references["questions_per_sample"]
    # How far captions are padded decides no more than rounding does.
    grpo["caption_buckets"] = as_object(told["sft"], "sft")["caption_buckets"] = []
    reward = as_object(told["reward"], "reward")
    for name in ("claim_differences", "balanced"):
        if config.reward.family != name:
            del reward[name]
    beside = ("name", "alarms", "logging", "evaluation", "trackers")
    decides = {section: told[section] for section in told if section not in beside}
    # Of evaluations that of the held-out scenes alone: its captions are what a study counts.
    drawn, usual = (
        [evaluator for evaluator in of.evaluators if evaluator.use == HELDOUT]
        for of in (config.evaluation, EvaluationConfig())
    )
    if drawn != usual:
        decides[HELDOUT] = [plain_settings(evaluator) for evaluator in drawn]
    return decides


def _digest(*told: object) -> str:
    return digest_of(json.dumps(told, sort_keys=True), size=4)
