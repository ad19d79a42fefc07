"""The policy split for training: programs that whoever asks shares."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests.tiny_policy import tiny_model, tiny_prompts
from vcap_jax.models.lora import LoraConfig, attach
from vcap_jax.models.policy import (
    Policy,
    frozen_vision_encoder,
    split_adapters,
    split_model,
    vision_encoder,
)


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


def test_what_stands_behind_the_end_of_a_caption_is_no_text() -> None:
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: " ".join(map(str, ids)) + "\n")
    policy = Policy(*split_model(tiny_model(), ("visual",)), SimpleNamespace(tokenizer=tokenizer))  # type: ignore[arg-type]
    assert policy.texts(np.array([[5, 6, 7], [8, 9, 0]]), np.array([3, 1])) == ("5 6 7", "8")


def test_the_anchor_of_adapters_keeps_their_digits_and_another_is_rounded() -> None:
    model, processor = tiny_model(), SimpleNamespace()
    attach(model, LoraConfig(rank=2))
    adapters = Policy(*split_adapters(model), processor)  # type: ignore[arg-type]
    whole = Policy(*split_model(tiny_model(), ("visual",)), processor)  # type: ignore[arg-type]
    for policy, dtype in ((adapters, "float32"), (whole, "bfloat16")):
        anchor = jax.tree.leaves(policy.reference_params("bfloat16"))
        assert {leaf.dtype.name for leaf in anchor} == {dtype}
