"""A GRPO step with adapters: they move, the base does not, and it is the reference of the KL term."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.models.qwen3_vl.checkpoints import load_pretrained, save_pretrained
from tests.models.test_lora import hidden
from tests.tiny_policy import VOCABULARY, tiny_model, tiny_prompts
from vcap_jax.grpo.objective import ObjectiveConfig, step_totals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.models.lora import LoraConfig, attach
from vcap_jax.models.policy import Policy, split_adapters
from vcap_jax.models.weight_map import flat_parameters
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.rollout.vllm_weights import WeightFiles
from vcap_jax.training.checkpoint import Checkpointer

GROUPS, SIZE, TOKENS, STEPS = 2, 3, 6, 2


def captions() -> CaptionBatch:
    rng = np.random.default_rng(1)
    return CaptionBatch(
        tokens=jnp.asarray(rng.integers(9, VOCABULARY, (GROUPS, SIZE, TOKENS)), jnp.int32),
        lengths=jnp.full((GROUPS, SIZE), TOKENS, jnp.int32),
        advantages=jnp.asarray(rng.normal(size=(GROUPS, SIZE)), jnp.float32),
        contributes=jnp.ones((GROUPS, SIZE), bool),
    )


@pytest.fixture(scope="module")
def trained():
    """(starting policy, state, KL of each step) of a few updates."""
    model = tiny_model()
    attach(model, LoraConfig(rank=2))
    policy = Policy(*split_adapters(model), processor=None)
    programs = UpdatePrograms(
        policy.graphdef, ObjectiveConfig(beta=0.1), optax.adam(1e-2), temperature=1.0, logprob_chunk=4
    )
    state = programs.initial_state(policy.trainable, Placement.build(MeshConfig(fsdp=1)))
    # Without a picture: the adapters are all in the decoder, and there is less to compile.
    prompt, features, batch = dataclasses.replace(tiny_prompts(GROUPS), vision=None), None, captions()
    totals = step_totals(batch.lengths, batch.contributes, 1)
    anchor = programs.logprobs(
        policy.reference_params("float32"), policy.frozen, prompt, features, batch.tokens
    )
    divergences = []
    for _ in range(STEPS):
        gradients, metrics, _ = programs.accumulate(
            state.params,
            policy.frozen,
            programs.zeros(state.params),
            prompt,
            features,
            batch,
            totals,
            None,
            anchor,
        )
        divergences.append(float(metrics["kl"]))
        state, _ = programs.apply(state, gradients)
    return policy, state, divergences


def test_the_base_is_the_reference_and_stays(trained):
    policy, state, divergences = trained
    assert divergences[0] == pytest.approx(0, abs=1e-12)
    assert divergences[1] > 1e-6
    plain = tiny_model()
    for name, array in flat_parameters(plain).items():
        np.testing.assert_array_equal(flat_parameters(policy.frozen)[name], array, err_msg=name)
    for name, array in flat_parameters(state.params).items():
        # The gradient of a fresh adapter's `a` is zero, that of the second step no more.
        assert not np.array_equal(array, flat_parameters(policy.trainable)[name]), name


def test_the_anchor_of_adapters_that_a_run_starts_from_is_them(trained):
    policy, state, _ = trained
    moved = dataclasses.replace(policy, trainable=state.params)
    anchor = np.asarray(
        hidden(dataclasses.replace(moved, trainable=moved.reference_params("bfloat16")).merge())
    )
    np.testing.assert_array_equal(anchor, hidden(moved.merge()))
    assert np.abs(anchor - hidden(tiny_model())).max() > 1e-3


def test_what_is_exported_and_what_a_rollout_server_is_sent_is_the_adapted_policy(trained, tmp_path):
    policy, state, _ = trained
    model = dataclasses.replace(policy, trainable=state.params).merge()
    ours = np.asarray(hidden(model))
    save_pretrained(model, tmp_path / "merged")
    files = WeightFiles(tmp_path / "sent", policy.graphdef, policy.frozen, dtype=jnp.dtype("float32"))
    sent = files.write(state.params, "1")
    assert sent.adapters_kept == pytest.approx(1, abs=1e-4)
    for folder in (tmp_path / "merged", sent.folder):
        (folder / "model-head.safetensors").unlink(missing_ok=True)
        again = load_pretrained(folder, dtype=jnp.float32)
        np.testing.assert_allclose(hidden(again), ours, rtol=0, atol=2e-6 * np.abs(ours).max())


def test_a_checkpoint_holds_adapters_and_their_moments_alone(trained, tmp_path):
    policy, state, _ = trained
    with Checkpointer(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, state)
        stored = checkpoints.stored()
        restored, _ = checkpoints.restore(Placement.build(MeshConfig(fsdp=1)).abstract(state))
    arrays = [path for path, leaf in stored.items() if leaf.shape]
    assert arrays
    assert all(".adapter." in path for path in arrays)
    assert len(arrays) == 3 * len(jax.tree.leaves(policy.trainable))
    for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)
