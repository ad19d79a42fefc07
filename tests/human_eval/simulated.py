"""Annotators of a known error rate, who answer through the real interface."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.human_eval.serving_study import served, visitor
from vcap_jax.human_eval.assignment import AnnotatorView
from vcap_jax.human_eval.protocol import Kind, Verdict
from vcap_jax.human_eval.results import LABELS
from vcap_jax.human_eval.study import Study


async def annotate(study: Study, truth: Mapping[str, Verdict], error: float) -> None:
    """Has all annotators decide all that they were assigned, rightly but for a share ``error``."""
    async with served(study) as server:
        await asyncio.gather(
            *(simulate(server, study, truth, error, name) for name in study.settings.annotators)
        )


async def simulate(server: Any, study: Study, truth: Mapping[str, Verdict], error: float, name: str) -> None:
    """Decides everything rightly but for a share of errors, and ranks by what it found."""
    rng = np.random.default_rng([len(name), ord(name[0])])
    view = AnnotatorView(study, name)
    right = {view.alias(prop): verdict.label for prop, verdict in truth.items()}
    async with visitor(server, name) as one:
        me = await one.json("/api/me")
        for row in me["items"]:
            item = await one.json(f"/api/item/{row['key']}")
            held = {(caption["letter"], kind): 0 for caption in item["captions"] for kind in Kind}
            for prop in item["propositions"]:
                label = right[prop["key"]]
                if rng.random() < error:
                    label = str(rng.choice([other for other in LABELS if other != label]))
                step1, _, step2 = label.partition(", ")
                assert (await one.answer(item, prop, step1, step2 or None))[0] == 200
                held[prop["letter"], prop["kind"]] += step2 == "2. holding"
            letters = [caption["letter"] for caption in item["captions"]]

            def order(kind, held=held, letters=letters):
                return sorted(letters, key=lambda letter: (held[letter, kind], rng.random()))

            orders = {
                "accuracy": order("inconsistent"),
                "completeness": order("missing"),
                "granularity": letters,
            }
            assert (await one.finish(item, **orders))[0] == 200
