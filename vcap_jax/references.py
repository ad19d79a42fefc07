"""Writes a reference pool with a policy: the paper's pool for e1 comes from the untrained policy itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vcap_jax.data.jsonl import read_objects
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import PoolEntry, ReferencePool, entry_line
from vcap_jax.policy import Params
from vcap_jax.rollout.captioner import Captioner


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
