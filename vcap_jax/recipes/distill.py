"""Best-of-N distillation: students of the base that imitate the best of N captions of a teacher.

    for each teacher:  candidates -> scores -> best -> student (supervised, from the base) -> held-out captions

Teachers are the base itself (self-distillation) and any checkpoints, such as the rounds of self-improvement (paper,
Section "Best-of-N Distillation", N = 8). All students start from ``model.path`` and differ in their
targets alone. All candidates are scored with the same references. Every arrow leaves a file or a
folder, and is skipped when that is there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from vcap_jax.captioning.parts import check_plan
from vcap_jax.configuration import ConfigError
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.config import HELDOUT, JUDGED
from vcap_jax.parallel.fingerprint import fingerprint
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.recipes.best_of_n import choose_best, score_candidates
from vcap_jax.recipes.sft import run_sft, training_references
from vcap_jax.references import reference_pool, write_shared_pool
from vcap_jax.references.by_policy import policy_writer
from vcap_jax.references.command import pool_shares
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.summary import FactRow, fact_row, shares_table, write_summary
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.run.checkpoint_source import CheckpointSource, checkpoint_source, starting_source
from vcap_jax.run.checks import check_sft_run
from vcap_jax.run.config import RunConfig
from vcap_jax.run.evaluation import Evaluations
from vcap_jax.run.folders import open_subrun
from vcap_jax.run.judge import answering_judge, reward_family, reward_session, reward_settings
from vcap_jax.run.judge_domain import check_judge_domain
from vcap_jax.run.manifest_note import remember_samples
from vcap_jax.run.setup import Prepared, drawing, prepare
from vcap_jax.run.turns import all_asleep
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import JsonDict, as_object, read_json_object

_SEED = 8_000_009
"""Added to the run's seed: candidates are not drawn with the numbers of rollouts or references."""
_NAME = re.compile(r"[\w-][\w.-]*")
_FOLDERS = ("data", "references")
_ENDINGS = (".json", ".yaml", ".txt", ".log", ".sqlite")
"""What lies beside the teachers' folders, and may come to lie there."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """name: of its folder and row. source: a checkpoint (``load_captioner``); None is the base itself."""

    name: str
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Undertaking:
    """What every teacher's stages are part of; see ``distill``. judge: which answers, if there is anything to judge."""

    config: RunConfig
    folder: RunFolder
    candidates: int
    judge: JudgeConfig
    say: Callable[[str], None]
    processes: Processes

    def prepare(self, captioner: str | None = None) -> Prepared:
        return prepare(self.config, self.folder, self.say, captioner=captioner, processes=self.processes)


def check_distillation(
    config: RunConfig, names: Sequence[str], candidates: int, processes: Processes
) -> None:
    """Raises ConfigError for what ``distill`` would refuse; for before there is a folder. names: of the teachers."""
    if len(set(names)) < len(names):
        raise ConfigError(f"two teachers of one name: {', '.join(names)}; give each its own")
    for name in names:
        if not _NAME.fullmatch(name) or name in _FOLDERS or Path(name).suffix in _ENDINGS:
            raise ConfigError(
                f"a teacher cannot be called {name!r}: its folder has the name, so give one of letters, digits, "
                f"'-', '_' and '.' that is neither {' nor '.join(_FOLDERS)}, and no file's ({', '.join(_ENDINGS)})"
            )
    if candidates > 1 and config.rollout.sampling.temperature == 0:
        raise ConfigError(
            f"{candidates} candidates of each sample at temperature 0 would all be the same: set "
            "rollout.sampling.temperature above 0"
        )
    check_sft_run(config, processes)


