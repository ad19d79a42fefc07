"""Lessons as tokens: many questions about one picture share its opening.

A chat is only tokens. The opening of a prompt ends right after the visual tokens, inside the user's turn, so each
continuation is the rest of a chat of its own: the question, the end of the turn, and the answer. The loss is on the
answer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from vcap_jax.models.family import Processor
from vcap_jax.parallel.arrays import ArrayT
from vcap_jax.recipes.teaching.corpus import Lesson

_TURN = "<|im_end|>\n<|im_start|>assistant\n"


class Continuation(NamedTuple):
    """Tokens that follow an opening or a prompt; those from ``answer`` on are learned, the last ends the turn."""

    tokens: tuple[int, ...]
    answer: int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LessonBatch(Generic[ArrayT]):
    """Continuations of B openings, G of each. starts, lengths: where the answer begins and ends; both 0 for none."""

    tokens: Int[ArrayT, "B G T"]
    starts: Int[ArrayT, "B G"]
    lengths: Int[ArrayT, "B G"]


class Packer:
    """Texts to tokens, each text once."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._known: dict[str, tuple[int, ...]] = {}

    def tokens(self, text: str) -> tuple[int, ...]:
        """The tokens of a text."""
        if text not in self._known:
            found = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
            self._known[text] = tuple(found)
        return self._known[text]

    def lesson(self, lesson: Lesson) -> Continuation:
        """Question and answer after an opening."""
        asked = (*self.tokens(lesson.question), *self.tokens(_TURN))
        return Continuation((*asked, *self.caption(lesson.answer).tokens), len(asked))

    def caption(self, text: str) -> Continuation:
        """A caption after a whole prompt."""
        return Continuation((*self.tokens(text), self._processor.eos_token_ids[0]), 0)


def batched(groups: Sequence[Sequence[Continuation]], width: int) -> LessonBatch[np.ndarray]:
    """Continuations [b][g], as many for each b, padded to ``width`` tokens. Raises ValueError for a longer one."""
    shape = (len(groups), len(groups[0]))
    tokens = np.zeros((*shape, width), np.int32)
    starts, lengths = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for b, group in enumerate(groups):
        for g, continuation in enumerate(group):
            size = len(continuation.tokens)
            if size > width:
                raise ValueError(f"a lesson has {size} tokens, there is room for {width}: give it more")
            tokens[b, g, :size] = continuation.tokens
            starts[b, g], lengths[b, g] = continuation.answer, size
    return LessonBatch(tokens, starts, lengths)
