"""transformers' part of ``rollout.py``: captions by ``generate``, timed, as JSON on standard output.

Runs in an environment with torch and transformers; imports nothing of this package.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, nargs="+", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--greedy-tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration.from_pretrained(args.model, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(args.model)
    content = [{"type": "image"}, {"type": "text", "text": args.prompt}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)

    def generate(path: Path, count: int, **settings: Any) -> torch.Tensor:
        inputs = processor(text=[text], images=[Image.open(path).convert("RGB")], return_tensors="pt")
        with torch.inference_mode():
            drawn = model.generate(
                **inputs, max_new_tokens=count, min_new_tokens=count, use_cache=True, **settings
            )
        return drawn[:, inputs["input_ids"].shape[1] :]

    # Of a vision tower that runs once per picture, whatever the number of captions.
    entered, vision = [0.0], [0.0]

    def enter(*_: Any) -> None:
        entered[0] = time.perf_counter()

    def leave(*_: Any) -> None:
        vision[0] += time.perf_counter() - entered[0]

    model.model.visual.register_forward_pre_hook(enter)
    model.model.visual.register_forward_hook(leave)

    greedy = [
        generate(path, args.greedy_tokens, do_sample=False, repetition_penalty=1.0)[0].tolist()
        for path in args.pictures
    ]
    print(json.dumps({"greedy": greedy}), flush=True)
    sampling = {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.05}
    generate(args.pictures[0], 8, num_return_sequences=args.group_size, **sampling)
    seconds, tokens = [], 0
    vision[0] = 0.0
    for path in args.pictures:
        begin = time.perf_counter()
        drawn = generate(path, args.tokens, num_return_sequences=args.group_size, **sampling)
        seconds.append(time.perf_counter() - begin)
        tokens += drawn.numel()
    print(json.dumps({"seconds": sum(seconds), "vision": vision[0], "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
