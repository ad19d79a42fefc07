"""The reward of captions that are there already, whoever wrote them: no policy is loaded, nothing is trained.

What a training run would have given them, by the same family, weights, references, instructions and judge. The folder
holds ``rewards.jsonl`` (a line for each caption), ``rewards.html`` (the lowest and the highest, with their pictures),
``summary.json`` (means over samples with their intervals, failures, who judged), ``config.yaml`` and
``judgements.sqlite``: answers that are in it are not asked for again, and ``launch/restudy.py`` reckons with other
weights. ``summary.json`` is written last: once it is there all of this is of one scoring, of the captions whose digest
it names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vcap_jax.configuration import ConfigError, dump_config
from vcap_jax.data.holding_out import shown_together
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.data.videos import EvenFrames, FrameSampling
from vcap_jax.evals.judged import FAILED, REWARD, evaluation, judged_item
from vcap_jax.evals.protocol import Captions, Item, OwnData
from vcap_jax.evals.scoring import STEP, Scored, scored
from vcap_jax.evals.written_captions import captions_in, of_no_sample
from vcap_jax.recipes.evaluation_request import EvaluationRefused
from vcap_jax.report.intervals import Value
from vcap_jax.report.progress import PoolProgress
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.samples import SampleCandidate
from vcap_jax.report.samples_page import RewardedSample, most_telling, write_rewards_page
from vcap_jax.report.summary import write_summary
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.group import CandidateScore, compared_with
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import forget_candidates
from vcap_jax.run.before_after import shown_frames
from vcap_jax.run.checkpoint_source import configured_processor, lineage
from vcap_jax.run.config import RunConfig
from vcap_jax.run.inputs import check_inputs
from vcap_jax.run.judge import answering_judge, media_for_judge, reward_family
from vcap_jax.run.judge_domain import judge_domain
from vcap_jax.run.judge_record import noted_judge
from vcap_jax.run.observers import shown_candidate
from vcap_jax.run.setup import taken_part
from vcap_jax.system.digests import digest_of
from vcap_jax.system.files import replace_file
from vcap_jax.system.json_values import JsonDict, as_object, read_json_object
from vcap_jax.system.shutdown import requested

REWARDS, PAGE = "rewards.jsonl", "rewards.html"
_PARTIAL = f".{REWARDS}.partial"
_STORE = "judgements.sqlite"
MOST = 100
"""Samples on the page; of more, those with the lowest and the highest rewards."""


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """captions: a file in any form that ``captions_in`` understands. folder: of the results."""

    captions: Path
    folder: Path


def score(config: RunConfig, request: ScoreRequest, *, say: Callable[[str], None]) -> Mapping[str, object]:
    """Scores every caption of the file; returns the summary. Called again, it asks only what has no answer yet. What
    an earlier scoring left, of this file or another one, is replaced; its answers stay.

    Raises what ``check_inputs`` raises, EvaluatorError for captions that are of none of the samples, for rewards that
    would be replaced while they are scored and for the folder of a run, JudgeUnavailable and its kinds, RunFolderError
    for another judge than the folder's, and Stopped if a signal came.
    """
    begin = time.monotonic()
    folder = RunFolder(request.folder)
    if request.captions.resolve() in {(folder.root / name).resolve() for name in (REWARDS, _PARTIAL)}:
        raise EvaluationRefused(
            f"--captions {request.captions} is a file that this scoring replaces: give a copy of it that lies "
            f"elsewhere, of which only what {folder.root} has no answer to is asked, or another --out"
        )
    if folder.begun and not any((folder.root / name).exists() for name in (REWARDS, _PARTIAL)):
        raise EvaluationRefused(
            f"{folder.root} is the folder of a run, whose config.yaml would be replaced: give another --out"
        )
    # Every row may be captioned, those that a run holds out as well.
    config = replace(config, data=replace(config.data, heldout_share=0.0, heldout=None))
    if config.data.manifest is None:
        raise ConfigError(
            "data.manifest is null: name the manifest of the pictures or videos that were captioned"
        )
    for note in check_inputs(config, "scores", policy=False):
        say(note)
    family = reward_family(config)
    file_of_captions = _described(request.captions)
    everything = read_manifest(config.data.manifest)
    of_modality = [sample for sample in everything if sample.modality == config.modality]
    there = captions_in(request.captions, of_modality)
    rows = taken_part(config, of_modality, say)
    placed = _captioned(rows, there, request.captions, config.data.manifest, say)
    _tell_left_out(everything, rows, there, say)
    samples = list(placed.values())
    pool = _references(config, samples) if family.uses_reference(config.reward) else None
    if config.reward.family == "imitation":
        say(
            "reward.family imitation weighs words by how many of the references that are given here have them"
        )
    frames = _frames(config)
    request.folder.mkdir(parents=True, exist_ok=True)
    progress = PoolProgress(say, seconds=10)
    with ExitStack() as stack:
        judge = stack.enter_context(answering_judge(config, folder, say))
        asks = family.asks_judge(config.reward)
        warning = None
        if asks and not config.judge.urls:
            warning = judge_domain(samples, threads=config.data.reading_threads).warning
        if warning is not None:
            say(f"warning: {warning}")
        store = folder.root / _STORE if config.judge.store is None else Path(config.judge.store).absolute()
        session = stack.enter_context(
            RewardSession(
                config.reward,
                replace(judge, store=str(store)),
                seed=config.seed,
                references={} if pool is None else {e.id: e.references for e in pool.entries()},
                say=say,
            )
        )
        session.wait_until_ready()
        partial = _begin(folder, config, file_of_captions, say)
        own = OwnData(
            samples=tuple(samples),
            references=pool,
            session=session,
            media=media_for_judge(config, frames),
            seed=config.seed,
            stop=requested,
            threads=config.data.reading_threads,
        )
        page, of = RewardsPage(own), shown_together(samples)
        captions = lost = 0
        items: list[Item] = []
        with partial.open("w", encoding="utf-8") as file:
            given = [there[sample.id] for sample in samples]
            for one in scored(own, given, kept=True, places=list(placed)):
                for row in _rows(one):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    captions, lost = captions + 1, lost + (row["reward"] is None)
                # Of a million samples only the numbers are held.
                item = judged_item(one, of.get(one.captions.id))
                page.add(one, item)
                items.append(replace(item, captions=(), notes={}))
                progress("scored", len(items), len(samples), len(items))
        partial.replace(folder.root / REWARDS)
        asked = session.statistics()
    found = evaluation(items)
    page.draw(
        folder.root / PAGE,
        title=f"Rewards of {request.captions.name}",
        metrics=found.metrics,
        warning=warning,
    )
    summary: dict[str, object] = {
        "file": file_of_captions,
        "captions": captions,
        "samples": len(samples),
        "not_scored": lost,
        "metrics": {name: value.row() for name, value in found.metrics.items()},
        "family": config.reward.family,
        "weights": asdict(config.reward.weights),
        "judge": noted_judge(folder) if asks else None,
        "requests": asked.requests,
        "prompt_tokens": asked.prompt_tokens,
        "seconds": time.monotonic() - begin,
    }
    write_summary(folder.summary, summary)
    for name, value in found.metrics.items():
        if name != FAILED:
            say(f"{name} {value.value:.4g} ({value.low:.4g} to {value.high:.4g})")
    say(f"{captions} captions of {len(samples)} samples, {lost} not scored; look at: {request.folder / PAGE}")
    return summary


def _captioned(
    rows: Sequence[Sample],
    there: Mapping[str, Captions],
    path: Path,
    manifest: str,
    say: Callable[[str], None],
) -> dict[int, Sample]:
    """The samples that have captions, by their places among the manifest's: one keeps its place where others get
    captions later."""
    samples = {at: s for at, s in enumerate(rows) if s.id in there and there[s.id].failure is None}
    if not there:
        raise EvaluationRefused(f"{path} holds no captions: vcap caption writes such files")
    failures = [there[sample.id] for sample in rows if sample.id in there and not there[sample.id].texts]
    if failures and not samples:
        raise EvaluationRefused(
            f"{path} has no caption of the {rows[0].modality}s of {manifest}: all {len(failures)} entries of them are "
            f"failures, the first, of {failures[0].id!r}: {failures[0].failure}. Where vcap caption wrote them, "
            "--retry-failed tries them again"
        )
    if not samples:
        raise EvaluationRefused(
            f"{path} has captions of none of the {len(rows)} {rows[0].modality}s of {manifest}: its first "
            f"id is {next(iter(there), None)!r}, the manifest's {rows[0].id!r}. Captions that vcap caption made of the "
            f"manifest have its ids"
        )
    if failures or len(samples) < len(rows):
        say(f"captions of {len(samples)} of {len(rows)} {rows[0].modality}s")
    return samples


def _tell_left_out(
    everything: Sequence[Sample],
    rows: Sequence[Sample],
    there: Mapping[str, Captions],
    say: Callable[[str], None],
) -> None:
    """Says whose captions are not scored, and why. everything: the manifest's samples. rows: those that are taken."""
    modality, taken = rows[0].modality, {sample.id for sample in rows}
    left = [name for name in there if name not in taken]
    if not left:
        return
    other = "image" if modality == "video" else "video"
    of_other = [sample for sample in everything if sample.modality == other]
    too_many = [sample for sample in everything if sample.modality == modality and sample.id not in taken]
    for samples, what, why in (
        (of_other, other, f", because modality is {modality}"),
        (too_many, "sample", " (data.max_samples)"),
    ):
        lacking = of_no_sample(left, samples)
        if count := len(left) - len(lacking):
            say(f"left out: captions of {count} {what}{'' if count == 1 else 's'}{why}")
        left = lacking
    if left:
        say(f"left out: captions of {len(left)} ids that the manifest lacks, the first: {left[0]!r}")


