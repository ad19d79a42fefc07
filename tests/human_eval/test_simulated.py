"""Simulated annotators of known error rates, through the real interface: the table finds the known truth again."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.human_eval.serving_study import served, visitor
from vcap_jax.human_eval.answers import StoredAnswers
from vcap_jax.human_eval.application.views import AnnotatorView
from vcap_jax.human_eval.embedded import write_embedded_study
from vcap_jax.human_eval.exchange import records_of
from vcap_jax.human_eval.formulas import average_ranks
from vcap_jax.human_eval.protocol import Kind, Ranking
from vcap_jax.human_eval.results import LABELS, results_of
from vcap_jax.human_eval.study import Settings, read_study

WRITERS = ("careful", "brief", "careless")
IMAGES = 14


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_the_table_recovers_the_known_truth(tmp_path, error):
    settings = Settings(annotators=("anna", "ben"), overlap=1.0)
    made = write_embedded_study(tmp_path, images=IMAGES, settings=settings, writers=WRITERS)
    study = read_study(tmp_path)
    asyncio.run(annotate(study, made.truth, error))
    with StoredAnswers(tmp_path / "answers.sqlite") as stored:
        records = records_of(study, stored)
    assert len(records.answers) == 2 * len(made.propositions)
    assert len(records.rankings) == 2 * IMAGES
    results = results_of(study.items, study.propositions, records)
    confirmed = {(model, kind): [] for model in WRITERS for kind in Kind}
    for one in made.propositions:
        confirmed[one.model, one.kind].append(made.truth[one.prop_id].confirmed)
    for row in results.rows:
        for kind in Kind:
            truth = confirmed[row.model, kind]
            assert row.proposed[kind] == len(truth)
            # Who errs gives each of the four other labels alike.
            expected = sum(1 - error if one else error / 4 for one in truth)
            found = row.confirmed[kind]
            if error == 0:
                assert found.value == sum(truth)
            else:
                assert found.low - 1 <= expected <= found.high + 1
        ranks = true_ranks(made, row.model)
        for ranking, true in ranks.items():
            found = row.mean_rank[str(ranking)]
            assert found.low - 0.15 <= true <= found.high + 0.15, (row.model, ranking)
    alpha = results.alphas["label, both steps"]
    assert alpha.value == 1 if error == 0 else 0.5 < alpha.value < 0.9
    assert results.annotators[0].agreement.value == pytest.approx((1 - error) ** 2 + error**2 / 4, abs=0.07)


def true_ranks(made, model):
    """Mean over images, ties shared: by confirmed inconsistencies and by confirmed omissions."""
    found = {}
    for ranking, kind in ((Ranking.ACCURACY, Kind.INCONSISTENT), (Ranking.COMPLETENESS, Kind.MISSING)):
        each = []
        for item in made.items:
            counts = dict.fromkeys(WRITERS, 0.0)
            for one in made.propositions:
                if one.image_id == item.id and one.kind is kind:
                    counts[one.model] -= made.truth[one.prop_id].confirmed
            each.append(average_ranks(counts)[model])
        found[ranking] = float(np.mean(each))
    return found


async def annotate(study, truth, error):
    async with served(study) as server:
        await asyncio.gather(
            *(simulate(server, study, truth, error, name) for name in study.settings.annotators)
        )


async def simulate(server, study, truth, error, name):
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
