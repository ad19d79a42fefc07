"""Best-of-N: candidates of a teacher scored by the run's reward, and the best of each sample kept.

The highest reward wins, among equals the candidate that was drawn first. So nothing but the reward
decides, neither length nor style. A candidate whose judgement failed cannot win. One that the token
budget cut off is no candidate. A sample without a scored candidate is left out. Candidates and samples
that have no score are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.data.errors import NoUsableSamplesError
from vcap_jax.data.examples import Example
from vcap_jax.data.jsonl import last_row, read_objects
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import GroupIterator, PipelineSettings
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.data.storage import raise_if_gone
from vcap_jax.report.progress import PoolProgress
from vcap_jax.reward.aggregation import comparable
from vcap_jax.reward.group import GroupForReward, GroupScores, compared_with
from vcap_jax.reward.segments import Segment
from vcap_jax.reward.session import RewardSession
from vcap_jax.run.context import RunContext
from vcap_jax.system.files import naming, replace_file
from vcap_jax.system.in_work import in_order
from vcap_jax.system.json_values import as_list, as_number, as_text, as_whole
from vcap_jax.system.shutdown import finishing, raise_if_requested, requested

_IN_FLIGHT = 64
"""Samples whose candidates are at the judge at once at least."""
_HELD = 4
"""Times as many may be scored and wait for one before them: what waits is lost if the process is killed."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a choice came to.

    samples: with a best candidate; without: left out for want of a score. candidates: scored ones; failed: without
    a score. ties: samples in which others earned as much. mean, best: reward of all scored candidates and of the
    chosen ones.
    """

    samples: int
    without: int
    candidates: int
    failed: int
    ties: int
    mean: float
    best: float


def best_candidate(rewards: Sequence[float | None]) -> int | None:
    """Index of the highest reward, the first among equals; None if none has a score."""
    scored = {index: comparable(reward) for index, reward in enumerate(rewards) if reward is not None}
    return max(scored, key=lambda index: (scored[index], -index), default=None)


def score_candidates(
    path: Path,
    ctx: RunContext,
    candidates: ReferencePool,
    samples: Sequence[Sample],
    session: RewardSession,
    references: ReferencePool | None,
) -> None:
    """Rewards of every candidate, a line ``{"place", "id", "rewards"}`` per sample, null for a failure.

    The file appears when it is complete. samples: those of the candidates. references: what the reward compares with,
    chosen as training's first step does; None if it needs none. Each of the context's processes asks about a share of
    the samples. An attempt that was interrupted is resumed if it had as many processes. Raises MediaError for a sample
    that cannot be read where ``data.on_bad_sample`` refuses it.
    """
    processes, data, progress = ctx.processes, ctx.config.data, PoolProgress(ctx.say, seconds=10)
    if processes.on_process_0(f"{path.name} complete", path.exists):
        return
    mine = processes.share(len(samples))
    parts = [_part(path, index, processes.count) for index in range(processes.count)]
    index_of = {sample.id: index for index, sample in enumerate(samples)}
    settings = PipelineSettings(
        batch_groups=1,
        shuffle=False,
        epochs=1,
        threads=data.reading_threads,
        prefetch=data.prefetch or 2 * data.reading_threads,
        on_bad_sample=data.on_bad_sample,
    )

    def ask(example: Example) -> Future[GroupScores]:
        identity = example.sample.id
        reference, segments = None, tuple[Segment, ...]()
        if references is not None:
            reference, segments = compared_with(references, identity, seed=ctx.config.seed, step=0)
        group = GroupForReward(
            sample_id=identity,
            step=0,
            index=index_of[identity],
            media=example.media,
            reference=reference,
            captions=candidates[identity].references,
            references=() if references is None else references[identity].references,
            reference_segments=segments,
        )
        return session.submit(group)

    def score_own() -> None:
        part = parts[processes.index]
        part.parent.mkdir(parents=True, exist_ok=True)
        last = last_row(part)
        begin = mine.start if last is None else as_whole(last["place"], f"{part}: place") + 1
        if mine.start < begin < mine.stop:
            # What cannot be read now would have no score for ever.
            raise_if_gone(samples[begin].files, samples[begin - 1].files[0])
        with part.open("a", encoding="utf-8") as file, finishing("each group at the judge"):
            scored = begin - mine.start
            rest = samples[begin : mine.stop]
            # Enough to fill the judge's places, however few candidates samples have.
            each = sum(len(candidates[sample.id].references) for sample in rest) // max(1, len(rest))
            at_once = max(_IN_FLIGHT, session.places // max(1, each) + 1)
            for sample, scores in _asked(rest, ctx, settings, ask, at_once):
                index = index_of[sample.id]
                row = {"place": index, "id": sample.id, "rewards": scores.rewards}
                with naming(part):
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                progress("scored", index + 1 - mine.start, len(mine), index + 1 - begin)
                scored = index + 1 - mine.start
            raise_if_requested(f"stopped with {scored} of {len(mine)} samples scored")

    def join() -> None:
        replace_file(path, b"".join(part.read_bytes() for part in parts))
        for part in parts:
            part.unlink()

    processes.together("scores", score_own)
    processes.on_process_0("scores joined", join)


def _part(path: Path, index: int, count: int) -> Path:
    share = "" if count == 1 else f"-{index}-of-{count}"
    return path.with_name(f"{path.name}.partial{share}")


def _asked(
    samples: Sequence[Sample],
    ctx: RunContext,
    settings: PipelineSettings,
    ask: Callable[[Example], Future[GroupScores]],
    at_once: int,
) -> Iterator[tuple[Sample, GroupScores]]:
    """In the order of the samples, many groups at the judge at once; one that is slow keeps no other waiting."""
    if not samples:
        return
    asked: list[Sample] = []

    def begun(groups: GroupIterator[Example]) -> Iterator[Future[GroupScores]]:
        for batch in groups:
            if requested():
                return
            asked.append(batch.examples[0].sample)
            yield ask(batch.examples[0])

    reader = ctx.reader(judged=True)
    with closing(GroupIterator(samples, reader, settings, on_skip=ctx.report_bad_sample)) as groups:
        for number, scores in enumerate(in_order(begun(groups), at_once, held=_HELD * at_once)):
            yield asked[number], scores


def choose_best(scores: Path, candidates: ReferencePool) -> tuple[ReferencePool, Selection]:
    """The best candidate of each sample as a pool, and what the choice came to.

    Raises NoUsableSamplesError if not a single candidate has a score.
    """
    entries, everything, bests = [], [], []
    without = failed = ties = 0
    for number, row in read_objects(scores, "file of scores"):
        where = f"{scores}:{number}"
        given, identity = as_list(row["rewards"], f"{where}: rewards"), as_text(row["id"], f"{where}: id")
        rewards = [None if reward is None else as_number(reward, f"{where}: rewards") for reward in given]
        known = [reward for reward in rewards if reward is not None]
        failed += len(rewards) - len(known)
        everything += known
        best = best_candidate(rewards)
        if best is None:
            without += 1
            continue
        equal = [comparable(reward) for reward in known]
        ties += equal.count(max(equal)) > 1
        bests.append(max(known))
        entries.append(PoolEntry(id=identity, references=(candidates[identity].references[best],)))
    if not entries:
        raise NoUsableSamplesError(
            f"{scores}: not a single candidate has a score, so there is nothing to learn; remove the file to have them "
            "scored again"
        )
    selection = Selection(
        samples=len(entries),
        without=without,
        candidates=len(everything),
        failed=failed,
        ties=ties,
        mean=sum(everything) / len(everything),
        best=sum(bests) / len(bests),
    )
    return ReferencePool(entries), selection
