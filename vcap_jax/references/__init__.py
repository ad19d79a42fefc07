"""Where a run's references come from: a pool, the manifest, or the policy before training (the paper's pool for e1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vcap_jax.captioning.parts import Shard
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.references.asking import Asking
from vcap_jax.references.by_policy import PolicyWriter, reference_rollout, reference_seed
from vcap_jax.references.note import POOL_NOTE, read_note, write_note
from vcap_jax.references.writing import PoolError, write_pool
from vcap_jax.report.progress import PoolProgress
from vcap_jax.run.checkpoint_source import starting_source
from vcap_jax.run.context import RunContext

__all__ = [
    "PolicyWriter",
    "PoolError",
    "Shard",
    "heldout_pool",
    "reference_pool",
    "references_by_policy",
    "remember_pool",
    "write_pool",
    "write_shared_pool",
]


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
    path = ctx.folder.root / "references" / "train.jsonl"
    written = references_by_policy(ctx, path, [sample for sample in samples if sample.id not in own])
    pool = ReferencePool([*(own[s.id] for s in samples if s.id in own), *written.entries()], written.header)
    remember_pool(ctx, pool, str(path))
    return pool


def heldout_pool(ctx: RunContext, samples: Sequence[Sample]) -> ReferencePool:
    """What captions of held-out samples are compared with: as ``reference_pool``, which never sees these samples.

    Where ``data.references`` has nothing for a sample, its own row counts.
    """
    given = {s.id: PoolEntry(id=s.id, references=s.references) for s in samples if s.references}
    source = "the manifest"
    if ctx.config.data.references is not None:
        pool, source = ReferencePool.read(ctx.config.data.references), ctx.config.data.references
        given |= {s.id: pool[s.id] for s in samples if s.id in pool}
    without = [sample for sample in samples if sample.id not in given]
    if without:
        path = ctx.folder.root / "references" / "heldout.jsonl"
        written = references_by_policy(ctx, path, without)
        given |= {entry.id: entry for entry in written.entries()}
        source = str(path)
    found = ReferencePool(given[s.id] for s in samples if s.id in given)
    remember_pool(ctx, found, source, note="heldout_references.json")
    return found


def references_by_policy(ctx: RunContext, path: Path, samples: Sequence[Sample]) -> ReferencePool:
    """The starting policy's captions of ``samples`` as a pool at ``path``, as ``config.references`` asks."""
    processes = ctx.processes
    if processes.on_process_0(f"references {path.name}", path.exists):
        return ReferencePool.read(path)
    config = ctx.config
    ctx.say(f"the starting policy writes references for {len(samples)} samples: {path}")
    writer = PolicyWriter(
        ctx,
        ctx.policy.trainable,
        samples,
        name=str(starting_source(config)),
        seed=reference_seed(config),
        rollout=reference_rollout(config),
        segments=config.references.segments,
        asking=Asking.of(config.references),
    )
    return write_shared_pool(ctx, path, writer, samples)


def write_shared_pool(
    ctx: RunContext, path: Path, writer: PolicyWriter, samples: Sequence[Sample]
) -> ReferencePool:
    """``write_pool`` by all processes together, each a share of the samples; goes on with an attempt of as many."""
    processes = ctx.processes

    def write() -> ReferencePool | None:
        return write_pool(
            path,
            writer,
            samples,
            shard=Shard(index=processes.index, count=processes.count),
            on_progress=PoolProgress(ctx.say, seconds=10),
            on_bad=ctx.report_bad_sample,
        )

    # Whoever wrote the last part has joined them all.
    return processes.together(f"pool {path.name}", write) or ReferencePool.read(path)


def remember_pool(ctx: RunContext, pool: ReferencePool, source: str, *, note: str = POOL_NOTE) -> None:
    """Notes in the run folder which captions the run uses; refuses others when it is resumed."""
    path = ctx.folder.root / note
    before = read_note(path)
    if before is None:
        write_note(path, pool, source)
    elif before.digest != (digest := pool.digest()):
        raise PoolError(
            f"the run in {ctx.folder.root} began with the captions of {before.source}, digest "
            f"{before.digest}; {source} has {digest}. Give it the pool it began with, or start a new run"
        )
