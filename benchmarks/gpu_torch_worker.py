"""The transformers side of benchmarks/gpu.py: the same widths, layers and lengths in bfloat16, on the same GPU.

Runs in an environment with torch and transformers; imports nothing of this package. Reads a job as JSON from standard
input and prints a line of JSON per measurement. Every sequence has its own copy of the prompt.

generate: 8 sequences under the paper's sampling rules; the time per token is the difference of two lengths, so that
prefill is no part of it. backward: log-probabilities of the captions and their gradient, one sequence after
another, layers computed again as on the other side.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

FEW, MANY = 16, 144
DEVICE = "cuda"


def build(config: dict[str, Any], layers: int, attention: str) -> Any:
    """The model with random weights, made on the GPU."""
    config = json.loads(json.dumps(config))
    config["text_config"]["num_hidden_layers"] = layers
    settings = Qwen3VLConfig(**config)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(DEVICE):
            model = Qwen3VLForConditionalGeneration._from_config(settings, attn_implementation=attention)
    finally:
        torch.set_default_dtype(before)
    for parameter in model.model.visual.parameters():
        parameter.requires_grad_(False)
    return model


def timed(call: Callable[[], Any]) -> float:
    """Seconds on the GPU."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def generate(model: Any, prompt: int, sequences: int, vocabulary: int) -> dict[str, Any]:
    """Seconds per token of all sequences together."""
    model.eval()
    tokens = torch.randint(0, vocabulary, (1, prompt), device=DEVICE).repeat(sequences, 1)
    rules = {"do_sample": True, "top_k": 50, "top_p": 0.9, "temperature": 1.0, "repetition_penalty": 1.05}

    def run(count: int) -> None:
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
            **rules,
        )
        if out.shape[1] != prompt + count:
            raise RuntimeError(f"generate gave {out.shape[1] - prompt} tokens instead of {count}")

    run(FEW)
    few, many = timed(lambda: run(FEW)), timed(lambda: run(MANY))
    seconds = (many - few) / (MANY - FEW)
    return {"seconds_per_token": seconds, "tokens_per_second": sequences / seconds, "with_prefill": few}


def backward(model: Any, prompt: int, caption: int, sequences: int, vocabulary: int) -> dict[str, Any]:
    """Seconds for the gradient of all sequences."""
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def one() -> None:
        tokens = torch.randint(0, vocabulary, (1, prompt + caption), device=DEVICE)
        # One more than the captions: the last token of the prompt predicts the first of the caption.
        logits = model(input_ids=tokens, logits_to_keep=caption + 1, use_cache=False).logits
        scores = logits[0, :-1].float()
        torch.nn.functional.cross_entropy(scores, tokens[0, prompt:]).backward()

    def run() -> None:
        for _ in range(sequences):
            one()

    one()
    seconds = timed(run)
    model.zero_grad(set_to_none=True)
    return {"seconds": seconds}


def main() -> None:
    """The command."""
    job = json.load(sys.stdin)
    if not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} in {sys.executable} sees no GPU")
    vocabulary = job["config"]["text_config"]["vocab_size"] - 1000  # no placeholder tokens
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    for task in job["tasks"]:
        row = {"task": task} | versions
        try:
            model = build(job["config"], task["layers"], job["attention"])
            if task["part"] == "decode":
                found = generate(model, task["prompt"], task["captions"], vocabulary)
            else:
                found = backward(model, task["prompt"], task["caption"], task["captions"], vocabulary)
            row |= found | {"peak_bytes": torch.cuda.max_memory_allocated()}
        except torch.cuda.OutOfMemoryError as error:
            row["failed"] = f"out of memory: {str(error).splitlines()[0]}"
        except Exception as error:
            traceback.print_exc()
            row["failed"] = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
        print(json.dumps(row), flush=True)
        model = None
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
