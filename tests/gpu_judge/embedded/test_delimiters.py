"""Blocks between delimiter lines."""

from __future__ import annotations

import random
import re

from gpu_judge.embedded.delimiters import find_blocks, without_blocks

NAMES = ("reference_caption", "generated_caption")
_WHOLE = re.compile(rf"^<(?P<name>{'|'.join(NAMES)})>\n(?P<text>.*?)\n?^</(?P=name)>[ \t]*$", re.M | re.S)
"""What a block is, in one expression, which is slow on openings that are never closed."""


def test_blocks_are_what_the_expression_finds() -> None:
    rng, found = random.Random(0), 0
    pieces = ["\n", "\n", " ", "\t", "x", "\r\n"]
    pieces += [f"{mark}{name}>{end}" for name in NAMES for mark in ("<", "</") for end in ("\n", "", " \n")]
    for _ in range(20_000):
        text = "".join(rng.choices(pieces, k=rng.randrange(1, 14)))
        expected = [(m["name"], m["text"], m.start(), m.end()) for m in _WHOLE.finditer(text)]
        blocks = find_blocks(text, NAMES)
        found += len(blocks)
        assert [(b.name, b.text, b.start, b.end) for b in blocks] == expected
        assert without_blocks(text, blocks) == _WHOLE.sub("", text)
    assert found > 1000


def test_openings_that_are_never_closed_are_text() -> None:
    text = "<generated_caption>\n" * 50_000
    assert find_blocks(text, NAMES) == []
    assert without_blocks(text, []) == text
