"""The loop of supervised fine-tuning: read, pad, update, log, save.

As in GRPO, what a step does depends on the configuration, the state, the step number and the place in the data
alone, and all are in a checkpoint: a run that was killed and resumed ends bit for bit like one left alone.

Several processes go through the loop together: each reads and pads its share of a step's groups, and the update is over
the groups of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from vcap_jax.data.batching import common_sizes
from vcap_jax.data.errors import MediaError, NoUsableSamplesError, StorageError
from vcap_jax.data.examples import Example
from vcap_jax.data.pipeline import GroupIterator
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.family import Params, Processor, PromptBatch
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.parallel.sharding import Placement
from vcap_jax.report.metrics import Scalar
from vcap_jax.report.progress import Shown
from vcap_jax.sft.config import SFTConfig
from vcap_jax.sft.step import SFTPrograms, TargetBatch
from vcap_jax.sft.targets import Targets, pad_captions
from vcap_jax.system.shutdown import finishing, requested
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.training.compile_counter import CompileCounter
from vcap_jax.training.optimizer import TrainState
from vcap_jax.training.saving import (
    AfterKeeping,
    Place,
    between_steps,
    check_finite,
    no_work,
    save_before,
    save_step,
    stopped_in,
)

SHOWN = (
    Shown("nll", "nats/token", ".4f"),
    Shown("grad_norm", "gradient", ".2f"),
    Shown("lr", "lr", ".1e"),
    Shown("positions/real", "real", ".0%"),
    Shown("tokens_per_s/update", "tokens/s", ".0f"),
)


class Log(Protocol):
    """Where a supervised run tells what it does."""

    def message(self, text: str) -> None:
        """Something the user should know."""
        ...

    def step(self, row: Mapping[str, Scalar], /) -> None:
        """A step has ended; its checkpoint follows."""
        ...


@dataclass(frozen=True)
class StepBatches:
    """A step's host batches, ready to be placed.

    micro: this process's part of each micro-batch; all processes' parts of one have the same shapes. prompts, captions:
    real tokens of all processes. positions: of the decoder, all processes', padding included.
    """

    micro: Sequence[tuple[PromptBatch, TargetBatch[np.ndarray]]]
    prompts: int
    captions: int
    positions: int

    def metrics(self) -> dict[str, float]:
        """Real tokens of the step, and what share of the decoder's positions they are."""
        real = self.prompts + self.captions
        return {
            "tokens/captions": self.captions,
            "tokens/all": real,
            "positions/real": real / self.positions,
        }