def _described(captions: Path) -> JsonDict:
    """What file it is; empty where there is none, which whoever reads it says."""
    if not captions.is_file():
        return {}
    return {"name": captions.name, "digest": digest_of(captions.read_bytes())}


def _begin(folder: RunFolder, config: RunConfig, captions: JsonDict, say: Callable[[str], None]) -> Path:
    """Makes the folder that of a scoring under way; the file that its rows go to.

    Nothing of an earlier scoring stays beside it but answers: one that is ended early must not look like one that is
    complete. Candidates in a store that ``judge.store`` names stay, for they may be others'.
    """
    partial = folder.root / _PARTIAL
    partial.touch()  # first: it says that this is no run
    if folder.summary.exists():
        before = read_json_object(folder.summary).get("file")
        if before is not None and before != captions:
            was = as_object(before, f"{folder.summary}: file")
            say(
                f"{folder.root} holds rewards of other captions ({was.get('name')}, {was.get('digest')}): they are "
                "replaced, and answers that fit are not asked for again"
            )
    for path in (folder.summary, folder.root / PAGE, folder.root / REWARDS):
        path.unlink(missing_ok=True)
    replace_file(folder.config, dump_config(config).encode())
    if (folder.root / _STORE).exists():
        forget_candidates(folder.root / _STORE, step=STEP)
    return partial


