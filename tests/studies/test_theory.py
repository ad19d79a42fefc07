"""The hypergeometric analysis: exactness, agreement of all forms, monotonicity, the optimum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import digamma

from vcap_jax.studies import theory
from vcap_jax.studies.theory import DomainError, collision_free, collision_free_exact, recall, recall_exact

SMALL = [(N, m, a) for N in range(1, 13) for m in range(N + 1) for a in range(N + 1)]
"""Every (N, m, a) up to N = 12; ``a`` stands for c or for n - c."""


def random_cases(count: int, largest: int, seed: int = 0) -> Iterator[tuple[int, int, int]]:
    """(N, m, a) with N spread over the orders of magnitude."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        N = int(np.exp(rng.uniform(0, math.log(largest)))) + 1
        yield N, int(rng.integers(0, N + 1)), int(rng.integers(0, N + 1))


def product_recall(c: int, m: int, N: int) -> Fraction:
    return math.prod((Fraction(c - i, N - i) for i in range(m)), start=Fraction(1))


def product_collision(e: int, m: int, N: int) -> Fraction:
    return math.prod((Fraction(N - m - j, N - j) for j in range(e)), start=Fraction(1))


def test_products_binomials_and_sets_agree_exactly() -> None:
    for N, m, a in SMALL:
        binomial = Fraction(math.comb(N - m, a - m), math.comb(N, a)) if a >= m else Fraction(0)
        assert recall_exact(a, m=m, N=N) == product_recall(a, m, N) == binomial
        binomial = Fraction(math.comb(N - m, a), math.comb(N, a))
        # The product runs through a zero factor where errors outnumber the free slots.
        assert collision_free_exact(a, 0, m=m, N=N) == product_collision(a, m, N) == binomial


def test_both_are_what_counting_all_references_gives() -> None:
    N, c, errors = 6, 4, 2
    for m in range(N + 1):
        references = [set(r) for r in itertools.combinations(range(N), m)]
        inside = sum(r <= set(range(c)) for r in references)
        apart = sum(not r & set(range(errors)) for r in references)
        assert recall_exact(c, m=m, N=N) == Fraction(inside, len(references))
        assert collision_free_exact(c + errors, c, m=m, N=N) == Fraction(apart, len(references))


def test_float64_agrees_with_the_rationals_in_log_space() -> None:
    for N, m, a in [*SMALL, *random_cases(60, 3000)]:
        for factor, exact in (
            (recall(a, m=m, N=N), recall_exact(a, m=m, N=N)),
            (collision_free(a, 0, m=m, N=N), collision_free_exact(a, 0, m=m, N=N)),
        ):
            if exact == 0:
                assert factor.log_p == -math.inf
                assert factor.p == 0
                continue
            # math.log of the parts: the quotient itself may be far below the smallest float.
            log = math.log(exact.numerator) - math.log(exact.denominator)
            assert factor.log_p == pytest.approx(log, rel=1e-10, abs=1e-11)


@pytest.mark.parametrize(("m", "missing"), [(1, 1), (50, 400_000), (2000, 3), (1500, 1500)])
def test_a_million_facts(m: int, missing: int) -> None:
    N = 1_000_000
    exact = recall_exact(N - missing, m=m, N=N)
    assert exact == recall_exact(N - m, m=missing, N=N), "avoiding is symmetric"
    small, large = sorted((m, missing))
    # A second way to the logarithm, in exact terms of the series: sum of log1p of rationals.
    expected = math.fsum(math.log1p(-large / (N - i)) for i in range(small))
    assert recall(N - missing, m=m, N=N).log_p == pytest.approx(expected, rel=1e-13)
    assert float(exact) == pytest.approx(math.exp(expected), rel=1e-9)


