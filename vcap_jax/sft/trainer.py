"""The loop of supervised fine-tuning: read, pad, update, log, save.

As in GRPO, what a step does depends on the configuration, the state, the step number and the place in the data
alone, and all are in a checkpoint: a run that was killed and resumed ends bit for bit like one left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from vcap_jax.checkpoint import Checkpointer
from vcap_jax.compile_counter import CompileCounter
from vcap_jax.data.examples import Example
from vcap_jax.data.pipeline import GroupIterator
from vcap_jax.grpo.optimizer import TrainState
from vcap_jax.grpo.trainer import TrainingStopped, stop_on_signal
from vcap_jax.policy import Params
from vcap_jax.qwen3_vl.inputs import PromptBatch
from vcap_jax.qwen3_vl.processing import Buckets, collate
from vcap_jax.report.metrics import MetricsWriter
from vcap_jax.report.progress import Progress, Shown
from vcap_jax.sft.config import SFTConfig
from vcap_jax.sft.step import SFTPrograms, TargetBatch
from vcap_jax.sft.targets import Targets, pad_captions

SHOWN = (
    Shown("nll", "nats/token", ".4f"),
    Shown("grad_norm", "gradient", ".2f"),
    Shown("lr", "lr", ".1e"),
    Shown("positions/real", "real", ".0%"),
    Shown("tokens_per_s/update", "tokens/s", ".0f"),
)


@dataclass(frozen=True)
class SupervisedTraining:
    """Everything a supervised run is made of; ``run`` goes through the steps.

    targets: the captions of every sample that ``data`` yields. max_tokens: of a caption. place: puts a host batch on
    the devices. learning_rate: step -> rate, for the log. save_every: steps between checkpoints.
    """

    config: SFTConfig
    total_steps: int
    programs: SFTPrograms
    frozen: Params
    data: GroupIterator
    targets: Targets
    max_tokens: int
    buckets: Buckets
    merge_size: int
    checkpoints: Checkpointer
    metrics: MetricsWriter
    progress: Progress
    place: Callable[[Any], Any]
    learning_rate: Callable[[int], Any]
    save_every: int

    def run(self, state: TrainState) -> TrainState:
        """Trains from ``state`` (donated) to the last step and saves; returns the final state.

        Raises TrainingStopped on SIGTERM, with everything that was done saved.
        """
        compiles = CompileCounter()
        with compiles, stop_on_signal() as stop_requested:
            for step in range(int(state.step), self.total_steps):
                begin, compiled = time.monotonic(), compiles.count
                batch = next(self.data)
                for bad in batch.skipped:
                    self.progress.message(f"skipped sample {bad.id}: {bad.reason}")
                read = time.monotonic()
                micro = self.micro_batches(batch.examples)
                tokens = sum(int(targets.lengths.sum()) for _, targets in micro)
                placed = [(self.place(prompt), self.place(targets)) for prompt, targets in micro]
                state, measured = self.programs.update(state, self.frozen, placed, tokens)
                row = {"step": step + 1} | {k: float(v) for k, v in jax.device_get(measured).items()}
                row["lr"] = float(self.learning_rate(step))
                row |= self._sizes(micro)
                row["data/skipped"] = self.data.skipped_total
                row |= {
                    "seconds/data": read - begin,
                    "seconds/step": time.monotonic() - begin,
                    "tokens_per_s/update": row["tokens/all"] / (time.monotonic() - read),
                    "compiles": compiles.count - compiled,
                }
                self.metrics.write(row)
                self.progress.update(step + 1, row)
                last = step + 1 == self.total_steps
                if last or stop_requested.is_set() or (step + 1) % self.save_every == 0:
                    self.checkpoints.save(step + 1, state, self.data.get_state())
                if stop_requested.is_set() and not last:
                    self.checkpoints.wait()
                    raise TrainingStopped(
                        f"stopped by a signal after step {step + 1}; continue with --resume"
                    )
        self.checkpoints.wait()
        return state

    def micro_batches(self, examples: Sequence[Example]) -> list[tuple[PromptBatch, TargetBatch]]:
        """The step's host batches. Its loss is a sum over groups, so their order is free: by size, so that prompts
        padded together are alike."""
        size = self.config.groups_per_micro_batch
        ordered = sorted(examples, key=lambda e: (len(e.prompt.tokens), self._longest(e)))
        micro = []
        for first in range(0, len(ordered), size):
            part = ordered[first : first + size]
            prompt = collate(
                [example.prompt for example in part],
                self.buckets,
                self.merge_size,
                names=[example.sample.id for example in part],
                batch_size=size,
            )
            longest = max(map(self._longest, part))
            width = min([b for b in self.config.caption_buckets if longest <= b] + [self.max_tokens])
            captions = self.targets.of([example.sample for example in part])
            rows = pad_captions(captions, width, groups=size, per_group=self.targets.per_sample)
            micro.append((prompt, TargetBatch(*rows)))
        return micro

    def _longest(self, example: Example) -> int:
        return max(map(len, self.targets.captions[example.sample.id]))

    def _sizes(self, micro: Sequence[tuple[PromptBatch, TargetBatch]]) -> dict[str, float]:
        """Real tokens of the step, and what share of the decoder's positions they are."""
        prompts = sum(int(prompt.lengths.sum()) for prompt, _ in micro)
        captions = sum(int(targets.lengths.sum()) for _, targets in micro)
        positions = sum(prompt.tokens.size + targets.tokens.size for prompt, targets in micro)
        return {
            "tokens/captions": captions,
            "tokens/all": prompts + captions,
            "positions/real": (prompts + captions) / positions,
        }
