"""Updates teach: the decoder what is answered and nothing that is asked, the tower what its probes ask for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.recipes.teaching.prompter import processor
from vcap_jax.recipes.teaching.corpus import Continuation, Packer, batched
from vcap_jax.recipes.teaching.probes import patch_targets, targets
from vcap_jax.recipes.teaching.pupil import Pupil, Spread
from vcap_jax.recipes.teaching.updates import (
    DecoderUpdates,
    TowerUpdates,
    Wanted,
    answer_loss,
    teaching_optimizer,
)
from vcap_jax.world.dataset import render, sample_scene
from vcap_jax.world.tiny_policy import Prompts, new_policy


def test_a_matrix_moves_by_an_orthogonal_step_whatever_its_gradient() -> None:
    """Muon's step has singular values near the learning rate; stacks are matrices side by side."""
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.zeros((2, 6, 4)), "scale": jnp.zeros(4)}
    rule = teaching_optimizer(params, 100, 0.1)
    state, update = rule.init(params), jax.jit(rule.update)
    for _ in range(12):
        gradients = {"kernel": jnp.asarray(rng.normal(size=(2, 6, 4))), "scale": jnp.ones(4)}
        updates, state = update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    for own in np.asarray(updates["kernel"]):
        values = np.linalg.svd(own, compute_uv=False)
        assert values.max() < 2.1 * values.min()
    assert np.asarray(updates["scale"]) == pytest.approx(-0.1 * 0.15, rel=0.2)


ALONE = Spread(jax.devices()[:1])
"""Programs for all simulated devices take minutes to compile."""


@pytest.fixture(scope="module")
def pupil() -> Pupil:
    prompts = {"image": Prompts(processor(), "image")}
    return Pupil.of(new_policy(processor(), 0), processor(), prompts)


def pictures(pupil: Pupil, count: int) -> tuple[np.ndarray, list]:
    scenes = [sample_scene("image", 0, index, "test") for index in range(count)]
    return np.stack([pupil.prompts["image"].patches(render(scene)) for scene in scenes]), scenes


@pytest.mark.long
def test_the_loss_is_that_of_the_answers_alone(pupil: Pupil) -> None:
    """Against the log-probabilities of plain prompts, each a whole chat of one question."""
    patches, _ = pictures(pupil, 1)
    packer, model = Packer(processor()), pupil.model()
    asked = [
        Continuation((*packer.tokens(q), *packer.tokens(a)), len(packer.tokens(q)))
        for q, a in (("What colour is at the top left?", " red"), ("Background?", " navy blue"))
    ]
    whole = pupil.prompts["image"].whole(patches)
    features = model.encode_vision(whole.vision)
    opening = pupil.prompts["image"].openings(1)
    found = answer_loss(model, opening, features, batched([asked], 24))
    losses = []
    for tokens, answer in asked:
        hidden = model.caption_hidden(opening, features, np.array([[tokens]], np.int32))
        logprobs = jax.nn.log_softmax(model.logits(hidden)[0, 0])
        losses += [-float(logprobs[place, token]) for place, token in enumerate(tokens) if place >= answer]
    assert float(found) == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.long
def test_the_decoder_learns_and_the_tower_stays(pupil: Pupil) -> None:
    patches, _ = pictures(pupil, 2)
    model, packer = pupil.model(), Packer(processor())
    features = model.encode_vision(pupil.prompts["image"].whole(patches).vision)
    batch = batched([[packer.caption("red")], [packer.caption("blue")]], 4)
    updates = DecoderUpdates(pupil, 8, 2e-2, spread=ALONE)
    losses = [float(updates.update(pupil.prompts["image"].openings(2), features, batch)) for _ in range(8)]
    assert losses[-1] < losses[0] - 1
    after = pupil.having(rest=updates.rest)
    before, after = (nnx.state(one.model()) for one in (pupil, after))
    jax.tree.map(np.testing.assert_array_equal, after["visual"], before["visual"])
    assert (np.asarray(after["text"]["embed_tokens"]) != np.asarray(before["text"]["embed_tokens"])).any()


@pytest.mark.long
def test_the_tower_learns_what_its_probes_ask_for(pupil: Pupil) -> None:
    patches, scenes = pictures(pupil, 8)
    wanted = Wanted(
        *(
            {name: np.concatenate([ask(scene)[name] for scene in scenes]) for name in ask(scenes[0])}
            for ask in (targets, patch_targets)
        )
    )
    updates = TowerUpdates(pupil, {"image": (4, 4)}, 2, 12, 2e-2, spread=ALONE)
    prompt = pupil.prompts["image"].whole(patches)
    losses = [float(updates.update("image", prompt, wanted)[0]) for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    assert float(updates.check("image", prompt, wanted)[0]) < losses[-1] + 0.5
