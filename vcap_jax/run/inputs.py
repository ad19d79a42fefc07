"""Looks at what a command is given beside its settings: files, folders, a reward family.

This comes before any work and before there is a run folder. So a mistake costs one line, and leaves
nothing to remove.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

from vcap_jax.configuration import ConfigError
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.folders import ending, left_out, media_files
from vcap_jax.data.holding_out import check_apart
from vcap_jax.data.jsonl import require_file
from vcap_jax.data.manifest import Sample, missing_files
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.config import BENCHMARKS, HELDOUT, JUDGED
from vcap_jax.evals.protocol import EvaluatorTools
from vcap_jax.evals.registry import load_evaluators, made_evaluators
from vcap_jax.models.lora_files import CONFIG_FILE
from vcap_jax.models.registry import family_at
from vcap_jax.models.weights import INDEX_FILE, SINGLE_FILE
from vcap_jax.report.best_checkpoint import AskedStep
from vcap_jax.report.trackers.config import check_trackers
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.family import RewardFamily
from vcap_jax.reward.one_question import load_question
from vcap_jax.reward.questions import read_questions
from vcap_jax.reward.templates import load_instruction
from vcap_jax.reward.vqa import load_vqa_template
from vcap_jax.run.checkpoint_source import check_start, lineage, runs_in
from vcap_jax.run.config import RunConfig
from vcap_jax.run.judge import reward_family
from vcap_jax.run.model_loading import PARAMS_FOLDER
from vcap_jax.run.setup import heldout_samples, manifest_samples
from vcap_jax.sft.targets import caption_pool
from vcap_jax.system.errors import ProblemsError, VCapError, problems_of
from vcap_jax.system.files import where_sought

Work = Literal["training", "supervised", "distillation", "captions", "scores"]
"""What the inputs are for: launch/train.py and self_improve.py, sft.py, distill.py, references.py, score.py."""

_HUB = re.compile(r"(?:https?://(?:www\.)?huggingface\.co/)?([\w.-]+/[\w.-]+)(?:/(?:tree|blob)/.*)?/?")


class InputError(ProblemsError):
    """Several inputs that cannot be used; the message lists all."""


def check_inputs(config: RunConfig, work: Work = "training", *, policy: bool = True) -> list[str]:
    """What a user should know about the inputs that ``work`` will read, a line each.

    policy: whether ``model.path`` is among them.
    Raises InputError for several problems, or the one there is: of the checkpoint, the manifest, the references or
    captions, the reward family and its files, the evaluators, and data that do not fill a step.
    """
    problems: list[Exception] = []
    notes: list[str] = []
    checks = _Checks(config, notes)

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except (VCapError, FileNotFoundError) as error:
            problems.append(error)

    with noted():
        checks.unheard(work)
    if policy:
        with noted():
            check_policy(config)
    # Of evaluators: only reinforcement learning gives them its own.
    judge = config.judge if work == "training" else None
    if work in ("training", "distillation", "scores") or (work == "supervised" and config.data.holds_out):
        with noted():
            if not checks.reward().asks_judge(config.reward):
                judge = None
    if work not in ("captions", "scores"):
        with noted():
            named = load_evaluators(config.evaluation, config.modality)
            checks.keep_best(list(named))
            checks.benchmarks(judge)
            if config.evaluation.other_judge is not None and not config.data.holds_out:
                raise ConfigError(
                    "evaluation.other_judge scores captions of held-out samples, and none are held out: set "
                    "data.heldout or data.heldout_share, or leave out evaluation.other_judge"
                )
        with noted():
            check_trackers(config.trackers)
    if work in ("training", "distillation", "captions"):
        with noted():
            checks.drawn()
    with noted():
        samples = checks.manifest()
        if work not in ("captions", "scores"):
            checks.heldout(samples)
        count = config.world.train_scenes if samples is None else len(samples)
        if work in ("training", "distillation"):
            count = checks.references(samples, count)
            checks.questions(samples)
        if work == "training":
            config.total_steps(count)
        elif work == "distillation":
            config.sft.total_steps(count)
        elif work == "supervised":
            config.sft.total_steps(checks.captions(samples, count))
    if len(problems) > 1:
        raise InputError(*(line for error in problems for line in problems_of(error)))
    if problems:
        raise problems[0]
    return notes


def check_sources(config: RunConfig, work: Literal["training", "supervised"] = "training") -> None:
    """Raises ManifestError unless the files of samples, and of what they are compared with or taught, are where the
    settings say. A run that is resumed looked into them when it began, and reads them again when its judge answers."""
    data, reward = config.data, config.reward
    sources = [(data.manifest, "manifest"), (data.heldout, "manifest")]
    if work == "supervised":
        sources.append((config.sft.captions, "pool of captions"))
    if work == "training" or data.holds_out:
        if reward_family(config).uses_reference(reward):
            sources.append((data.references, "reference pool"))
        if reward.family == "vqa":
            sources.append((reward.vqa.questions, "file of questions"))
    for path, what in sources:
        if path is not None and not (what == "manifest" and Path(path).is_dir()):
            require_file(Path(path), what)


def check_policy(config: RunConfig) -> None:
    """Raises ConfigError and the like unless a run can start from ``model.path``, with ``model.lora``."""
    check_checkpoint(config.model.path, config.model.step)
    family_at(lineage(config.model.path, config.model.step).origin, config.model.family)
    check_start(config)
    lora = config.model.lora
    if lora is not None and lora.adapter is not None and not (Path(lora.adapter) / CONFIG_FILE).is_file():
        raise ConfigError(
            f"model.lora.adapter {lora.adapter} has no {CONFIG_FILE}{where_sought(lora.adapter)}: give a folder in "
            "PEFT's format"
        )


def check_checkpoint(path: str, step: AskedStep = None, *, key: str = "model.path") -> None:
    """Raises ConfigError unless ``path`` holds a policy: a checkpoint folder with its weights, or a run whose line
    begins with one.

    key: the setting or option that names it.
    """
    folder = lineage(path, step).origin
    if not (folder / "config.json").is_file():
        raise ConfigError(_no_checkpoint(path, folder, key))
    if (folder / PARAMS_FOLDER).is_dir() or (folder / SINGLE_FILE).is_file():
        return
    index = folder / INDEX_FILE
    if not index.is_file():
        raise ConfigError(f"{key} {path} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}, nor Orbax's")
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{key} {path}: {INDEX_FILE} cannot be read ({error}); download it again"
        ) from error
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"{key} {path} lacks {len(missing)} of its {len(shards)} files of weights, the first {missing[0]}: "
            "download the rest"
        )


def _no_checkpoint(path: str, folder: Path, key: str) -> str:
    if folder.is_dir() and (parts := runs_in(folder)):
        return f"{key} {path} holds runs, name one of them: {', '.join(map(str, parts))}"
    if folder.is_dir():
        return (
            f"{key} {path} is no checkpoint (it has no config.json) and no run with checkpoints: name a folder of a "
            "Hugging Face checkpoint, an Orbax checkpoint, or a run"
        )
    if folder.exists():
        return f"{key} {path} is a file: give the folder of a checkpoint or of a run"
    if found := _HUB.fullmatch(path):
        where = " on this machine" if "://" in path else where_sought(path)
        return (
            f"{key} {path} is no folder{where}. If it is a checkpoint of the Hugging Face hub, download it "
            f"first: hf download {found[1]} --local-dir FOLDER, and give that folder"
        )
    if "://" in path:
        return f"{key} {path} is an address: download the checkpoint first and give its folder"
    return f"{key} {path} does not exist{where_sought(path)}: give the folder of a checkpoint or of a run"


class _Checks:
    """The single checks; each raises what is wrong with its input."""

    def __init__(self, config: RunConfig, notes: list[str]) -> None:
        self._config, self._notes = config, notes

    def unheard(self, work: Work) -> None:
        """Raises ConfigError for settings that ``work`` would not look at. Scoring, which takes a run's as they are,
        has them noted."""
        config = self._config
        if work in ("supervised", "distillation") and config.second_judge is not None:
            raise ConfigError(
                "second_judge scores captions of launch/train.py again, and nobody would ask it here: set "
                "second_judge=null (evaluation.other_judge scores held-out captions)"
            )
        if work == "distillation" and config.sft.captions is not None:
            raise ConfigError(
                f"sft.captions is {config.sft.captions}, and students learn the best captions of their teachers: set "
                "sft.captions=null, or learn those by launch/sft.py"
            )
        if work == "scores":
            others = {
                "second_judge": config.second_judge,
                "evaluation.other_judge": config.evaluation.other_judge,
            }
            if asked := [name for name, judge in others.items() if judge is not None]:
                self._notes.append(f"captions are scored by judge alone, not by {' or '.join(asked)}")
            if config.data.on_bad_sample == "refuse":
                self._notes.append(
                    "data.on_bad_sample=refuse is of files that are missing: captions of one that cannot be read are "
                    "counted as not scored"
                )

    def keep_best(self, named: Sequence[str]) -> None:
        """That its evaluator is there and has something to evaluate. named: the evaluators, in their order."""
        best, data = self._config.logging.keep_best, self._config.data
        if best is None:
            return
        if (name := best.partition("/")[0]) not in named:
            raise ConfigError(
                f"logging.keep_best is {best}, and evaluation.evaluators has {', '.join(named) or 'none'}"
            )
        idle = {HELDOUT: data.manifest is not None, JUDGED: not data.holds_out}
        used = zip(named, self._config.evaluation.evaluators, strict=True)
        there = [other for other, entry in used if not idle.get(entry.use)]
        if name not in there:
            raise ConfigError(
                f"logging.keep_best is {best}, and {name} evaluates nothing here, only: {', '.join(there) or 'none'} "
                f"({HELDOUT} has the embedded world's scenes, {JUDGED} those of data.heldout or data.heldout_share)"
            )

    def benchmarks(self, judge: JudgeConfig | None) -> None:
        """That their options and files can be used. They cannot be corrected where the run is resumed."""
        evaluation = self._config.evaluation
        ones = tuple(entry for entry in evaluation.evaluators if entry.use in BENCHMARKS)
        tools = EvaluatorTools(modality=self._config.modality, judge=judge, say=lambda _: None)
        made_evaluators(replace(evaluation, evaluators=ones), tools, tools.say)

    def reward(self) -> type[RewardFamily]:
        reward = self._config.reward
        family = reward_family(self._config)
        for field in fields(reward.instructions):
            if (path := getattr(reward.instructions, field.name)) is not None:
                load_instruction(field.name, path)  # type: ignore[arg-type]  # the fields are its names
        if reward.family == "vqa":
            load_vqa_template(reward.vqa.instruction)
        elif reward.family == "claim_differences":
            load_question(reward.family, reward.claim_differences.instruction, most=1)
        elif reward.family == "balanced":
            load_question(reward.family, reward.balanced.instruction, most=1)
        return family

    def drawn(self) -> None:
        """That references of a sample, where a captioner writes them, are not all the same."""
        asked, rollout = self._config.references, self._config.rollout
        if asked.per_sample > 1 and (asked.sampling or rollout.sampling).temperature == 0:
            raise ConfigError(
                f"references.per_sample is {asked.per_sample}, and references drawn at temperature 0 "
                "(references.sampling, or rollout.sampling where that is null) would all be the same: set it to 1, or "
                "references.sampling.temperature above 0"
            )

    def manifest(self) -> list[Sample] | None:
        """The samples of the run's modality whose files are there; None for the embedded world."""
        config = self._config
        if config.data.manifest is None:
            if config.data.max_samples is not None:
                raise ConfigError(
                    f"data.max_samples is {config.data.max_samples}, of data.manifest, and there is none: the embedded "
                    "world renders as many scenes as world.train_scenes says"
                )
            return None
        samples = manifest_samples(config, lambda _: None)  # the run says what is left out
        self._passed_over(config.data.manifest)
        ignored = sorted({key for sample in samples for key in sample.extra})
        if ignored:
            self._notes.append(f"{config.data.manifest}: ignored keys: {', '.join(ignored)}")
        gone = self._gone(samples, "samples", "be skipped")
        return [sample for sample in samples if sample.id not in gone]

    def heldout(self, samples: Sequence[Sample] | None) -> None:
        """That what is held out can be read, and is not trained on."""
        held = heldout_samples(self._config)
        if self._config.data.heldout is not None:
            self._passed_over(self._config.data.heldout)
        check_apart(samples or (), held)
        self._gone(held, "held-out samples", "count as failures")

    def _passed_over(self, source: str) -> None:
        """Notes what a folder in place of a manifest holds beside pictures and clips."""
        folder = Path(source)
        if not folder.is_dir():
            return
        if told := left_out(Counter(ending(file) for file, seen in media_files(folder) if not seen)):
            self._notes.append(f"{source}: {told}")

    def _gone(self, samples: Sequence[Sample], what: str, will: str) -> set[str]:
        """The samples with files that are not there, which is noted. Raises ManifestError where they are refused, or
        none is left."""
        missing = missing_files(samples)
        if not missing:
            return set()
        sample, file = missing[0]
        if self._config.data.on_bad_sample == "refuse" or len(missing) == len(samples):
            raise ManifestError(
                f"{sample.origin}: {file} does not exist, as files of {len(missing)} of {len(samples)} {what}: "
                "correct their paths, which are relative to the manifest's folder, or drop the rows"
            )
        self._notes.append(
            f"{len(missing)} of {len(samples)} {what} have files that do not exist and will {will}, the first: "
            f"{sample.origin}: {file}"
        )
        return {sample.id for sample, _ in missing}

    def references(self, samples: Sequence[Sample] | None, count: int) -> int:
        """How many of the ``count`` samples can be trained on as far as references are concerned."""
        config = self._config
        path = config.data.references
        if path is None or not reward_family(config).uses_reference(config.reward):
            return count
        return self._in_pool(ReferencePool.read(path), path, samples, count)

    def captions(self, samples: Sequence[Sample] | None, count: int) -> int:
        """How many of the ``count`` samples have captions to learn."""
        if samples is None and self._config.sft.captions is None:
            samples = []  # scenes bring none
        pool, source = caption_pool(self._config.sft.captions, samples or ())
        return self._in_pool(pool, source, samples, count)

    def _in_pool(self, pool: ReferencePool, source: str, samples: Sequence[Sample] | None, count: int) -> int:
        if samples is None:
            self._of_these_scenes(pool, source)
            return count
        found = sum(sample.id in pool for sample in samples)
        if not found:
            raise ManifestError(
                f"{source} has nothing for any of the {len(samples)} samples: its first id is "
                f'"{pool.entries()[0].id}", the manifest\'s "{samples[0].id}"'
            )
        return found

    def _of_these_scenes(self, pool: ReferencePool, source: str) -> None:
        """The embedded world's scenes have the same ids whatever they are of."""
        if pool.header is None:
            return
        config, settings = self._config, pool.header.provenance.settings
        wanted = (config.modality, config.world.seed)
        there = (settings.get("modality", config.modality), settings.get("world_seed", 0))
        if there != wanted:
            raise ManifestError(
                f"{source} was written for {there[0]}s of world.seed {there[1]}, and the scenes here are {wanted[0]}s "
                f"of world.seed {wanted[1]}, which have the same ids: name a pool of these, or set modality and "
                "world.seed"
            )

    def questions(self, samples: Sequence[Sample] | None) -> None:
        path = self._config.reward.vqa.questions
        if self._config.reward.family != "vqa" or path is None:
            return
        asked = read_questions(path)
        if samples is not None and not any(sample.id in asked for sample in samples):
            raise ManifestError(
                f"{path} (reward.vqa.questions) asks nothing about any of the {len(samples)} samples"
            )