def distill(
    config: RunConfig,
    folder: RunFolder,
    teachers: Sequence[Teacher],
    *,
    candidates: int = 8,
    say: Callable[[str], None] = print,
    processes: Processes = ALONE,
) -> Mapping[str, object]:
    """Distils every teacher, or goes on with it, in ``folder``; returns the summary.

    candidates: N, captions drawn per sample. processes: those that share the work, each calling this with a folder they
    all see: samples are captioned and scored in shares, students trained together.
    Raises ConfigError for two teachers of one name or one that no folder can have here, for candidates that would all
    be the same, for a teacher that is complete with other weights or another N, and for settings that these processes
    cannot train a student with; RunFolderError if the folder is that of another kind. Raises what writing, scoring and
    training raise.
    """
    names = [teacher.name for teacher in teachers]
    check_distillation(config, names, candidates, processes)
    folder.claim("distillation")

    def anything_to_judge() -> bool:
        stages = [folder.root / name for name in names]
        return not all(
            (stage / "teacher.json").exists() or (stage / "scores.jsonl").exists() for stage in stages
        )

    with ExitStack() as stack:
        all_asleep(config, say)
        judge = config.judge
        if processes.on_process_0("anything to judge", anything_to_judge):
            judge = stack.enter_context(answering_judge(config, folder, say, processes))
        whole = _Undertaking(
            config=config, folder=folder, candidates=candidates, judge=judge, say=say, processes=processes
        )
        rows, stages = _stages(whole, teachers)
    summary = {"candidates": candidates, "stages": stages, "rows": rows}
    if not processes.first:
        return summary
    write_summary(folder.summary, summary)
    for name, told in stages.items():
        chosen = as_object(told["selection"], f"selection of {name}")
        say(
            f"{name}: best of {candidates} on {chosen['samples']} samples, reward {chosen['best']:.3f} "
            f"(all candidates {chosen['mean']:.3f}); {chosen['ties']} ties, {chosen['failed']} candidates and "
            f"{chosen['without']} samples without a score"
        )
    if rows:
        say(shares_table(rows))
    return summary


def _stages(
    whole: _Undertaking, teachers: Sequence[Teacher]
) -> tuple[dict[str, FactRow], dict[str, JsonDict]]:
    """Every teacher's stages, one after the other: rows of held-out facts, and what is told of each teacher."""
    rows: dict[str, FactRow] = {}
    stages: dict[str, JsonDict] = {}
    config, folder, say, processes = whole.config, whole.folder, whole.say, whole.processes
    for teacher in teachers:
        stage = folder.root / teacher.name
        say(f"-- teacher {teacher.name}: {teacher.source or config.model.path}")
        best = stage / "best.jsonl"
        if not processes.on_process_0(f"{teacher.name} complete", (stage / "teacher.json").exists):
            _candidates_to_best(whole, teacher, stage)
        else:
            _check_same_teacher(whole, teacher, stage)
        told = read_json_object(stage / "teacher.json")
        student = dataclasses.replace(
            config,
            name=f"{config.name}-from-{teacher.name}",
            sft=dataclasses.replace(config.sft, captions=str(best)),
        )
        run = open_subrun(student, folder, stage / "student", processes)
        if processes.on_process_0(f"student of {teacher.name} complete", run.summary.exists):
            say(f"{run.root} is complete")
        else:
            run_sft(student, run, say=say, processes=processes)
            processes.barrier(f"student of {teacher.name} done")
        learned = read_json_object(run.summary)
        stages[teacher.name] = told | {"student": learned}
        if "heldout" in told:
            rows.setdefault("base", as_record(FactRow, learned["start"], f"{run.summary}: start"))
            if teacher.source is not None:
                rows[teacher.name] = as_record(FactRow, told["heldout"], f"{stage}: heldout")
            trained = as_record(FactRow, learned["trained"], f"{run.summary}: trained")
            rows[f"distilled from {teacher.name}"] = trained
    return rows, stages


def _source(config: RunConfig, teacher: Teacher) -> CheckpointSource:
    return starting_source(config) if teacher.source is None else checkpoint_source(teacher.source)


def _check_same_teacher(whole: _Undertaking, teacher: Teacher, stage: Path) -> None:
    """Raises ConfigError unless what is complete in ``stage`` is of this teacher and as many candidates."""
    header = ReferencePool.read(stage / "best.jsonl").header
    assert header is not None
    begun = header.provenance
    again = f"remove {stage} to do it anew, or give the teacher another name"
    drawn, asked = begun.settings["per_sample"], whole.candidates
    if drawn != asked:
        raise ConfigError(
            f"teacher {teacher.name} is complete with {drawn} candidates per sample, now it is {asked}: "
            f"give --candidates {drawn}, or {again}"
        )
    before = read_json_object(stage / "teacher.json").get("teacher")
    now = str(_source(whole.config, teacher))
    if now == before:
        return
    # A folder may have moved, or be named from elsewhere: the weights tell.
    policy = whole.prepare(teacher.source).ctx.policy
    if fingerprint(policy.trainable, policy.frozen) != begun.weights:
        raise ConfigError(
            f"teacher {teacher.name} is complete by {before}, and {now} has other weights: name that one, "
            f"or {again}"
        )


