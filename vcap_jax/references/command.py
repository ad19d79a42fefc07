"""A pool as a user asks for it: which captioner, which file, which share of the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vcap_jax.captioning.parts import Shard
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.references.by_endpoint import endpoint_writer
from vcap_jax.references.by_policy import configured_writer, reference_rollout, reference_seed
from vcap_jax.references.writing import ReferenceWriter, write_pool
from vcap_jax.report.best_checkpoint import AskedStep
from vcap_jax.report.progress import PoolProgress
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.summary import FactRow, fact_shares
from vcap_jax.report.world_facts import count_captions
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.run.checkpoint_source import checkpoint_source, configured_processor, lineage, starting_source
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import sample_reader
from vcap_jax.run.inputs import check_checkpoint, check_inputs
from vcap_jax.run.setup import drawing, prepare, read_samples
from vcap_jax.world.splits import EmbeddedData


@dataclass(frozen=True, kw_only=True)
class PoolRequest:
    """captioner, step: a checkpoint (``load_captioner``), by default ``model.path``; or endpoint: a server.

    path: of the pool; an embedded world is rendered into ``data/`` beside it. shard: this process's
    share. ended_only: leave out captions that the token budget cut off. retry_failed: of a complete pool, try again
    the samples that got no entry.
    """

    path: Path
    captioner: str | None = None
    step: AskedStep = None
    endpoint: JudgeConfig | None = None
    shard: Shard = field(default_factory=Shard)
    ended_only: bool = False
    retry_failed: bool = False


def write_requested_pool(
    config: RunConfig, request: PoolRequest, *, say: Callable[[str], None]
) -> ReferencePool | None:
    """Writes the pool, or goes on with it; None while other processes' parts are missing.

    Raises what ``check_inputs`` raises, before anything is done, and what ``write_pool``, ``load_captioner`` and the
    judge's client raise.
    """
    # A pool is for every row: those held out are compared with references as well.
    config = replace(config, data=replace(config.data, heldout_share=0.0))
    if request.captioner is not None:
        check_checkpoint(request.captioner, request.step, key="--by")
    for note in check_inputs(config, "captions", policy=request.captioner is None):
        say(note)
    folder = RunFolder(request.path.parent)

    def write(writer: ReferenceWriter, samples: Sequence[Sample]) -> ReferencePool | None:
        return write_pool(
            request.path,
            writer,
            samples,
            shard=request.shard,
            retry_failed=request.retry_failed,
            on_progress=PoolProgress(say, seconds=10),
            on_bad=lambda bad: say(str(bad)),
        )

    if request.endpoint is not None:
        samples, world = read_samples(config, folder, say)
        processor = configured_processor(config, lineage(config.model.path, config.model.step).origin)
        with endpoint_writer(
            config,
            request.endpoint,
            samples,
            reader=lambda window: sample_reader(config, processor, window=window),
            seed=reference_seed(config),
            ended_only=request.ended_only,
            say=say,
        ) as served:
            say(f"references by {served.provenance.writer}, drawn by temperature and top_p alone")
            pool = write(served, samples)
    else:
        if request.captioner is None and request.step is None:
            source = starting_source(config)
        else:
            source = checkpoint_source(request.captioner or config.model.path, request.step)
        # Captioning trains nothing: a run's policy is taken as the run split it.
        captioner = source.path if source.run else request.captioner
        prepared = prepare(config, folder, say, captioner=captioner, step=source.step)
        samples, world = prepared.samples, prepared.world
        with drawing(prepared) as ready:
            writer = configured_writer(ready.ctx, samples, name=str(source), ended_only=request.ended_only)
            say(f"references by {source}, weights {writer.provenance.weights}")
            pool = write(writer, samples)
    if pool is None:
        say(f"share {request.shard.index} of {request.shard.count} is written; others are still at work")
        return None
    say(_described(request.path, pool, len(samples), world, reference_rollout(config).group_size))
    return pool


def pool_shares(pool: ReferencePool, world: EmbeddedData) -> FactRow:
    """What a pool for the training scenes covers and makes up (``fact_shares``), over every one of them: nothing is
    covered of a scene that has no entry."""
    return fact_shares(count_captions(world.train_scenes, pool.texts()))


def _described(path: Path, pool: ReferencePool, samples: int, world: EmbeddedData | None, each: int) -> str:
    references = sum(len(entry.references) for entry in pool.entries())
    windows = sum(len(entry.segments) for entry in pool.entries())
    text = f"{path}: {references} references of {len(pool)} of {samples} samples"
    fewer = sum(len(entry.references) < each for entry in pool.entries())
    if fewer:
        text += f", {fewer} of which have fewer than {each}"
    if windows:
        text += f", {windows} windows"
    text += f", digest {pool.digest()}"
    if world is not None:
        shares = pool_shares(pool, world)
        text += f"; facts covered {shares['coverage']:.1%}, false claims {shares['hallucination']:.1%}"
    return text
