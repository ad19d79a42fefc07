"""The embedded world's held-out scenes: captions against the facts that are known of them, which are counted."""

from __future__ import annotations

from typing import ClassVar, get_args

from vcap_jax.data.manifest import read_manifest
from vcap_jax.evals.config import HELDOUT, EvaluatorConfig
from vcap_jax.evals.protocol import Captioner, Evaluation, EvaluatorTools, NothingToEvaluate, measured
from vcap_jax.report.summary import Share, fact_values
from vcap_jax.report.world_facts import count_captions


class HeldOut:
    """Facts that captions of the held-out scenes cover and make up (implements ``Evaluator``)."""

    name: ClassVar[str] = HELDOUT
    modality: ClassVar[None] = None

    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        if tools.world is None:
            if tools.own is not None:
                raise NothingToEvaluate
            raise NothingToEvaluate(
                "its scenes are the embedded world's, and data.manifest names other data; name an evaluator of these "
                "in evaluation.evaluators, or leave the list empty"
            )
        self._world = tools.world
        self.samples = read_manifest(tools.world.heldout)
        """Of the scenes, in their order."""

    def evaluate(self, captioner: Captioner) -> Evaluation:
        """coverage, hallucination, claims_per_caption and invented_share (``fact_values``); of each scene its facts,
        and of its captions the claims, those that are correct and those about objects where nothing lies."""
        captions = captioner.captions(self.samples)
        scenes = {c.id: self._world.heldout_scenes[c.id] for c in captions if c.failure is None}
        counts = count_captions(scenes, {c.id: c.texts for c in captions if c.failure is None})
        place = {identity: index for index, identity in enumerate(scenes)}
        names = ("facts", "claims", "correct", "invented")
        items = measured(
            captions, lambda c: {name: int(getattr(counts, name)[place[c.id]]) for name in names}
        )
        return Evaluation(metrics=fact_values(counts), items=items, shares=get_args(Share))
