"""What a policy says of its own accord: captions of scenes, greedy or sampled, and what they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import jax
import numpy as np

from vcap_jax.recipes.teaching.pupil import Pupil, Scenery
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.system.json_values import JsonDict
from vcap_jax.world.habits import report_habit, scene_habit
from vcap_jax.world.scenes import Modality

GREEDY = SamplingConfig(temperature=0.0, repetition_penalty=1.0)
SAMPLED = SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
"""The policy as it is: whatever it says rarely is said as rarely."""
_TOKENS = 256
"""Of a caption, at most: a full one has up to 240."""
_AT_ONCE = 32


@dataclass(frozen=True)
class Said:
    """A caption of scene number ``scene``. tokens: with its end."""

    scene: int
    text: str
    tokens: int


def captions(
    pupil: Pupil,
    modality: Modality,
    scenery: Scenery,
    sampling: SamplingConfig,
    *,
    each: int = 1,
    seed: int = 0,
) -> list[Said]:
    """``each`` captions of every scene, in order."""
    config = RolloutConfig(
        group_size=each,
        max_completion_length=_TOKENS,
        groups_per_batch=_AT_ONCE,
        decode_steps_per_call=32,
        shrink=1,
        sampling=sampling,
    )
    processor = pupil.processor
    sampler = GroupSampler(
        pupil.graphdef, config, end_ids=processor.eos_token_ids, banned_ids=processor.banned_token_ids
    )
    features = pupil.looked(scenery, modality)
    prompt = pupil.prompts[modality].requests(len(scenery.scenes))
    groups = sampler.stream(
        pupil.rest,
        pupil.visual,
        jax.tree.map(np.asarray, prompt),
        features,
        seed=seed,
        step=0,
        group_ids=range(len(scenery.scenes)),
    )
    said = []
    for group in groups:
        for tokens, length in zip(group.tokens, group.lengths, strict=True):
            text = processor.tokenizer.decode(tokens[:length], skip_special_tokens=True).strip()
            said.append(Said(group.index, text, int(length)))
    return sorted(said, key=lambda one: one.scene)


def taught(pupil: Pupil, scenery: Scenery, *, each: int = 1, seed: int = 0) -> list[Said]:
    """``each`` captions of every scene as the starting policy is taught to give them (``world.habits``)."""
    rng = np.random.default_rng(seed)
    said = []
    for index, scene in enumerate(scenery.scenes):
        habit = scene_habit(scene)
        for text in [habit.caption(rng) for _ in range(each)]:
            tokens = pupil.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
            said.append(Said(index, text, len(tokens) + 1))
    return said


def told(scenery: Scenery, said: Sequence[Said]) -> JsonDict:
    """What captions cover and make up, how long they are, and how often each kind of fact is mentioned."""
    report = report_habit((scenery.scenes[one.scene], one.text) for one in said)
    return {"mean_tokens": float(np.mean([one.tokens for one in said])), **asdict(report)}