def test_the_halves_of_a_million_facts_stay_finite_and_exact_where_it_can_be_told() -> None:
    N = 1_000_000
    point = recall(N // 2, m=N // 2, N=N)
    # 1 / binom(N, N/2), whose logarithm Stirling's series gives to float64's precision.
    log_central = N * math.log(2) - 0.5 * math.log(math.pi * N / 2) - 1 / (4 * N)
    assert point.log_p == pytest.approx(-log_central, rel=1e-13)
    assert collision_free(N, 0, m=1, N=N).log_p == -math.inf
    assert collision_free(N - 1, 0, m=1, N=N).p == pytest.approx(1 / N, rel=1e-9)


def test_monotone_in_c_and_in_errors_strictly_where_not_zero() -> None:
    for N, m, a in [*SMALL, *random_cases(100, 400, seed=1)]:
        if a == N:
            continue
        here, more = recall_exact(a, m=m, N=N), recall_exact(a + 1, m=m, N=N)
        # Strict from c = m - 1 on; below that both are 0. Without a reference there is nothing to recall.
        assert (more > here) if 1 <= m <= a + 1 else (more == here)
        here, more = collision_free_exact(a, 0, m=m, N=N), collision_free_exact(a + 1, 0, m=m, N=N)
        # Strict until the errors fill every slot that the reference leaves free; from there on both are 0.
        assert (more < here) if m >= 1 and a <= N - m else (more == here)


def test_the_optimum_is_everything_said_and_nothing_made_up_for_every_m() -> None:
    for N in (1, 2, 5, 9):
        for m in range(1, N + 1):
            values = {
                (c, e): 5 * collision_free_exact(c + e, c, m=m, N=N) + 4 * recall_exact(c, m=m, N=N)
                for c in range(N + 1)
                for e in range(N + 1)
            }
            best = max(values.values())
            assert [point for point, value in values.items() if value == best] == [(N, 0)]
            assert best == 9


def test_a_larger_reference_is_steeper_in_log_everywhere_and_in_probability_at_the_optimum() -> None:
    for N, m, a in random_cases(200, 300, seed=2):
        if m + 1 <= a:
            one, two = (recall(a, m=size, N=N).log_gradient for size in (m, m + 1))
            assert one is not None
            assert two is not None
            assert two.c > one.c
        if a + m + 1 <= N:
            one, two = (collision_free(a, 0, m=size, N=N).log_gradient for size in (m, m + 1))
            assert one is not None
            assert two is not None
            assert two.n < one.n
        if m + 1 <= N:
            assert recall(N, m=m + 1, N=N).gradient.c > recall(N, m=m, N=N).gradient.c
            assert collision_free(N, N, m=m + 1, N=N).gradient.n < collision_free(N, N, m=m, N=N).gradient.n


def test_away_from_the_optimum_a_larger_reference_can_be_flatter() -> None:
    """The paper's "weakening the reference softens the gradient" holds for log P, and for P only near c = N."""
    N, c = 20, 10
    assert recall(c, m=10, N=N).gradient.c < recall(c, m=1, N=N).gradient.c / 100
    assert recall(c - 1, m=10, N=N).gradient.c == 0, "below c = m there is no signal at all"


def test_gradients_are_those_of_the_gamma_extension() -> None:
    for N, m, a in random_cases(200, 500, seed=3):
        if m <= a:
            found = recall(a, m=m, N=N).log_gradient
            assert found is not None
            assert found.c == pytest.approx(digamma(a + 1) - digamma(a - m + 1), rel=1e-9, abs=1e-12)
            assert found.m == pytest.approx(digamma(a - m + 1) - digamma(N - m + 1), rel=1e-9, abs=1e-12)
            assert found.n == 0
        if a + m <= N:
            found = collision_free(a + 3, 3, m=m, N=N).log_gradient if N >= 3 else None
            if found is not None:
                slope = digamma(N - a + 1) - digamma(N - a - m + 1)
                assert (found.c, found.n) == (pytest.approx(slope, rel=1e-9, abs=1e-12), -found.c)
                by_m = digamma(N - a - m + 1) - digamma(N - m + 1)
                assert found.m == pytest.approx(by_m, rel=1e-9, abs=1e-12)


def test_the_extension_meets_the_exact_values_and_its_slope_is_the_gradient() -> None:
    for N, m, a in random_cases(100, 200, seed=4):
        point = recall(a, m=m, N=N)
        assert theory.log_avoid(N - a, m, N) == pytest.approx(point.log_p, abs=1e-10)
        if point.log_gradient is not None and 0 < a < N and 0 < m < a:
            step = 1e-4
            by_c = theory.log_avoid(N - a - step, m, N) - theory.log_avoid(N - a + step, m, N)
            by_m = theory.log_avoid(N - a, m + step, N) - theory.log_avoid(N - a, m - step, N)
            assert by_c / (2 * step) == pytest.approx(point.log_gradient.c, rel=1e-5)
            assert by_m / (2 * step) == pytest.approx(point.log_gradient.m, rel=1e-5)


def test_the_extension_is_monotone_between_whole_numbers_too() -> None:
    k = np.linspace(0, 24, 241)
    for m in (0.5, 1, 2.5, 8, 23.5):
        values = theory.log_avoid(k, m, 24)
        finite = np.isfinite(values)
        assert (np.diff(values[finite]) < 0).all()
        assert values[0] == pytest.approx(0)
        # Finite first, -inf from k = N - m + 1 on.
        assert (np.diff(finite.astype(int)) <= 0).all()
        assert finite[k < 24 - m + 1 - 1e-9].all()
        assert not finite[k > 24 - m + 1 + 1e-9].any()


@pytest.mark.parametrize(("n", "c", "m", "N"), [(9, 7, 2, 10), (12, 9, 4, 12), (3, 3, 1, 5), (20, 18, 3, 20)])
def test_drawing_the_sets_gives_the_same_rates(n: int, c: int, m: int, N: int) -> None:
    draws = 40_000
    rates = theory.simulate(n, c, m=m, N=N, draws=draws, seed=5)
    for rate, p in (
        (rates.recall, recall(c, m=m, N=N).p),
        (rates.collision_free, collision_free(n, c, m=m, N=N).p),
    ):
        assert abs(rate - p) <= 4.5 * math.sqrt(p * (1 - p) / draws) + 1e-12
    assert rates == theory.simulate(n, c, m=m, N=N, draws=draws, seed=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recall(3, m=1, N=0), "N is 0"),
        (lambda: recall(3, m=1, N=theory.LARGEST_N + 1), "N is 10000001"),
        (lambda: recall(3, m=11, N=10), "m is 11: a reference has between 0 and N = 10"),
        (lambda: recall(3, m=-1, N=10), "m is -1"),
        (lambda: recall(11, m=1, N=10), "c is 11"),
        (lambda: recall(2.5, m=1, N=10), r"c is 2\.5: it counts facts"),
        (lambda: recall(True, m=1, N=10), "c is True"),
        (lambda: recall_exact(-1, m=1, N=10), "c is -1"),
        (lambda: collision_free(2, 3, m=1, N=10), "n is 2: a caption with c = 3"),
        (lambda: collision_free_exact(14, 3, m=1, N=10), "n is 14"),
        (lambda: theory.log_avoid([1, 5], 1, 4), "k is 5"),
        (lambda: theory.log_avoid(1, math.nan, 4), "m is nan"),
        (lambda: theory.simulate(3, 2, m=1, N=4, draws=0, seed=0), "draws is 0"),
    ],
)
def test_what_lies_outside_the_model_is_refused_by_name(call, message: str) -> None:
    with pytest.raises(DomainError, match=message):
        call()


def test_graded_scores_have_the_same_optimum_and_a_slope_that_m_does_not_enter() -> None:
    """What the judge really gives: the share of the reference that is covered. m sets its noise alone."""
    N = 8
    for m, c in itertools.product(range(1, N + 1), range(N + 1)):
        shares = [Fraction(sum(f < c for f in r), m) for r in itertools.combinations(range(N), m)]
        mean = sum(shares) / len(shares)
        variance = sum(s * s for s in shares) / len(shares) - mean**2
        assert mean == Fraction(c, N)
        assert variance == mean * (1 - mean) * Fraction(N - m, m * (N - 1))
