"""The loop of supervised training, with an update that computes nothing."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.processes_in_threads import in_threads
from vcap_jax.data.errors import MediaError
from vcap_jax.data.examples import Example
from vcap_jax.models.buckets import PaddedSizes
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.run.log import SilentLog
from vcap_jax.sft.config import SFTConfig
from vcap_jax.sft.targets import Targets
from vcap_jax.sft.trainer import StepBatches, SupervisedTraining
from vcap_jax.system.shutdown import Stopped, TrainingStopped
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.training.optimizer import TrainState
from vcap_jax.training.saving import NotFinite

NOTHING: Any = None
BATCHES = SupervisedTraining.batches
"""As it is; most tests have nothing in its place."""


class Data:
    """Batches without samples; one of them cannot be read."""

    skipped_total = 0

    def __init__(self, broken: int | None = None) -> None:
        self._read, self._broken = 0, broken

    def __next__(self) -> Any:
        self._read += 1
        if self._read == self._broken:
            raise MediaError("sample 7: 7.png: cut")
        return SimpleNamespace(examples=(), skipped=())

    def get_state(self) -> dict[str, int]:
        return {"read": self._read}


class Programs:
    """Counts steps; the gradient of one of them is no number."""

    def __init__(self, lost: int | None = None) -> None:
        self._lost = lost

    def update(self, state: TrainState, *_: Any) -> tuple[TrainState, dict[str, Any]]:
        done = int(state.step) + 1
        norm = jnp.float32(np.nan if done == self._lost else 1)
        return TrainState(jnp.int32(done), state.params, state.opt_state), {
            "nll": jnp.float32(1),
            "grad_norm": norm,
        }


class Log(SilentLog):
    """Keeps the steps that it is told of."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.rates: list[float] = []

    def step(self, report: Any) -> None:
        self.steps.append(report["step"])
        self.rates.append(report["lr"])


@pytest.fixture(autouse=True)
def _empty_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = StepBatches(micro=(), prompts=1, captions=1, positions=2)
    monkeypatch.setattr(SupervisedTraining, "batches", lambda *_: empty)


def example(name: str, tokens: int) -> Example:
    prompt: Any = SimpleNamespace(tokens=np.zeros(tokens, np.int32))
    sample: Any = SimpleNamespace(id=name)
    return Example(sample=sample, request="", prompt=prompt, media=NOTHING)


class Pads:
    """A processor that pads prompts to the longest."""

    def padded_sizes(self, prompts: Any, buckets: Any, names: Any) -> PaddedSizes:
        return PaddedSizes(tokens=max(len(prompt.tokens) for prompt in prompts))

    def collate(self, prompts: Any, buckets: Any, *, names: Any, batch_size: int, sizes: PaddedSizes) -> Any:
        lengths = np.array([len(prompt.tokens) for prompt in prompts])
        return SimpleNamespace(
            names=names, lengths=lengths, tokens=np.zeros((batch_size, sizes.tokens), np.int32)
        )


def made_of(captions: dict[str, tuple[int, ...]], *samples: str, processes: Processes = ALONE) -> StepBatches:
    """Micro-batches of two of the samples. captions: how long those of each sample are. A prompt is as long as its
    sample's place in ``samples``."""
    targets = Targets(
        {name: tuple(np.ones(length, np.int32) for length in lengths) for name, lengths in captions.items()},
        {},
        0,
    )
    processor: Any = Pads()
    training = SupervisedTraining(
        config=SFTConfig(
            groups_per_step=4, groups_per_micro_batch=2 * processes.count, caption_buckets=(128,)
        ),
        total_steps=1,
        programs=NOTHING,
        frozen=NOTHING,
        data=NOTHING,
        targets=targets,
        max_tokens=256,
        buckets=NOTHING,
        processor=processor,
        checkpoints=NOTHING,
        log=Log(),
        placement=NOTHING,
        learning_rate=lambda step: 0.1,
        save_every=1,
        processes=processes,
    )
    return BATCHES(training, [example(name, tokens) for tokens, name in enumerate(samples, 1)])


def batched(*given: Any, **more: Any) -> list[tuple[list[str], tuple[int, ...], int]]:
    """Of each micro-batch of ``made_of``: the samples' names, the shape of their captions, how many captions are
    real."""
    made = made_of(*given, **more)
    return [
        (list(prompt.names), rows.tokens.shape, int((rows.lengths > 0).sum()))  # type: ignore[attr-defined]
        for prompt, rows in made.micro
    ]


