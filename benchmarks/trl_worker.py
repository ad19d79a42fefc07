"""The TRL side of benchmarks/grpo_step.py and gpu_step.py: GRPOTrainer, one line of JSON per step.

Runs in an environment with torch, transformers and trl; imports nothing of this package.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets import Dataset
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def length_reward(completions: list[Any], **_: Any) -> list[float]:
    """A reward that costs nothing and spreads: the share of letters "e" in the text."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    texts = [text if isinstance(text, str) else text[0]["text"] for text in texts]
    return [text.count("e") / max(len(text), 1) for text in texts]


class StepClock(TrainerCallback):
    """Notes the seconds of every optimizer step, generation included."""

    def __init__(self) -> None:
        self.began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        seconds = time.perf_counter() - self.began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
        print(json.dumps({"step_seconds": seconds, "peak_bytes": peak}), flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, required=True, help="folder of PNG files, one prompt each")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--beta", type=float, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--prompts-per-step", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument(
        "--gpu", action="store_true", help="all in bfloat16, a group in a pass, gradient checkpointing"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration.from_pretrained(
        args.model, dtype=torch.bfloat16 if args.gpu else torch.float32
    )
    # As in the paper: the vision tower and its mergers are frozen.
    for parameter in model.model.visual.parameters():
        parameter.requires_grad_(False)
    files = sorted(args.pictures.glob("*.png"))
    question = [{"role": "user", "content": args.prompt}]
    rows = Dataset.from_list([{"prompt": question, "image": str(f)} for f in files])
    rows = rows.cast_column("image", datasets.Image())
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            # Captions of a step are written together; a GPU's memory holds one group's log-probabilities.
            per_device_train_batch_size=args.group_size * (1 if args.gpu else args.prompts_per_step),
            gradient_accumulation_steps=args.prompts_per_step if args.gpu else 1,
            num_generations=args.group_size,
            max_completion_length=args.tokens,
            beta=args.beta,
            learning_rate=args.learning_rate,
            loss_type="grpo",
            temperature=1.0,
            # Every caption takes all its tokens, so that both sides do the same work.
            generation_kwargs={"min_new_tokens": args.tokens, "max_new_tokens": args.tokens},
            max_steps=args.steps,
            bf16=False,  # no autocast: the weights are in the type that is computed in
            gradient_checkpointing=args.gpu,
            use_cpu=not (args.gpu and torch.cuda.is_available()),
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            shuffle_dataset=False,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=length_reward,
            args=config,
            train_dataset=rows,
            processing_class=AutoProcessor.from_pretrained(args.model),
            callbacks=[StepClock()],
        )
        trainer.train()
    for row in trainer.state.log_history:
        if "completions/mean_length" in row:
            kept = ("completions/mean_length", "reward_std", "kl", "loss", "grad_norm")
            print(json.dumps({"log": {key: row.get(key) for key in kept}}), flush=True)


if __name__ == "__main__":
    main()
