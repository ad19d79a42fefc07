"""transformers' part of ``captioning.py``: greedy captions by ``generate``, timed, as JSON on standard output.

Runs in an environment with torch and transformers; imports nothing of this package.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, nargs="+", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = Qwen3VLForConditionalGeneration.from_pretrained(args.model, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(args.model)
    processor.tokenizer.padding_side = "left"
    content = [{"type": "image"}, {"type": "text", "text": args.prompt}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)

    def captions(paths: list[Path]) -> list[str]:
        pictures = [[Image.open(path).convert("RGB")] for path in paths]
        inputs = processor(text=[text] * len(paths), images=pictures, return_tensors="pt", padding=True)
        with torch.inference_mode():
            drawn = model.generate(
                **inputs, max_new_tokens=args.tokens, do_sample=False, repetition_penalty=1.0
            )
        new = drawn[:, inputs["input_ids"].shape[1] :]
        return processor.batch_decode(new, skip_special_tokens=True)

    captions(args.pictures[: args.batch])
    begin = time.perf_counter()
    texts = [
        caption
        for first in range(0, len(args.pictures), args.batch)
        for caption in captions(args.pictures[first : first + args.batch])
    ]
    seconds = time.perf_counter() - begin
    print(json.dumps({"texts": texts, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
