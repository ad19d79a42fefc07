"""Blocks of text between delimiter lines, ``<name>`` and ``</name>``, found in time linear in the text.

A regular expression for the whole block would look through the rest of the text at every opening that is never closed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Block:
    """text: between the lines, without the last line end. start, end: of the whole in the text around it."""

    name: str
    text: str
    start: int
    end: int


def find_blocks(text: str, names: Collection[str]) -> list[Block]:
    """The blocks of these names, in order; each goes to its first closing line, and what it holds is its text alone.

    An opening line is exactly ``<name>``; after ``</name>`` there may be blanks. An opening never closed is text.
    """
    either = "|".join(map(re.escape, names))
    closings: dict[str, list[re.Match[str]]] = {name: [] for name in names}
    for closing in re.finditer(rf"^</({either})>[ \t]*$", text, re.MULTILINE):
        closings[closing[1]].append(closing)
    starts = {name: [closing.start() for closing in found] for name, found in closings.items()}
    blocks: list[Block] = []
    for opening in re.finditer(rf"^<({either})>\n", text, re.MULTILINE):
        name, begin = opening[1], opening.end()
        which = bisect_left(starts[name], begin)
        if (blocks and opening.start() < blocks[-1].end) or which == len(starts[name]):
            continue
        closing = closings[name][which]
        inside = text[begin : max(begin, closing.start() - 1)]
        blocks.append(Block(name=name, text=inside, start=opening.start(), end=closing.end()))
    return blocks


def without_blocks(text: str, blocks: Sequence[Block]) -> str:
    """The text around the blocks that were found in it."""
    ends = [0, *(block.end for block in blocks)]
    starts = [*(block.start for block in blocks), len(text)]
    return "".join(text[end:start] for end, start in zip(ends, starts, strict=True))