def test_a_sample_with_many_captions_makes_no_other_micro_batch_dear() -> None:
    captions = {"a": (3,) * 20, "b": (3,), "c": (3, 4), "d": (3,), "e": (3,) * 3, "f": (130,)}
    assert batched(captions, *"abcdef") == [
        (["b", "d"], (2, 1, 128), 2),
        (["f", "c"], (2, 2, 256), 3),
        (["e", "a"], (2, 20, 128), 23),
    ]


def test_samples_with_equally_many_captions_are_batched_by_size_alone() -> None:
    captions = dict.fromkeys("abcd", (3, 4, 5))
    assert batched(captions, *"cbad") == [(["c", "b"], (2, 3, 128), 6), (["a", "d"], (2, 3, 128), 6)]


def test_all_processes_make_places_for_the_most_captions_of_any() -> None:
    captions = {"a": (3,), "b": (3,), "c": (3,), "d": (3,) * 5, "x": (3,) * 9}
    shares = ["ab", "cd"]
    told = in_threads(2, lambda one: batched(captions, *shares[one.index], processes=one))
    assert told == [[(["a", "b"], (2, 8, 128), 2)], [(["c", "d"], (2, 8, 128), 6)]]


def test_all_processes_know_the_tokens_of_the_whole_step() -> None:
    """The loss is a mean over them: with its own alone each would take a larger step."""
    captions = {"a": (3, 4), "b": (5,), "c": (6,), "d": (7,)}
    shares = ["ab", "cd"]
    told = in_threads(2, lambda one: made_of(captions, *shares[one.index], processes=one).metrics())
    # Two prompts of at most two tokens, and places for four captions of 128, on each.
    real, positions = 2 * (1 + 2) + 25, 2 * (2 * 2 + 2 * 2 * 128)
    expected = {"tokens/captions": 25, "tokens/all": real, "positions/real": real / positions}
    assert told == [expected] * 2


def run(
    checkpoints: Checkpointer,
    log: Log,
    data: Any,
    programs: Any,
    save_every: int,
    processes: Processes = ALONE,
) -> None:
    placement: Any = SimpleNamespace(local=lambda: None)
    state = TrainState(step=jnp.int32(0), params={"w": jnp.float32(1)}, opt_state=())
    SupervisedTraining(
        config=SFTConfig(),
        total_steps=4,
        programs=programs,
        frozen=NOTHING,
        data=data,
        targets=NOTHING,
        max_tokens=1,
        buckets=NOTHING,
        processor=NOTHING,
        checkpoints=checkpoints,
        log=log,
        placement=placement,
        learning_rate=float,
        save_every=save_every,
        processes=processes,
    ).run(state)


def test_a_steps_batches_are_gone_when_the_next_step_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold all pixels of a step, on the devices too."""
    made, alive = list[Any](), list[int]()

    def batches(*_: Any) -> StepBatches:
        alive.append(sum(one() is not None for one in made))
        new = StepBatches(micro=(), prompts=1, captions=1, positions=2)
        made.append(weakref.ref(new))
        return new

    monkeypatch.setattr(SupervisedTraining, "batches", batches)
    with Checkpointer(tmp_path) as checkpoints:
        run(checkpoints, Log(), Data(), Programs(), save_every=9)
    assert alive == [0] * 4


def test_parameters_that_are_no_numbers_are_neither_logged_nor_saved(tmp_path: Path) -> None:
    log = Log()
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(NotFinite, match=r"^step 3: .* nan.* checkpoint of step 2 "):
            run(checkpoints, log, Data(), Programs(lost=3), save_every=1)
        assert checkpoints.steps() == [1, 2]
    assert log.steps == [1, 2]
    assert log.rates == [0, 1]  # of the update that the row is of


def test_a_stop_of_another_process_ends_this_one_with_the_step_saved(tmp_path: Path) -> None:
    others: Any = SimpleNamespace(all_gather_objects=lambda what, value: [value, what == "end of step"])
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(Stopped, match="after step 1 of 4, which is saved"):
            run(checkpoints, Log(), Data(), Programs(), save_every=9, processes=others)
        assert checkpoints.steps() == [1]


def test_what_was_done_before_a_sample_that_cannot_be_read_is_saved(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(TrainingStopped, match=r"^step 3: sample 7: .* 2 steps before it are saved"):
            run(checkpoints, Log(), Data(broken=3), Programs(), save_every=9)
        assert checkpoints.steps() == [2]
        _, place = checkpoints.restore({"step": np.zeros((), np.int32)}, partial=True)
        assert place == {"read": 2}
