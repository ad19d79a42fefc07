"""The held-out scenes' facts, of whoever captioned them."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.evals.captioners import PoolCaptioner
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.heldout import HeldOut
from vcap_jax.evals.protocol import Captions, EvaluatorTools
from vcap_jax.report.summary import fact_row, shares_table
from vcap_jax.world.captions import full_caption
from vcap_jax.world.config import WorldConfig
from vcap_jax.world.facts import scene_facts, scene_undecided
from vcap_jax.world.splits import EmbeddedData, prepare_embedded_data
from vcap_jax.world.vocabulary import IMAGE_PLACES


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedData:
    settings = WorldConfig(train_scenes=1, heldout_scenes=4)
    return prepare_embedded_data(tmp_path_factory.mktemp("world"), "image", settings)


@pytest.fixture
def heldout(world: EmbeddedData) -> HeldOut:
    return HeldOut(EvaluatorConfig(use="heldout"), EvaluatorTools(modality="image", world=world))


@pytest.fixture
def full(world: EmbeddedData) -> dict[str, str]:
    return {
        name: full_caption(scene, np.random.default_rng(0)) for name, scene in world.heldout_scenes.items()
    }


def test_every_scene_counts_also_one_without_a_reference(world, heldout, full) -> None:
    """A pool has no entry for an empty text: that scene's facts are not covered."""
    facts = {name: len(scene_facts(scene)) for name, scene in world.heldout_scenes.items()}
    first, *others = full
    pool = ReferencePool(PoolEntry(id=name, references=(full[name],)) for name in others)
    found = heldout.evaluate(PoolCaptioner(pool))
    assert set(found.shares) == set(found.metrics) - {"claims_per_caption"}
    row = fact_row(found.metrics)
    assert row["scenes"] == 4
    assert row["coverage"] == 1 - facts[first] / sum(facts.values())
    assert row["hallucination"] == 0
    assert row["claims_per_caption"] == (sum(facts.values()) - facts[first]) / 4
    assert [item.values["facts"] for item in found.items] == list(facts.values())
    assert found.items[0].values == {"facts": facts[first], "claims": 0, "correct": 0, "invented": 0}
    assert found.failed == 0


def test_objects_where_nothing_lies_are_counted(world, heldout, full) -> None:
    """What the other claims get wrong is not among them."""
    name, scene = next(iter(world.heldout_scenes.items()))
    free = next(
        p
        for p in IMAGE_PLACES
        if not any(p in slot for slot in (*scene_facts(scene), *scene_undecided(scene)))
    )
    text = f"{full[name]} At the {free} is a large red star. It has a navy background. It has a white background."
    found = heldout.evaluate(PoolCaptioner(ReferencePool([PoolEntry(id=name, references=(text,))])))
    facts = len(scene_facts(scene))
    assert [item.values["invented"] for item in found.items] == [3, 0, 0, 0]
    assert found.items[0].values["claims"] in (facts + 4, facts + 5)
    row = fact_row(found.metrics)
    assert row["invented_share"] == 3 / found.items[0].values["claims"]
    assert "of objects not there" in shares_table({"trained": row})


def test_eight_captions_of_a_scene_claim_no_more_than_one_does(world, heldout, full) -> None:
    once = ReferencePool(PoolEntry(id=name, references=(text,)) for name, text in full.items())
    often = ReferencePool(PoolEntry(id=name, references=(text,) * 8) for name, text in full.items())
    rows = [fact_row(heldout.evaluate(PoolCaptioner(pool)).metrics) for pool in (once, often)]
    assert rows[0] == rows[1]
    assert rows[0]["coverage"] == 1


def test_a_scene_whose_caption_failed_is_counted_apart(world, heldout, full) -> None:
    class Failing:
        def captions(self, samples: list[Sample], *, seed: int = 0) -> list[Captions]:
            first, *others = samples
            given = [Captions(id=sample.id, texts=(full[sample.id],)) for sample in others]
            return [Captions(id=first.id, failure="no answer"), *given]

    found = heldout.evaluate(Failing())
    assert (found.failed, len(found.items)) == (1, 4)
    assert found.metrics["coverage"].value == 1
    assert found.metrics["coverage"].n == 3
