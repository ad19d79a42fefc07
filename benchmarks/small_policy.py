"""Writes the random Qwen3-VL that the speed comparisons use: small enough for two cores, every part of the real one.

    python benchmarks/small_policy.py --out /tmp/policy
    python benchmarks/small_policy.py --out /tmp/policy --family qwen3_5    # for vllm_parity.py
    python benchmarks/small_policy.py --out /tmp/policy --size 2B           # for gpu_step.py: 4 GB

A 4-layer, 256-wide decoder with grouped queries and a 4-layer, 128-wide vision tower with one DeepStack tap, float32,
in Hugging Face format with tokenizer and preprocessor, so that transformers, TRL and vLLM load the same files. Equal
seeds give equal files. The Qwen3.5 has three gated delta rules and one layer of attention, of the same width.

--size: random weights in bfloat16 in the shapes of a published checkpoint instead. Its vocabulary of 151,936 tokens is
that of the embedded world and made-up words.
"""

from __future__ import annotations

import argparse
import json
import random
import string
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image

from vcap_jax.export.hugging_face import write_new
from vcap_jax.models import family as boundary
from vcap_jax.models.qwen3_5.config import Qwen35Config, TextConfig
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.processing.processor import Processor
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings, VideoSettings
from vcap_jax.models.qwen3_vl.published import CONFIGS
from vcap_jax.world.backbone import backbone_config
from vcap_jax.world.tokenizer import train_tokenizer, training_texts

POSITIONS = 16_384
TOKEN_SIDE = 32
"""Pixels of a picture's side that become one visual token: patch 16, merged 2 by 2."""


def write_policy(
    folder: Path,
    *,
    seed: int = 0,
    visual_tokens: int = 1024,
    family: str = "qwen3_vl",
    size: str | None = None,
) -> Processor:
    """Writes configuration, weights, tokenizer and preprocessor files.

    visual_tokens: the budget of one image; a picture of ``picture(visual_tokens)`` fills it exactly. size: of a
    published Qwen3-VL, such as "2B".
    """
    tokenizer = train_tokenizer(training_texts(), max_length=POSITIONS)
    budget = visual_tokens * TOKEN_SIDE**2
    processor = Processor(
        tokenizer,
        image=ImageSettings(min_pixels=TOKEN_SIDE**2, max_pixels=budget),
        video=VideoSettings(min_pixels=2 * TOKEN_SIDE**2, max_pixels=budget, max_frames=32),
    )
    config, dtype = policy_config(tokenizer), jnp.float32
    if size is not None:
        config, dtype = published_shapes(size, config), jnp.bfloat16
    if family == "qwen3_5":
        recurrent = recurrent_config(config)
        config = recurrent.to_dict()
        model: Qwen3VL | Qwen35 = Qwen35(recurrent, rngs=nnx.Rngs(seed), dtype=jnp.float32)
    else:
        model = Qwen3VL(Qwen3VLConfig.from_dict(config), rngs=nnx.Rngs(seed), dtype=dtype, param_dtype=dtype)
    # As model and processor are known outside their family.
    write_new(
        folder, cast(boundary.CaptionModel, model), config, cast(boundary.Processor, processor), dtype=dtype
    )
    if size is not None:
        fill_vocabulary(folder / "tokenizer.json", config["text_config"]["vocab_size"])
    return processor


def published_shapes(size: str, ours: dict[str, Any]) -> dict[str, Any]:
    """config.json of a published Qwen3-VL, with the special tokens of ``ours``."""
    config = json.loads(json.dumps(CONFIGS[size]))
    config |= {name: value for name, value in ours.items() if name.endswith("_token_id")}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config["text_config"][name] = ours["text_config"][name]
    return config


def fill_vocabulary(file: Path, size: int) -> None:
    """Adds made-up words to a tokenizer.json, up to ``size`` tokens; no text is encoded otherwise than before."""
    tokenizer, rng = json.loads(file.read_text()), random.Random(0)
    words = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    number = len(words.keys() | special)
    while number < size:
        # Longer than any merge makes, so that only their numbers lead to them.
        word = "\u0120" + "".join(rng.choices(string.ascii_lowercase, k=12))
        if word not in words:
            words[word], number = number, number + 1
    file.write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n")


def recurrent_config(config: dict[str, Any]) -> Qwen35Config:
    """A Qwen3.5 of the width of ``policy_config``; the sizes of heads are among those that vLLM's CPU build knows."""
    known = Qwen3VLConfig.from_dict(config)
    text = TextConfig(
        vocab_size=known.text.vocab_size,
        hidden_size=known.text.hidden_size,
        intermediate_size=known.text.intermediate_size,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=POSITIONS,
        mrope_section=(4, 2, 2),
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        eos_token_id=known.text.eos_token_id,
        # So that what comes next is not nearly as likely as anything else.
        initializer_range=0.05,
    )
    return Qwen35Config(
        text=text,
        vision=replace(known.vision, deepstack_visual_indexes=()),
        tie_word_embeddings=True,
        **{name: config[name] for name in config if name.endswith("_token_id")},
    )


def policy_config(tokenizer: Any) -> dict[str, Any]:
    """config.json for a tokenizer made by ``vcap_jax.world.tokenizer``."""
    config: dict[str, Any] = backbone_config(tokenizer)
    config["dtype"] = "float32"
    config["text_config"] |= {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": POSITIONS,
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True},
    }
    config["vision_config"] |= {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_heads": 4,
        "out_hidden_size": 256,
        "num_position_embeddings": 1024,
        "deepstack_visual_indexes": [1],
    }
    return config


def picture(visual_tokens: int, seed: int) -> Image.Image:
    """A picture of noise that becomes exactly ``visual_tokens`` visual tokens.

    Raises ValueError if they cannot be laid out in a rectangle of at most 2 to 1.
    """
    rows = int(visual_tokens**0.5)
    while visual_tokens % rows:
        rows -= 1
    columns = visual_tokens // rows
    if columns > 2 * rows:
        raise ValueError(f"{visual_tokens} visual tokens make no rectangle; take a square or twice a square")
    blocks = np.random.default_rng(seed).integers(0, 256, (2 * rows, 2 * columns, 3), np.uint8)
    return Image.fromarray(blocks).resize((columns * TOKEN_SIDE, rows * TOKEN_SIDE), Image.Resampling.BICUBIC)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--visual-tokens", type=int, default=1024, help="budget of one image")
    parser.add_argument("--family", choices=("qwen3_vl", "qwen3_5"), default="qwen3_vl")
    parser.add_argument("--size", choices=CONFIGS, help="shapes of a published Qwen3-VL")
    args = parser.parse_args()
    if args.size and args.family != "qwen3_vl":
        parser.error("--size is of a Qwen3-VL")
    write_policy(
        args.out,
        seed=args.seed,
        visual_tokens=args.visual_tokens,
        family=args.family,
        size=args.size,
    )
    print(f"{args.out}: written")


if __name__ == "__main__":
    main()
