"""Where a run's references come from: a pool, the manifest, or the untrained policy (the paper's pool for e1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from vcap_jax.data.jsonl import read_objects
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import PoolEntry, ReferencePool, entry_line
from vcap_jax.policy import Params
from vcap_jax.report.progress import Every
from vcap_jax.rollout.captioner import Captioner
from vcap_jax.workplace import Workplace

_SEED = 1_000_003
"""Added to the run's seed: never met by the training rollouts, whose fold is (seed, step)."""


def reference_pool(place: Workplace, samples: Sequence[Sample]) -> ReferencePool:
    """The pool that the configuration names, else the manifest's own references, else one by the policy."""
    if place.config.data.references is not None:
        return ReferencePool.read(place.config.data.references)
    own = ReferencePool.of_samples(samples)
    missing = own.missing(samples)
    if not missing:
        return own
    if len(own):
        place.say(
            f"{len(missing)} of {len(samples)} samples bring no reference: the starting policy writes them"
        )
    path = place.folder.root / "references" / "train.jsonl"
    written = references_by_policy(place, path, [sample for sample in samples if sample.id not in own])
    return ReferencePool([*(own[s.id] for s in samples if s.id in own), *written.entries()])


def references_by_policy(place: Workplace, path: Path, samples: Sequence[Sample]) -> ReferencePool:
    """The starting policy's captions of ``samples`` as a pool at ``path``, as ``config.references`` asks."""
    config = place.config
    if not path.exists():
        place.say(f"the starting policy writes references for {len(samples)} samples: {path}")
    rollout = dataclasses.replace(
        config.rollout,
        group_size=config.references.per_sample,
        sampling=config.references.sampling or config.rollout.sampling,
        max_completion_length=config.references.max_completion_length or config.rollout.max_completion_length,
    )
    return write_references(
        path,
        place.captioner(rollout),
        place.policy.trainable,
        samples,
        seed=config.seed + _SEED,
        on_progress=Every(place.say, "references", seconds=20),
        on_bad=place.report_bad_sample,
    )


def write_references(
    path: Path,
    captioner: Captioner,
    params: Params,
    samples: Sequence[Sample],
    *,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
    on_bad: Callable[[BadSample], None] | None = None,
) -> ReferencePool:
    """Captions every sample and writes the pool to ``path``; goes on where an interrupted attempt left off.

    on_progress: told (done, total) after every sample. Samples that cannot be read get no entry.
    """
    if path.exists():
        return ReferencePool.read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    done = _complete_lines(partial)
    with partial.open("a", encoding="utf-8") as file:
        # Samples are captioned in order, so everything after the last one written is still to do.
        first = next((i + 1 for i in reversed(range(len(samples))) if samples[i].id in done), 0)
        for captioned in captioner.run(params, samples[first:], seed=seed, first=first, on_bad=on_bad):
            texts = tuple(text for text in captioned.captions if text)
            if texts:
                file.write(entry_line(PoolEntry(id=captioned.sample.id, references=texts)))
                file.flush()
            done.add(captioned.sample.id)
            if on_progress is not None:
                on_progress(len(done), len(samples))
    partial.rename(path)
    return ReferencePool.read(path)


def _complete_lines(path: Path) -> set[str]:
    """Ids already written; a line torn by a kill is cut off."""
    if not path.exists():
        return set()
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    if not whole:
        return set()
    return {row["id"] for _, row in read_objects(path, "reference pool")}