@dataclass(frozen=True)
class SupervisedTraining:
    """Everything a supervised run is made of; ``run`` goes through the steps.

    targets: the captions of every sample that ``data`` yields. max_tokens: of a caption. learning_rate: step -> rate,
    for the log. save_every: steps between checkpoints. between: see ``vcap_jax.grpo.trainer.Training``.
    """

    config: SFTConfig
    total_steps: int
    programs: SFTPrograms
    frozen: Params
    data: GroupIterator[Example]
    targets: Targets
    max_tokens: int
    buckets: Buckets
    processor: Processor
    checkpoints: Checkpointer
    log: Log
    placement: Placement
    learning_rate: Callable[[int], jax.Array | float]
    save_every: int
    processes: Processes = ALONE
    between: Callable[[int, Params], AfterKeeping] = no_work

    def run(self, state: TrainState) -> TrainState:
        """Trains from ``state`` (donated) to the last step and saves; returns the final state.

        Raises Stopped after a signal to any process, and TrainingStopped for data that cannot be used any more, with
        everything that was done saved; NotFinite if the parameters have become no numbers; PeerFailed if another
        process ends.
        """
        compiles, local = CompileCounter(), self.placement.local()
        with compiles, finishing("the step in work"):
            done = int(state.step)
            between_steps(self.between, self.checkpoints, done, state, Place(self.data.get_state()))
            for step in range(done, self.total_steps):
                begin, compiled = time.monotonic(), compiles.count
                place = Place(self.data.get_state())
                try:
                    batch = next(self.data)
                except (MediaError, NoUsableSamplesError, StorageError) as error:  # in all processes alike
                    save_before(self.checkpoints, step, state, place)
                    raise stopped_in(step, error) from error
                for bad in batch.skipped:
                    self.log.message(str(bad))
                read = time.monotonic()
                batches = self.batches(batch.examples)
                placed = [
                    (self.placement.join(local.batch(prompt)), self.placement.join(local.batch(targets)))
                    for prompt, targets in batches.micro
                ]
                state, measured = self.programs.update(state, self.frozen, placed, batches.captions)
                row = {"step": step + 1} | {k: float(v) for k, v in jax.device_get(measured).items()}
                check_finite(row["grad_norm"], self.checkpoints, step + 1)
                row["lr"] = float(self.learning_rate(step))
                row |= batches.metrics()
                row["data/skipped"] = self.data.skipped_total
                row |= {
                    "seconds/data": read - begin,
                    "seconds/step": time.monotonic() - begin,
                    "tokens_per_s/update": row["tokens/all"] / (time.monotonic() - read),
                    "compiles": compiles.count - compiled,
                }
                self.log.step(row)
                stop = any(self.processes.all_gather_objects("end of step", requested()))
                save_step(
                    self.checkpoints,
                    step + 1,
                    self.total_steps,
                    state,
                    Place(self.data.get_state()),
                    every=self.save_every,
                    stop=stop,
                )
                # What the step has on the devices goes before the next one's pictures come.
                del batch, batches, placed
                between_steps(self.between, self.checkpoints, step + 1, state, Place(self.data.get_state()))
            self.checkpoints.wait()
        return state

    def batches(self, examples: Sequence[Example]) -> StepBatches:
        """The step's batches, from this process's share of its examples. Its loss is a sum over groups, so their order
        is free: by the number of captions and by size, so that what is padded together is alike, whichever process
        brings it. All processes must call it together."""
        size = self.config.groups_per_micro_batch // self.processes.count
        # First by the number: a sample with many captions would have as many places made for each one beside it.
        ordered = sorted(examples, key=lambda e: (self._places(e), len(e.prompt.tokens), self._longest(e)))
        parts = [ordered[first : first + size] for first in range(0, len(ordered), size)]
        names = [[example.sample.id for example in part] for part in parts]
        prompts = [[example.prompt for example in part] for part in parts]
        sizes = [
            self.processor.padded_sizes(part, self.buckets, named)
            for part, named in zip(prompts, names, strict=True)
        ]
        needed = [(max(map(self._longest, part)), max(map(self._places, part))) for part in parts]
        gathered = zip(*self.processes.all_gather_objects("longest captions", needed), strict=True)
        micro = []
        for part, named, padded, of_all in zip(
            prompts, names, common_sizes(self.processes, sizes), gathered, strict=True
        ):
            longest, places = map(max, zip(*of_all, strict=True))
            prompt = self.processor.collate(part, self.buckets, names=named, batch_size=size, sizes=padded)
            fitting = [bucket for bucket in self.config.caption_buckets if longest <= bucket]
            width = columns_for(min([*fitting, self.max_tokens]))
            captions = [self.targets.captions[name] for name in named]
            rows = pad_captions(captions, width, groups=size, per_group=places)
            micro.append((prompt, TargetBatch(*rows)))
        own = [
            sum(int(prompt.lengths.sum()) for prompt, _ in micro),
            sum(int(targets.lengths.sum()) for _, targets in micro),
        ]
        told = self.processes.all_gather_objects("tokens of the step", own)
        positions = sum(prompt.tokens.size + targets.tokens.size for prompt, targets in micro)
        return StepBatches(
            micro=micro,
            prompts=sum(prompts for prompts, _ in told),
            captions=sum(captions for _, captions in told),
            positions=positions * self.processes.count,
        )

    def _longest(self, example: Example) -> int:
        return max(map(len, self.targets.captions[example.sample.id]))

    def _places(self, example: Example) -> int:
        return self.targets.places(len(self.targets.captions[example.sample.id]))