def _candidates_to_best(whole: _Undertaking, teacher: Teacher, stage: Path) -> None:
    """Everything that needs the teacher; leaves candidates.jsonl, scores.jsonl, best.jsonl and teacher.json."""
    config, candidates, processes = whole.config, whole.candidates, whole.processes
    family = reward_family(config)
    references: ReferencePool | None = None
    base = whole.prepare()
    samples = base.samples
    remember_samples(whole.folder, config.data.manifest, samples, base.heldout)  # the same for all teachers
    if family.asks_judge(config.reward):
        check_judge_domain(base.ctx, samples)
    if family.uses_reference(config.reward):
        if config.data.holds_out:
            training_references(config, samples)  # the students' evaluations need them: told before any work
        # By the base or as configured, once for all teachers.
        with drawing(base) as ready:
            references = reference_pool(ready.ctx, samples)
        samples = references.covered(samples, whole.say)
    source = _source(config, teacher)
    taught = base
    if teacher.source is not None:
        taught = whole.prepare(teacher.source)
    told: dict[str, object] = {"teacher": str(source)}
    with drawing(taught) as ready:
        writer = policy_writer(
            ready.ctx,
            samples,
            name=teacher.name,
            seed=config.seed + _SEED,
            rollout=dataclasses.replace(config.rollout, group_size=candidates),
            ended_only=True,
        )
        written = writer.provenance
        plan: JsonDict = {
            "writer": teacher.name,
            "weights": written.weights,
            "candidates": candidates,
            "references": None if references is None else references.digest(),
        }

        # Files in it are taken for what they are by their names.
        check = partial(check_plan, stage, plan, what="stage of distillation", error=ConfigError)
        processes.on_process_0(f"plan of {teacher.name}", check)
        drawn = write_shared_pool(ready.ctx, stage / "candidates.jsonl", writer, samples)
        told["weights"] = written.weights
        del writer  # and with it this process's copy of the teacher
        # No checkpoint of a teacher is kept as its best, and only students have held-out samples scored.
        others = tuple(one for one in config.evaluation.evaluators if one.use != JUDGED)
        kept = dataclasses.replace(
            config,
            logging=dataclasses.replace(config.logging, keep_best=None),
            evaluation=dataclasses.replace(config.evaluation, evaluators=others),
        )
        here = dataclasses.replace(ready.ctx, config=kept, folder=RunFolder(stage))
        evaluations = Evaluations(here, ready.world)
        measured = evaluations.of_policy("teacher", ready.ctx.policy.trainable)
    if HELDOUT in measured:
        told["heldout"] = fact_row(measured[HELDOUT].metrics)
    told["evaluations"] = evaluations.summary()
    scored = stage / "scores.jsonl"
    if not processes.on_process_0(f"scores of {teacher.name}", scored.exists):
        ctx = dataclasses.replace(taught.ctx, folder=RunFolder(stage))
        reward = reward_settings(ctx, references, taught.world)
        with reward_session(ctx, reward, references, whole.judge) as session, session.turn():
            there = [sample for sample in samples if sample.id in drawn]
            score_candidates(scored, ctx, drawn, there, session, references)

    def choose() -> None:
        best, selection = choose_best(scored, drawn)
        provenance = dataclasses.replace(
            written,
            writer=f"best of {candidates} by {teacher.name}",
            settings=dict(written.settings) | {"reward": asdict(config.reward)},
        )
        best.write(stage / "best.jsonl", provenance, created=datetime.now(UTC).isoformat(timespec="seconds"))
        told["selection"] = asdict(selection)
        told["left_out"] = len(base.samples) - selection.samples
        if taught.world is not None:
            told["candidates"] = pool_shares(drawn, taught.world)
            told["best"] = pool_shares(best, taught.world)
        write_summary(stage / "teacher.json", told)

    processes.on_process_0(f"best of {teacher.name}", choose)
