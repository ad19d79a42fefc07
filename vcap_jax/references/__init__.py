"""Where a run's references come from: a pool, the manifest, or the policy before training (the paper's pool for e1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from vcap_jax.captioning.parts import Shard
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.references.by_policy import configured_writer
from vcap_jax.references.note import POOL_NOTE, read_note, write_note
from vcap_jax.references.writing import (
    PoolError,
    ReferenceWriter,
    earlier_pools,
    existing_pool,
    join_parts,
    write_parts,
)
from vcap_jax.report.progress import PoolProgress
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.checkpoint_source import named_source, starting_source
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.manifest_note import same_heldout

HELDOUT_NOTE = "heldout_references.json"
"""As ``POOL_NOTE``, of what captions of held-out samples are compared with."""


def reference_pool(ctx: RunContext, samples: Sequence[Sample]) -> ReferencePool:
    """The pool that the configuration names, else the manifest's own references, else one by the policy.

    Which one it is, and its digest, is kept in the run folder; a resumed run that would get another is refused.
    """
    if ctx.config.data.references is not None:
        pool = ReferencePool.read(ctx.config.data.references)
        remember_pool(ctx, pool, ctx.config.data.references)
        return pool
    own = ReferencePool.of_samples(samples)
    missing = own.missing(samples)
    if not missing:
        remember_pool(ctx, own, "the manifest")
        return own
    if len(own):
        ctx.say(
            f"{len(missing)} of {len(samples)} samples bring no reference: the starting policy writes them"
        )
    path = ctx.folder.own_references
    written = references_by_policy(ctx, path, [sample for sample in samples if sample.id not in own])
    pool = _both(own, written)
    remember_pool(ctx, pool, str(path))
    return pool


def known_pool(config: RunConfig, folder: RunFolder, samples: Sequence[Sample]) -> ReferencePool:
    """What ``reference_pool`` gave the run in ``folder``, which is complete.

    config, samples: of that run. Raises PoolError where it is another one by now, ManifestError where it is gone.
    """
    pool, source = ReferencePool.of_samples(samples), "the manifest"
    if config.data.references is not None:
        source = config.data.references
        pool = ReferencePool.read(source)
    elif pool.missing(samples):
        source = str(folder.own_references)
        pool = _both(pool, ReferencePool.read(source))
    _check_same(folder, pool, source, POOL_NOTE)
    return pool


def _both(own: ReferencePool, written: ReferencePool) -> ReferencePool:
    """The manifest's own references, and behind them what was written for the other samples."""
    return ReferencePool([*own.entries(), *written.entries()], written.header)


def heldout_pool(ctx: RunContext, samples: Sequence[Sample]) -> ReferencePool:
    """What captions of held-out samples are compared with: as ``reference_pool``, which never sees these samples.

    Where ``data.references`` has nothing for a sample, its own row counts. References that the run folder holds go
    before both: an earlier start has written them, or ``hand_on_heldout`` has left them there. Where none of these has
    any, a run that starts from another one takes that one's, or says that the two do not compare.
    """
    there = ctx.processes.on_process_0("held-out references", _heldout_file(ctx.folder).exists)
    given, source = _known_heldout(ctx.config, ctx.folder if there else None, samples)
    without = [sample for sample in samples if sample.id not in given]
    if without:
        path = _heldout_file(ctx.folder)
        if not there:
            take_over = partial(_take_over, ctx, without)
            ctx.processes.on_process_0("held-out references of the run before", take_over)
        written = references_by_policy(ctx, path, without)
        given |= {entry.id: entry for entry in written.entries()}
        source = str(path)
    found = ReferencePool(given[s.id] for s in samples if s.id in given)
    remember_pool(ctx, found, source, note=HELDOUT_NOTE)
    return found


def hand_on_heldout(
    config: RunConfig, samples: Sequence[Sample], *, first: RunFolder, later: RunFolder
) -> None:
    """Leaves in ``later``, which has yet to begin, what captions of held-out samples are compared with in ``first``, so
    that the figures of the two can be compared. One that has begun keeps what it began with. By one process.

    config: of ``first``, which is complete. samples: those held out. Raises PoolError where the references that
    ``first`` began with are not there any more, ManifestError for a pool that cannot be read.
    """
    if read_note(later.root / HELDOUT_NOTE) is not None:
        return
    there = _heldout_file(first).exists()
    given, source = _known_heldout(config, first if there else None, samples)
    found = ReferencePool(given[s.id] for s in samples if s.id in given)
    _check_same(first, found, source, HELDOUT_NOTE)
    if len(found):
        found.write(_heldout_file(later))


