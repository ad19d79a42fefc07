"""Simulated annotators of known error rates, through the real interface: the table finds the known truth again."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.human_eval.simulated import annotate
from vcap_jax.human_eval.answers import StoredAnswers
from vcap_jax.human_eval.embedded import write_embedded_study
from vcap_jax.human_eval.exchange import records_of
from vcap_jax.human_eval.formulas import average_ranks
from vcap_jax.human_eval.protocol import Kind, Ranking
from vcap_jax.human_eval.results import results_of
from vcap_jax.human_eval.study import Settings, read_study

WRITERS = ("careful", "brief", "careless")
IMAGES = 14


@pytest.mark.slow
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
