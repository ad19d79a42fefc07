"""Lessons become tokens of a chat, and only what is answered is learned."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recipes.teaching.prompter import processor
from vcap_jax.models.message import ImagePart, TextPart
from vcap_jax.recipes.teaching.corpus import Lesson
from vcap_jax.recipes.teaching.packing import Continuation, Packer, batched
from vcap_jax.world.tiny_policy import Prompts

LESSON = Lesson("colour", "What colour is at the top left?", "red", 1)


def test_an_opening_with_a_lesson_is_the_processors_chat() -> None:
    """The question asked through the chat template, and the answer after it: the same tokens."""
    pixels = np.zeros((128, 128, 3), np.uint8)
    chat = processor().encode([ImagePart(pixels), TextPart(LESSON.question)]).tokens
    answer = processor().tokenizer(LESSON.answer, add_special_tokens=False)["input_ids"]
    lesson = Packer(processor()).lesson(LESSON)
    opening = np.asarray(Prompts(processor(), "image").openings(1).tokens)[0]
    end = processor().eos_token_ids[0]
    assert [*opening.tolist(), *lesson.tokens] == [*chat.tolist(), *answer, end]
    assert lesson.tokens[lesson.answer :] == (*answer, end)


def test_a_batch_has_every_continuation_and_where_its_answer_is() -> None:
    one, two, none = Continuation((5, 6, 7), 1), Continuation((8, 9), 0), Continuation((), 0)
    batch = batched([[one, two], [none, one]], 4)
    assert batch.tokens.tolist() == [[[5, 6, 7, 0], [8, 9, 0, 0]], [[0] * 4, [5, 6, 7, 0]]]
    assert batch.starts.tolist() == [[1, 0], [0, 1]]
    assert batch.lengths.tolist() == [[3, 2], [0, 3]]


def test_a_continuation_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="a lesson has 3 tokens, there is room for 2"):
        batched([[Continuation((1, 2, 3), 0)]], 2)
