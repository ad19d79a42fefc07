"""The policy split for training: programs that whoever asks shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from tests.tiny_policy import tiny_model, tiny_prompts
from vcap_jax.models.policy import Policy, frozen_vision_encoder, split_model, vision_encoder


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the programs that are compiled."""
    names: list[str] = []

    def listen(event: str, _: float, **more: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(more["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_frozen_tower_looks_without_what_is_trained_and_is_compiled_once(compiled: list[str]) -> None:
    """Every evaluation of a run asks for it anew; trained parameters may lie in the host's memory, or be given up."""
    processor: Any = None
    policy = Policy(*split_model(tiny_model(), ("visual",)), processor)
    prompt = tiny_prompts(2)
    expected = vision_encoder(policy.graphdef)(policy.trainable, policy.frozen, prompt)
    first = frozen_vision_encoder(policy)(policy.trainable, policy.frozen, prompt)
    compiled.clear()
    for leaf in jax.tree.leaves(policy.trainable):
        leaf.delete()
    again = frozen_vision_encoder(policy)(policy.trainable, policy.frozen, prompt)
    assert compiled == []
    for ours, other, theirs in zip(*map(jax.tree.leaves, (again, first, expected)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(other, theirs)
