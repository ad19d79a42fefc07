"""References made shorter: the same captioner, less said, a smaller m."""

from __future__ import annotations

from collections.abc import Iterable

from vcap_jax.data.references import PoolEntry
from vcap_jax.world.scenes import Modality
from vcap_jax.world.sentences import split_sentences


def cut_entries(entries: Iterable[PoolEntry], modality: Modality, sentences: int) -> tuple[PoolEntry, ...]:
    """Entries whose references end after so many sentences; segments of videos are left out.

    Raises ValueError for less than one sentence.
    """
    return tuple(
        PoolEntry(id=entry.id, references=tuple(cut(text, modality, sentences) for text in entry.references))
        for entry in entries
    )


def cut(text: str, modality: Modality, sentences: int) -> str:
    """The first ``sentences`` sentences of a caption, with the time range that a video's sentence stands in. A text
    without a sentence, such as a time range alone, stays as it is: a reference is never empty."""
    if sentences < 1:
        raise ValueError(f"{sentences} sentences: keep at least one")
    if modality == "image":
        return " ".join(split_sentences(text)[:sentences]) or text
    lines: list[str] = []
    left = sentences
    for line in text.splitlines():
        if not line.strip() or not left:
            continue
        header, bracket, rest = line.partition("]")
        if not bracket:
            header, rest = "", line
        kept = split_sentences(rest)[:left]
        if kept:
            lines.append(f"{header}{bracket} {' '.join(kept)}".strip())
            left -= len(kept)
    return "\n".join(lines) or text
