"""A tiny tokenizer of the Qwen2 kind for the embedded world.

Byte-level BPE with Qwen's pre-tokenization, special tokens and chat layout, trained on the grammar's captions
and the prompts until every word of them is one token. Any text can be encoded; what the world never says
costs more tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from vcap_jax.models.qwen3_vl.processing.chat_template import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    SPECIAL_TOKENS,
)
from vcap_jax.models.qwen3_vl.processing.public import transformers
from vcap_jax.world.captions import full_caption, weak_caption
from vcap_jax.world.grammar import IMAGE_PROMPT
from vcap_jax.world.scenes import sample_image_scene, sample_video_scene
from vcap_jax.world.video_grammar import VIDEO_PROMPT

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

MAX_VOCABULARY = 700
"""Bytes, merges and special tokens together; the grammar is exhausted before this."""
_SCENES = 1500
_PROMPT_REPEATS = 50


def training_texts() -> list[str]:
    """What the tokenizer learns from, always the same: captions, prompts, the chat layout and timestamps."""
    rng = np.random.default_rng(0)
    texts = []
    for index in range(_SCENES):
        for scene in (sample_image_scene(0, index, "tokenizer"), sample_video_scene(0, index, "tokenizer")):
            texts += [full_caption(scene, rng), weak_caption(scene, rng)]
    layout = [IMAGE_PROMPT, VIDEO_PROMPT, "system\n", "user\n", "assistant\n", "0.2 seconds"]
    return texts + layout * _PROMPT_REPEATS


def train_tokenizer(
    texts: Sequence[str] | None = None, *, vocabulary: int = MAX_VOCABULARY, max_length: int = 8192
) -> Qwen2Tokenizer:
    """Trains the tokenizer; a few seconds, and the same result every time.

    texts: what to learn from; None takes :func:`training_texts`.
    vocabulary: bytes, merges and special tokens together, at most. max_length: of a text, in tokens.

    Special tokens follow the BPE vocabulary, ``<|im_end|>`` ends a text and ``<|endoftext|>`` pads.
    """
    trainee = Tokenizer(BPE())
    public = transformers().Qwen2Tokenizer().backend_tokenizer
    trainee.normalizer = public.normalizer
    trainee.pre_tokenizer = public.pre_tokenizer
    trainer = BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL_TOKENS),
        # A pair of letters that occurs less often is no part of a word of the grammar.
        min_frequency=_PROMPT_REPEATS,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    trainee.train_from_iterator(training_texts() if texts is None else texts, trainer)
    return _as_qwen2(trainee, max_length)


def _as_qwen2(trained: Tokenizer, max_length: int) -> Qwen2Tokenizer:
    """The same vocabulary and merges in the class that Qwen checkpoints name."""
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    size = len(model["vocab"])
    tokenizer: Qwen2Tokenizer = transformers().Qwen2Tokenizer(
        vocab=model["vocab"] | {token: size + k for k, token in enumerate(SPECIAL_TOKENS)},
        merges=merges,
        unk_token=END_OF_TEXT,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=max_length,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def write_tokenizer(folder: str | Path) -> None:
    """Trains the tokenizer and writes it to a folder for ``transformers.AutoTokenizer.from_pretrained``."""
    train_tokenizer().save_pretrained(str(folder))
