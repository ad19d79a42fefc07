"""A judge with errors of perception: how often it errs, that it errs in the same way again, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from vcap_jax.world.noisy_perception import ImperfectSight, PerceptionConfig, imperfect
from vcap_jax.world.sight import Sight
from vcap_jax.world.vocabulary import (
    BACKGROUND,
    IMAGE_PLACES,
    LIGHT,
    OBJECTS,
    ROW_NEIGHBOURS,
    VALUES,
    Facts,
    Slot,
)

ATTRIBUTES = ("shape", "colour", "size")


def facts_of(index: int) -> Facts:
    """Values for some slots; whether a scene could have them together does not matter here."""
    rng = np.random.default_rng([60, index])
    places = [place for place in IMAGE_PLACES if rng.random() < 0.6]
    slots: list[Slot] = [(place, kind) for place in places for kind in ATTRIBUTES]
    slots += [BACKGROUND, LIGHT, OBJECTS, (*ROW_NEIGHBOURS[0], "level")]
    return {slot: str(rng.choice(VALUES[str(slot[-1])])) for slot in slots}


def sights(count: int, perception: PerceptionConfig) -> list[ImperfectSight]:
    found = []
    for index in range(count):
        sight = Sight(facts=facts_of(index), unknown=frozenset(), shots=(), prominence={})
        found.append(imperfect(sight, perception, index.to_bytes(16, "big")))
    return found


def share(outcomes: Sequence[bool | None], rate: float) -> None:
    """Within 4.5 standard errors of the rate."""
    spread = 4.5 * np.sqrt(rate * (1 - rate) / len(outcomes))
    assert abs(np.mean([bool(outcome) for outcome in outcomes]) - rate) <= spread, (rate, len(outcomes))


@pytest.mark.parametrize(("miss", "invent"), [(0.0, 0.0), (0.1, 0.02), (0.3, 0.25), (1.0, 1.0)])
def test_errors_come_at_their_rates(miss: float, invent: float) -> None:
    missed, confirmed, imagined = [], [], []
    for sight in sights(150, PerceptionConfig(miss=miss, invent=invent, seed=1)):
        for slot, value in sight.truth.items():
            missed.append(sight.verdict(slot, value) is False)
            confirmed += [sight.verdict(slot, v) for v in VALUES[str(slot[-1])] if v != value]
        empty = [(p, a) for p in IMAGE_PLACES for a in ATTRIBUTES if (p, a) not in sight.truth]
        imagined += [sight.verdict(slot, VALUES[slot[1]][0]) for slot in empty]
    share(missed, miss)
    share(confirmed, invent)
    share(imagined, invent)


def test_the_same_question_gets_the_same_answer_and_another_picture_or_seed_another() -> None:
    def errors(seed: int, picture: bytes) -> list[bool | None]:
        sight = sights(1, PerceptionConfig())[0]
        looked = imperfect(sight, PerceptionConfig(miss=0.5, invent=0.5, seed=seed), picture)
        return [looked.verdict((p, "colour"), v) for p in IMAGE_PLACES for v in VALUES["colour"]]

    assert errors(0, b"a") == errors(0, b"a")
    assert errors(0, b"a") != errors(0, b"b")
    assert errors(0, b"a") != errors(1, b"a")


def test_a_better_judge_errs_on_a_subset_of_what_a_worse_one_errs_on() -> None:
    rates = [(0.05, 0.05), (0.2, 0.1), (0.2, 0.4), (0.9, 0.9)]
    wrong = []
    for miss, invent in rates:
        wrong.append(
            {
                (number, slot, value)
                for number, sight in enumerate(sights(30, PerceptionConfig(miss=miss, invent=invent)))
                for slot in sight.truth
                for value in VALUES[str(slot[-1])]
                if sight.verdict(slot, value) != (sight.truth[slot] == value)
            }
        )
    for fewer, more in pairwise(wrong):
        assert fewer < more


def test_what_it_believes_unasked_is_what_it_would_confirm_when_asked() -> None:
    invented = 0
    for sight in sights(100, PerceptionConfig(miss=0.5, invent=0.1)):
        assert all(sight.verdict(slot, value) for slot, value in sight.facts.items())
        for slot in sight.truth.keys() - sight.facts.keys():
            assert not any(sight.verdict(slot, value) for value in VALUES[str(slot[-1])])
        invented += sum(sight.truth[slot] != value for slot, value in sight.facts.items())
    assert invented > 20


def test_a_slot_with_one_possible_value_is_missed_and_never_invented() -> None:
    slot = (*ROW_NEIGHBOURS[0], "overlap")
    sight = Sight(facts={slot: "covers"}, unknown=frozenset(), shots=(), prominence={})
    blind = imperfect(sight, PerceptionConfig(miss=1, invent=1), b"")
    assert blind.facts == {}
    assert blind.verdict(slot, "covers") is False


def test_what_pixels_do_not_decide_stays_undecided() -> None:
    sight = Sight(facts={}, unknown=frozenset({("middle center", "shape")}), shots=(), prominence={})
    looked = imperfect(sight, PerceptionConfig(miss=1, invent=1), b"")
    assert looked.verdict(("middle center", "shape"), "ring") is None
    assert looked.verdict(("middle center", "colour"), "red") is True


def test_the_name_that_scores_are_stored_under_tells_every_judge_from_every_other() -> None:
    configs = [
        PerceptionConfig(),
        PerceptionConfig(miss=0.1),
        PerceptionConfig(invent=0.1),
        PerceptionConfig(miss=0.1, seed=1),
        PerceptionConfig(miss=0.1000001),
        PerceptionConfig(attention=PerceptionConfig.attention + 1),
        PerceptionConfig(miss=0.1, attention=PerceptionConfig.attention + 1),
    ]
    assert len({config.label for config in configs}) == len(configs)
    assert configs[0].label == "", "stores of judges without errors stay valid"
    # A seed of errors that never happen makes no other judge.
    assert PerceptionConfig(seed=4).label == ""
