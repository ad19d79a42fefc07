"""Writes a small random Qwen3-VL judge in Hugging Face format, for trials of a real server without its weights.

    python benchmarks/small_judge_model.py --out /tmp/judge

It knows nothing: its scores are noise, but they depend on the picture and the captions, always in the same way. What it
shows is everything around the scores. Its tokenizer has learned the judge's instructions and the embedded world's
captions, so requests have about as many tokens as a published model would count. Equal seeds give equal files.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
from flax import nnx

from vcap_jax.export.hugging_face import write_new
from vcap_jax.models import family
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.processing.processor import Processor
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings, VideoSettings
from vcap_jax.reward.templates import SPECS, load_instruction
from vcap_jax.world.backbone import backbone_config
from vcap_jax.world.tokenizer import train_tokenizer, training_texts

POSITIONS = 16_384
VOCABULARY = 1_600
_INSTRUCTION_REPEATS = 50  # the tokenizer joins letters that occur this often
_VERDICT = (
    '{"Analysis": "no problems", "Correctness": 10, "Completeness": 9, "Text Quality": 8, "Reasonability": 7}'
)
_WEIGHT_SCALE = 0.2
"""Standard deviation of the weights: wide enough that answers depend on what is asked, unlike the usual 0.02."""


def write_judge(folder: Path, seed: int, *, least_pixels: int = 32 * 32) -> int:
    """Writes configuration, weights, tokenizer and preprocessor files; the number of parameters.

    least_pixels: smaller pictures are enlarged to as many; a visual token has 1,024.
    """
    instructions = [load_instruction(name).template for name in SPECS] + [_VERDICT]
    tokenizer = train_tokenizer(
        training_texts() + instructions * _INSTRUCTION_REPEATS, vocabulary=VOCABULARY, max_length=POSITIONS
    )
    processor = Processor(
        tokenizer,
        image=ImageSettings(min_pixels=least_pixels, max_pixels=512 * 512),
        video=VideoSettings(min_pixels=2 * 32 * 32, max_pixels=32 * 256 * 256, max_frames=32),
    )
    config: dict[str, Any] = backbone_config(tokenizer)
    config["text_config"] |= {
        "head_dim": 32,
        "max_position_embeddings": POSITIONS,
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True},
        "initializer_range": _WEIGHT_SCALE,
    }
    config["vision_config"] |= {"initializer_range": _WEIGHT_SCALE}
    model = Qwen3VL(Qwen3VLConfig.from_dict(config), rngs=nnx.Rngs(seed), dtype=jnp.float32)
    # As model and processor are known outside their family.
    write_new(
        folder, cast(family.CaptionModel, model), config, cast(family.Processor, processor), dtype=jnp.float32
    )
    return sum(leaf.size for leaf in nnx.to_flat_state(nnx.state(model)).leaves)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    count = write_judge(args.out, args.seed)
    print(f"{args.out}: a random judge with {count:,} parameters")


if __name__ == "__main__":
    main()
