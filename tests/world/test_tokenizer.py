"""The tiny tokenizer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from vcap_jax.models.qwen3_vl.processing.chat_template import SPECIAL_TOKENS
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.habits import scene_habit
from vcap_jax.world.image_grammar import IMAGE_PROMPT
from vcap_jax.world.questions import scene_questions
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tokenizer import MAX_VOCABULARY, train_tokenizer, training_texts
from vcap_jax.world.video_grammar import VIDEO_PROMPT
from vcap_jax.world.vocabulary import VALUES


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer().save_pretrained(str(folder))
    return AutoTokenizer.from_pretrained(str(folder))


def length(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text)["input_ids"])


def test_special_tokens_follow_the_vocabulary_in_qwens_order(tokenizer: Any) -> None:
    ids = tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))
    assert ids == list(range(len(tokenizer) - len(SPECIAL_TOKENS), len(tokenizer)))
    # The language is exhausted before the limit: no word of it is left in pieces.
    assert len(tokenizer) < MAX_VOCABULARY
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert tokenizer("<|image_pad|>")["input_ids"] == [tokenizer.convert_tokens_to_ids("<|image_pad|>")]


def test_the_committed_policy_has_the_tokenizer_that_the_language_gives(tokenizer: Any) -> None:
    committed = AutoTokenizer.from_pretrained(str(BACKBONE_FOLDER))
    assert committed.get_vocab() == tokenizer.get_vocab()


def test_every_word_of_the_language_is_one_token(tokenizer: Any) -> None:
    words = {word for text in training_texts() for word in re.findall(r" ?[A-Za-z]+", text)}
    assert len(words) > 250
    assert [word for word in words if length(tokenizer, word) != 1] == []


@pytest.mark.parametrize(
    ("modality", "full", "habit", "question"), [("image", 150, 40, 12), ("video", 200, 90, 24)]
)
def test_captions_and_questions_are_short(
    tokenizer: Any, modality: Modality, full: int, habit: int, question: int
) -> None:
    rng = np.random.default_rng(0)
    lengths: dict[str, list[int]] = {"full": [], "habit": [], "question": []}
    for index in range(30):
        scene = sample_scene(modality, 9, index)
        texts = {"full": [full_caption(scene, rng)], "habit": [scene_habit(scene).caption(rng)]}
        texts["question"] = [put.text for put in scene_questions(scene)]
        for name, written in texts.items():
            assert all(tokenizer.decode(tokenizer(text)["input_ids"]) == text for text in written)
            lengths[name] += [length(tokenizer, text) for text in written]
    assert np.mean(lengths["full"]) < full
    assert np.mean(lengths["habit"]) < habit
    assert np.mean(lengths["question"]) < question


def test_answers_are_words_of_one_token_with_and_without_a_space(tokenizer: Any) -> None:
    for kind in ("shape", "colour", "size", "pattern", "direction", "level", "background", "motion", "event"):
        for value in VALUES[kind]:
            assert length(tokenizer, value) == length(tokenizer, f" {value}") == 1


def test_prompts_and_timestamps_are_short(tokenizer: Any) -> None:
    assert length(tokenizer, "<0.2 seconds>") <= 6
    assert length(tokenizer, IMAGE_PROMPT) == 4
    assert length(tokenizer, VIDEO_PROMPT) == 10


def test_any_text_can_be_encoded(tokenizer: Any) -> None:
    text = "Größe 日本 \U0001f600\n\tx"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_training_is_deterministic(tokenizer: Any) -> None:
    assert train_tokenizer().get_vocab() == tokenizer.get_vocab()


def test_chat_layout(tokenizer: Any) -> None:
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": IMAGE_PROMPT}]}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