def _references(config: RunConfig, samples: Sequence[Sample]) -> ReferencePool:
    """What captions are compared with: of ``data.references``, else the manifest's own. Raises FamilyError for none."""
    given = {s.id: PoolEntry(id=s.id, references=s.references) for s in samples if s.references}
    if config.data.references is not None:
        pool = ReferencePool.read(config.data.references)
        given |= {s.id: pool[s.id] for s in samples if s.id in pool}
    if missing := [sample.id for sample in samples if sample.id not in given]:
        raise FamilyError(
            f"reward.family {config.reward.family} compares with references, and {len(missing)} of {len(samples)} "
            f"samples have none, the first: {missing[0]!r}. Write some (launch/references.py --out POOL) and give "
            "data.references=POOL, or set reward.use_reference=false"
        )
    return ReferencePool(given.values())


def _frames(config: RunConfig) -> FrameSampling:
    """Which frames of a video the judge sees: those that the policy of ``model.path`` would."""
    if config.modality == "image":
        return EvenFrames()
    return configured_processor(config, lineage(config.model.path, config.model.step).origin).video


def _rows(one: Scored) -> Iterator[Mapping[str, object]]:
    """A line for each caption of a sample."""
    texts = one.captions.texts
    candidates: Sequence[CandidateScore | None] = [None] * len(texts)
    if one.scores is not None:
        candidates = one.scores.candidates
    for place, (text, candidate) in enumerate(zip(texts, candidates, strict=True)):
        row: dict[str, object] = {"id": one.captions.id, "place": place, "caption": text, "reward": None}
        if candidate is None:
            yield row | {"failure": one.unasked}
            continue
        row |= {"reward": candidate.reward, "components": dict(candidate.components)}
        if candidate.failure is not None:
            row["failure"] = str(candidate.failure)
        yield row | {"notes": {heading: note for heading, note in candidate.notes.items() if note}}


class RewardsPage:
    """Takes scored samples as they come and holds those that the page will show, whatever their number."""

    def __init__(self, own: OwnData, most: int = MOST) -> None:
        self._own, self._most = own, most
        self._held: dict[str, tuple[Scored, float | None]] = {}
        self._count = 0

    def add(self, one: Scored, item: Item) -> None:
        """item: ``judged_item(one)``."""
        self._count += 1
        self._held[item.id] = one, item.values.get(REWARD)
        if len(self._held) > 4 * self._most:
            self._held = self._telling()

    def draw(self, path: Path, *, title: str, metrics: Mapping[str, Value], warning: str | None) -> None:
        """metrics: over all samples. warning: a line above everything."""
        samples = {sample.id: sample for sample in self._own.samples}
        shown = []
        for name, (one, reward) in self._telling().items():
            reference = None
            if self._own.references is not None:
                reference, _ = compared_with(self._own.references, name, seed=self._own.seed, step=0)
            shown.append(
                RewardedSample(
                    id=name,
                    reward=reward,
                    candidates=_candidates(one),
                    frames=shown_frames(self._own, samples[name]),
                    reference=reference,
                )
            )
        write_rewards_page(shown, path, title=title, metrics=metrics, of=self._count, warning=warning)

    def _telling(self) -> dict[str, tuple[Scored, float | None]]:
        rewards = {name: reward for name, (_, reward) in self._held.items()}
        return {name: self._held[name] for name in most_telling(rewards, self._most)}


def _candidates(one: Scored) -> tuple[SampleCandidate, ...]:
    texts, scores = one.captions.texts, one.scores
    if scores is None:
        return tuple(SampleCandidate(caption=text, reward=None, failure=one.unasked) for text in texts)
    return tuple(shown_candidate(scores, place, text) for place, text in enumerate(texts))
