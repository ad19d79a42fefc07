"""A step that was drawn ahead comes back from a checkpoint bit for bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.grpo.ahead import kept_step, known_step
from vcap_jax.rollout.engine import KnownCaptions
from vcap_jax.rollout.slots import SampledCaption, SampledGroup
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError

GROUPS, SIZE, TOKENS, WIDTH = 3, 2, 5, 4


def a_batch(*indices: int, names: str = "abc") -> Any:
    """Of the samples of those groups; ``names`` has that of each."""
    examples = [SimpleNamespace(sample=SimpleNamespace(id=names[index])) for index in indices]
    return SimpleNamespace(indices=indices, examples=examples)


def a_step() -> tuple[list[Any], list[SampledGroup], list[Any]]:
    """Three groups in batches of two, the last one padded."""
    rng = np.random.default_rng(0)
    groups = [
        SampledGroup(
            index,
            rng.integers(0, 2**31 - 1, (SIZE, TOKENS)).astype(np.int32),
            rng.integers(1, TOKENS + 1, SIZE).astype(np.int32),
            rng.random(SIZE) < 0.5,
            -rng.random((SIZE, TOKENS)).astype(np.float32),
        )
        for index in range(GROUPS)
    ]
    batches = [a_batch(2, 0), a_batch(1)]
    old = [jnp.asarray(-rng.random((2, SIZE, WIDTH)), jnp.float32) for _ in batches]
    return batches, groups, old


def test_captions_and_their_log_probabilities_come_back(tmp_path: Path) -> None:
    batches, groups, old = a_step()
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, {"a": np.zeros(1)}, ahead=kept_step(batches, groups, old))
        checkpoints.save(2, {"a": np.zeros(1)})
        checkpoints.wait()
    with Checkpointer(tmp_path, read_only=True) as checkpoints:
        assert checkpoints.ahead(2) is None
        arrays = checkpoints.ahead(1)
        assert arrays is not None
        assert sorted(checkpoints.stored(1)) == ["a"]
    found = known_step(arrays)
    assert list(found.groups) == list(range(GROUPS))
    for ours, theirs in zip(found.groups.values(), groups, strict=True):
        for name in ("tokens", "lengths", "truncated", "logprobs"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
    rows = {2: old[0][0], 0: old[0][1], 1: old[1][0]}
    for index, logprobs in found.old.items():
        np.testing.assert_array_equal(logprobs, rows[index])
        assert logprobs.dtype == np.float32


def test_captions_are_known_to_be_of_the_samples_that_they_were_drawn_for(tmp_path: Path) -> None:
    batches, groups, old = a_step()
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, {"a": np.zeros(1)}, ahead=kept_step(batches, groups, old))
        arrays = dict(checkpoints.ahead(1) or {})
    assert known_step(arrays).others_than(a_batch(0, 1, 2)) == []
    assert known_step(arrays).others_than(a_batch(0, 2)) == []  # a process's share
    # The first sample is gone, and the others have moved up.
    assert known_step(arrays).others_than(a_batch(0, 1, 2, names="bcd")) == ["b", "c", "d"]
    assert known_step(arrays).others_than(a_batch(0, 1, 2, names="abd")) == ["d"]


def test_captions_of_an_engine_that_gives_no_log_probabilities_are_known() -> None:
    arrays = dict(kept_step(*a_step()))
    del arrays["logprobs"]
    known = known_step(arrays)
    assert all(group.logprobs is None for group in known.groups.values())
    assert list(known.groups) == list(range(GROUPS))


def test_other_arrays_are_refused() -> None:
    with pytest.raises(CheckpointError, match="the captions drawn ahead are tokens, not index, tokens"):
        known_step({"tokens": np.zeros(1)})
    arrays = dict(kept_step(*a_step()))
    del arrays["samples"]
    with pytest.raises(CheckpointError, match=r"truncated, not .*, old, samples: start a new run folder"):
        known_step(arrays)


def test_captions_that_are_known_come_as_from_an_engine() -> None:
    batches, groups, _ = a_step()
    heard: list[SampledCaption] = []
    engine = KnownCaptions({group.index: group for group in groups})
    nothing: Any = None
    for group in engine.stream(nothing, batches, step=1, ended=heard.append):
        own = heard[-SIZE:]
        assert [(c.index, c.place) for c in own] == [(group.index, place) for place in range(SIZE)]
        for caption, tokens, length in zip(own, group.tokens, group.lengths, strict=True):
            np.testing.assert_array_equal(caption.tokens, tokens[:length])
    assert [caption.index for caption in heard[::SIZE]] == [2, 0, 1]
    assert engine.measured() == {}