def _take_over(ctx: RunContext, samples: Sequence[Sample]) -> None:
    """Leaves in the run's folder the references of the run that it starts from, where that one holds out the same."""
    start = named_source(ctx.config.model.path, ctx.config.model.step)
    before = RunFolder(start.folder)
    if not start.run or read_note(before.root / HELDOUT_NOTE) is None:
        return
    file = _heldout_file(before)
    pool = ReferencePool.read(file) if file.exists() else ReferencePool([])
    if pool.missing(samples) or not same_heldout(before, ctx.folder):
        ctx.say(
            f"the starting policy writes references for {len(samples)} held-out samples which are not those of "
            f"{start.path}, so judged/reward does not compare with that run's"
        )
        return
    ctx.say(f"held-out captions are compared with the references that {start.path} has for them: {file}")
    ReferencePool(pool[sample.id] for sample in samples).write(_heldout_file(ctx.folder))


def _heldout_file(folder: RunFolder) -> Path:
    return folder.root / "references" / "heldout.jsonl"


def _known_heldout(
    config: RunConfig, folder: RunFolder | None, samples: Sequence[Sample]
) -> tuple[dict[str, PoolEntry], str]:
    """References of held-out samples by id, as far as they are there, and where they are from. folder: of a run that
    holds some; None for one that does not."""
    given = {s.id: PoolEntry(id=s.id, references=s.references) for s in samples if s.references}
    source = "the manifest"
    files = [] if config.data.references is None else [config.data.references]
    if folder is not None:
        files.append(str(_heldout_file(folder)))
    for source in files:
        pool = ReferencePool.read(source)
        given |= {s.id: pool[s.id] for s in samples if s.id in pool}
    return given, source


def references_by_policy(ctx: RunContext, path: Path, samples: Sequence[Sample]) -> ReferencePool:
    """The starting policy's captions of ``samples`` as a pool at ``path``, as ``config.references`` asks."""
    processes = ctx.processes
    if processes.on_process_0(f"references {path.name}", path.exists):
        return ReferencePool.read(path)
    ctx.say(f"the starting policy writes references for {len(samples)} samples: {path}")
    writer = configured_writer(ctx, samples, name=str(starting_source(ctx.config)))
    return write_shared_pool(ctx, path, writer, samples)


def write_shared_pool(
    ctx: RunContext, path: Path, writer: ReferenceWriter, samples: Sequence[Sample]
) -> ReferencePool:
    """``write_pool`` by all processes together, each a share of the samples; goes on with an attempt of as many.

    Nobody looks for a file of another process before that one has met it: a client of NFS that once saw that a file is
    not there may go on saying so for half a minute.
    """
    processes = ctx.processes
    if processes.on_process_0(f"whether there is {path.name}", path.exists):
        return existing_pool(path, writer.provenance)
    shard = Shard(index=processes.index, count=processes.count)

    def write() -> None:
        progress = PoolProgress(ctx.say, seconds=10)
        write_parts(path, writer, samples, shard, on_progress=progress, on_bad=ctx.report_bad_sample)

    def join() -> int:
        return len(join_parts(path, writer, samples, shard.count))

    processes.together(f"pool {path.name}", write)
    processes.on_process_0(f"joining {path.name}", join)
    return ReferencePool.read(path)


def remember_pool(ctx: RunContext, pool: ReferencePool, source: str, *, note: str = POOL_NOTE) -> None:
    """Notes in the run folder which captions the run uses; refuses others when it is resumed."""
    if not _check_same(ctx.folder, pool, source, note):
        write_note(ctx.folder.root / note, pool, source)


def _check_same(folder: RunFolder, pool: ReferencePool, source: str, note: str) -> bool:
    """Whether a run has noted which captions it began with. Raises PoolError if they were others."""
    before = read_note(folder.root / note)
    if before is not None and before.digest != (digest := pool.digest()):
        remedy = "Give it the pool it began with"
        earlier = earlier_pools(Path(source))
        if same := [file for file in earlier if ReferencePool.read(file).digest() == before.digest]:
            remedy = (
                f"--retry-failed has left the pool it began with in {same[0]}: give that the name {source}"
            )
        elif earlier:  # as of held-out samples, which are a part of a pool
            remedy += f", which --retry-failed may have left beside it ({', '.join(map(str, earlier))})"
        raise PoolError(
            f"the run in {folder.root} began with the captions of {before.source}, digest "
            f"{before.digest}; {source} has {digest}. {remedy}, or start a new run"
        )
    return before is not None
