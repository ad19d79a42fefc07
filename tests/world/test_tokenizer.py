"""The tiny tokenizer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from vcap_jax.models.qwen3_vl.processing.chat_template import SPECIAL_TOKENS
from vcap_jax.world import IMAGE_PROMPT, VIDEO_PROMPT, sample_scene
from vcap_jax.world.captions import full_caption
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tokenizer import write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(str(folder))


def length(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text)["input_ids"])


def test_special_tokens_follow_the_vocabulary_in_qwens_order(tokenizer: Any) -> None:
    ids = tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))
    assert ids == list(range(len(tokenizer) - len(SPECIAL_TOKENS), len(tokenizer)))
    assert len(tokenizer) <= 700
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert tokenizer("<|image_pad|>")["input_ids"] == [tokenizer.convert_tokens_to_ids("<|image_pad|>")]


@pytest.mark.parametrize(("modality", "limit"), [("image", 52), ("video", 76)])
def test_every_word_of_the_grammar_is_one_token(tokenizer: Any, modality: Modality, limit: int) -> None:
    rng = np.random.default_rng(0)
    for index in range(200):
        caption = full_caption(sample_scene(modality, 9, index), rng)
        assert tokenizer.decode(tokenizer(caption)["input_ids"]) == caption
        assert length(tokenizer, caption) <= limit
        for word in re.findall(r" ?[A-Za-z]+", caption):
            assert length(tokenizer, word) == 1, word


def test_prompts_and_timestamps_are_short(tokenizer: Any) -> None:
    assert length(tokenizer, "<0.2 seconds>") <= 6
    assert length(tokenizer, IMAGE_PROMPT) == 4
    assert length(tokenizer, VIDEO_PROMPT) == 10


def test_any_text_can_be_encoded(tokenizer: Any) -> None:
    text = "Größe 日本 \U0001f600\n\tx"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_training_is_deterministic(tokenizer: Any, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert AutoTokenizer.from_pretrained(str(tmp_path)).get_vocab() == tokenizer.get_vocab()


def test_chat_layout(tokenizer: Any) -> None:
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": IMAGE_PROMPT}]}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
