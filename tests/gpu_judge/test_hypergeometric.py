"""The embedded judge does what the analysis says: over all references of m facts, the share of captions that pass its
tests is P_recall and P_coll, exactly; and its graded scores are c / N in the mean, whatever m is."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from gpu_judge.embedded.adjudication import adjudicate
from gpu_judge.embedded.judge import EmbeddedJudge
from tests.gpu_judge.requests_of_the_world import about
from vcap_jax.studies.theory import collision_free_exact, recall_exact
from vcap_jax.world.captions import wrong_value
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_grammar import describe_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.vocabulary import Claim, Facts, Slot

SCENE = sample_image_scene(70, 0)


def few_facts() -> Facts:
    """Seven facts of the scene, about which alone candidate and references speak: shapes, colours and sizes."""
    attributes = [item for item in scene_facts(SCENE).items() if item[0][-1] in ("shape", "colour", "size")]
    return dict(attributes[:7])


def caption(facts: Facts, correct: int, errors: int) -> Facts:
    """The first ``correct`` facts rightly and the next ``errors`` wrongly."""
    rng, slots = np.random.default_rng(0), list(facts)
    right = {slot: facts[slot] for slot in slots[:correct]}
    return right | {slot: wrong_value(slot, facts[slot], rng) for slot in slots[correct : correct + errors]}


@pytest.mark.parametrize(("correct", "errors"), [(7, 0), (5, 2), (4, 0), (3, 4), (1, 1), (0, 7)])
def test_over_all_references_the_rules_pass_with_the_probabilities_of_the_theory(
    correct: int, errors: int
) -> None:
    facts = few_facts()
    N = len(facts)
    candidate = list(caption(facts, correct, errors).items())

    def verdict(slot: Slot, value: str) -> bool:
        return facts.get(slot) == value

    for m in range(1, N + 1):
        covered = apart = 0
        shares = Fraction(0)
        references: list[tuple[Claim, ...]] = list(combinations(facts.items(), m))
        for reference in references:
            outcome = adjudicate(candidate, reference, verdict)
            covered += outcome.covered == outcome.supported
            apart += outcome.survived == outcome.armed
            shares += Fraction(outcome.covered, outcome.supported)
        assert Fraction(covered, len(references)) == recall_exact(correct, m=m, N=N)
        assert Fraction(apart, len(references)) == collision_free_exact(correct + errors, correct, m=m, N=N)
        assert shares / len(references) == Fraction(correct, N)


def test_and_so_do_the_scores_of_whole_requests() -> None:
    facts, judge, rng = few_facts(), EmbeddedJudge(), np.random.default_rng(1)
    correct, errors, m, N = 4, 2, 3, len(facts)
    text = describe_image(caption(facts, correct, errors), rng)
    full = {"Correctness": 0, "Completeness": 0}
    references = list(combinations(facts.items(), m))
    for reference in references:
        answer = judge.answer(about(SCENE, text, describe_image(dict(reference), rng)))
        full["Completeness"] += answer["Completeness"] == 10
        # Where nothing was tested (5), nothing collided.
        full["Correctness"] += answer["Correctness"] == 10 or not set(dict(reference)) & set(
            caption(facts, correct, errors)
        )
    assert Fraction(full["Completeness"], len(references)) == recall_exact(correct, m=m, N=N)
    assert Fraction(full["Correctness"], len(references)) == collision_free_exact(
        correct + errors, correct, m=m, N=N
    )
