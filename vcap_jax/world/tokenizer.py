"""A tiny tokenizer of the Qwen2 kind for the embedded world.

Byte-level BPE with Qwen's pre-tokenization, special tokens and chat layout, trained on everything that the grammar and
the questions can say until every word of it is one token. Any text can be encoded; what the world never says costs more
tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
from vcap_jax.world.asking import WORDINGS, Asked, put
from vcap_jax.world.captions import sayable_facts
from vcap_jax.world.image_grammar import IMAGE_PROMPT, describe_image
from vcap_jax.world.slots import IMAGE_SLOTS, video_slots
from vcap_jax.world.video_grammar import VIDEO_PROMPT, describe_video
from vcap_jax.world.vocabulary import IMAGE_PLACES, NUMBERS, VALUES

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

MAX_VOCABULARY = 900
"""Bytes, merges and special tokens together; the world's language is exhausted before this."""
_CAPTIONS = 200
_SHARES = (0.02, 0.2)
"""Of all that can be said, how much a caption says: short ones show the words that begin sentences."""
_SHOTS = ((0.0, 2.0), (2.0, 4.0), (4.0, 6.0))
_LEAST = 8
"""How often a pair of letters must occur: every word of the language does."""
_OPEN_QUESTIONS = (
    "What is at the top left?",
    "What does the top left show?",
    "Tell of the top left.",
    "Nothing.",
)
"""Questions that ask for all there is at a place, and what is answered where nothing is."""
_PRESENCE_QUESTIONS = (
    "Is there something at the {place}?",
    "Is anything at the {place}?",
    "Something at the {place}?",
)
_SHORT_ANSWERS = ("yes", "no", "none")
"""What the lessons do not ask and a user may: words for it are in the vocabulary."""
_BEGINNINGS = ("There are", *(f"{number.capitalize()} of" for number in NUMBERS[2:]))
"""Words with which a caption may begin, though few do."""


def training_texts() -> list[str]:
    """What the tokenizer learns from, always the same: captions, questions and answers, prompts, the chat layout.

    Drawn from the language alone, not from scenes: weights stay good when scenes come to be sampled otherwise.
    """
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(_CAPTIONS):
        for share in _SHARES:
            texts.append(describe_image(sayable_facts(IMAGE_SLOTS, share, rng), rng))
            facts = sayable_facts(video_slots(len(_SHOTS)), share, rng)
            texts.append(describe_video(facts, rng, segments=_SHOTS))
    layout = [IMAGE_PROMPT, VIDEO_PROMPT, "system\n", "user\n", "assistant\n", "0.2 seconds"]
    return texts + [*_questions(), *_answers(), *layout, *_OPEN_QUESTIONS, *_BEGINNINGS] * _LEAST


def _questions() -> Iterator[str]:
    for wording in range(WORDINGS):
        for slot in IMAGE_SLOTS:
            yield put(Asked(slot), wording)
        for slot in video_slots(1):
            yield put(Asked(slot[1:], _SHOTS[0]) if slot[0] == 0 else Asked(slot), wording)
    yield from (form.format(place=place) for form in _PRESENCE_QUESTIONS for place in IMAGE_PLACES)


def _answers() -> Iterator[str]:
    """Answers as they stand alone and as they stand after a space."""
    for answer in dict.fromkeys(
        [*(value for values in VALUES.values() for value in values), *NUMBERS, *_SHORT_ANSWERS]
    ):
        yield from (answer, f" {answer}")


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
        min_frequency=_LEAST,
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
