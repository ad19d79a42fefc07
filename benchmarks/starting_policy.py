"""What the embedded world's starting policy knows before any reinforcement learning, beside what it says.

    python benchmarks/starting_policy.py                     # 64 held-out images and 64 clips
    python benchmarks/starting_policy.py --policy FOLDER --scenes 256 --out known.json

It is shown each scene and led through a full, true caption word by word (teacher forcing). Wherever that caption names
a shape, colour, size, motion or background, the policy's probabilities of all the words that could stand there are
compared: what it knows is the share of places where the true word is the most probable one. The time of the cut is
several tokens and left out. What the policy says of its own accord is the `start` row of a run's summary.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vcap_jax.models.buckets import Buckets
from vcap_jax.models.message import ImagePart, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.inputs import PromptBatch
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.processing import Processor, collate
from vcap_jax.models.qwen3_vl.weights import load_pretrained
from vcap_jax.sft.targets import pad_captions
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.captions import VALUES, full_caption
from vcap_jax.world.grammar import IMAGE_PROMPT
from vcap_jax.world.rendering import render_image, render_video
from vcap_jax.world.scenes import IMAGE_PLACES, VIDEO_FPS, VIDEO_PLACES, ImageScene, Modality, sample_scene
from vcap_jax.world.video_grammar import VIDEO_PROMPT

SPLIT = "heldout"
BATCH = 16
TOKENS = 96
"""Of a full caption at most."""


def words_of(processor: Processor) -> dict[int, tuple[int, ...]]:
    """Token id of every value -> ids of all values of its attribute; those of several tokens are absent."""
    known: dict[int, tuple[int, ...]] = {}
    for values in VALUES.values():
        spelled = [
            processor.tokenizer(f" {value}", add_special_tokens=False)["input_ids"] for value in values
        ]
        ids = tuple(tokens[0] for tokens in spelled if len(tokens) == 1)
        known |= dict.fromkeys(ids, ids)
    return known


def place_tokens(processor: Processor) -> frozenset[int]:
    """What stands before "left" and "right" where they name a place and not a motion."""
    words = {place.split()[0] for place in (*IMAGE_PLACES, *VIDEO_PLACES)}
    return frozenset(
        processor.tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in words
    )


def prompts(
    processor: Processor, modality: Modality, count: int
) -> list[tuple[PromptBatch, list[list[int]]]]:
    """Batches of encoded scenes with the tokens of a full caption of each."""
    made = []
    for first in range(0, count, BATCH):
        encoded, captions = [], []
        for index in range(first, min(first + BATCH, count)):
            scene = sample_scene(modality, 0, index, SPLIT)
            if isinstance(scene, ImageScene):
                parts = [ImagePart(render_image(scene)), TextPart(IMAGE_PROMPT)]
            else:
                frames = render_video(scene)
                times = [k / VIDEO_FPS for k in range(len(frames))]
                parts = [VideoPart(frames, times), TextPart(VIDEO_PROMPT)]
            encoded.append(processor.encode(parts))
            text = full_caption(scene, np.random.default_rng(index))
            captions.append([*processor.tokenizer(text)["input_ids"], processor.eos_token_ids[0]])
        made.append((collate(encoded, Buckets(), processor.merge_size, batch_size=BATCH), captions))
    return made


def measure(model: Qwen3VL, processor: Processor, modality: Modality, count: int) -> dict[str, float | int]:
    """places: words that were compared; known: the true one was the most probable."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def logits_of(prompt: PromptBatch, captions: jax.Array) -> jax.Array:
        policy = nnx.merge(graphdef, state)
        hidden = policy.caption_hidden(prompt, policy.encode_vision(prompt.vision), captions)
        return policy.logits(hidden)[:, 0]

    words, before_places = words_of(processor), place_tokens(processor)
    places = known = 0
    for prompt, captions in prompts(processor, modality, count):
        tokens, _ = pad_captions([[c] for c in captions], TOKENS, groups=BATCH, per_group=1)
        logits = np.asarray(logits_of(prompt, jnp.asarray(tokens)))
        for row, caption in zip(logits, captions, strict=False):
            for position, token in enumerate(caption):
                others = words.get(token)
                if others and caption[position - 1] not in before_places:
                    places += 1
                    known += token == others[int(np.argmax(row[position, list(others)]))]
    return {"places": places, "known": int(known), "share": known / places}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", type=Path, default=BACKBONE_FOLDER, help="Hugging Face folder")
    parser.add_argument("--scenes", type=int, default=64, help="of each modality (default: 64)")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    processor = Processor.from_pretrained(args.policy)
    model = load_pretrained(args.policy, dtype=jnp.float32)
    modalities: tuple[Modality, ...] = ("image", "video")
    found = {modality: measure(model, processor, modality, args.scenes) for modality in modalities}
    for modality, row in found.items():
        print(
            f"{modality}s: {row['known']} of {row['places']} words, {row['share']:.1%}, of {args.scenes} scenes"
        )
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
