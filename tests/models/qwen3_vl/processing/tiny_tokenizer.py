"""A byte-level BPE tokenizer of 280 tokens with Qwen's special tokens and chat layout."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vcap_jax.models.qwen3_vl.processing.chat_template import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    SPECIAL_TOKENS,
)

# How Qwen's tokenizers cut text before merging: contractions, words, single digits, punctuation, white space.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# A few merges, some of them within the words of a timestamp; "Ġ" is a space. Written out rather than trained,
# so that the golden ids never depend on a trainer.
_MERGES = [
    ("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("s", "e"), ("Ġ", "se"), ("c", "o"), ("n", "d"),
    ("Ġse", "co"), ("Ġseco", "nd"), ("Ġsecond", "s"), ("u", "se"), ("use", "r"), ("r", "i"), ("Ġ", "i"),
    (".", "Ċ"),
]  # fmt: skip


def tiny_tokenizer() -> Any:
    """A transformers tokenizer: the 256 bytes, the merges, the special tokens, the chat template."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in _MERGES]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=_MERGES))
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT)
    fast.chat_template = CHAT_TEMPLATE
    return fast
