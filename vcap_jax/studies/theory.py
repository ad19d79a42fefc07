"""The hypergeometric analysis of the witness-adjudicator reward (paper, Section 2.3), exactly.

A picture has N facts. A reference of m facts is a uniformly random subset R of their slots. A caption of n facts has
c correct ones, C, and n - c erroneous ones, E. Two tests make the reward:

    P_recall(c | m, N)   = P(R inside C)    = binom(N-m, c-m) / binom(N, c)   = prod_{i < m} (c - i) / (N - i)
    P_coll(n - c | m, N) = P(E and R apart) = binom(N-m, n-c) / binom(N, n-c) = prod_{j < n-c} (N-m-j) / (N-j)

Both are one and the same event. The reference lies inside C when it avoids the N - c facts that the caption lacks, and
it gives no error away when it avoids the n - c slots of the errors. With ``k`` slots to avoid,

    avoid(k, m, N) = binom(N - k, m) / binom(N, m),   P_recall = avoid(N - c, m, N),   P_coll = avoid(n - c, m, N),

which is symmetric in k and m, 1 at k = 0 whatever m is, and never grows with k: hence the optimum c = N, n - c = 0 for
every reference, of any size. The derivatives are those of its continuous extension by gamma functions,

    log avoid = lgamma(N - k + 1) + lgamma(N - m + 1) - lgamma(N + 1) - lgamma(N - k - m + 1),

which at whole numbers are finite harmonic sums: d log avoid / dk = -sum_{i < m} 1 / (N - k - i), and with k and m
exchanged for the derivative by m.

Functions of whole numbers refuse what lies outside the model by the argument's name; see ``docs/theory.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from vcap_jax.system.errors import VCapError

LARGEST_N = 10_000_000
"""Above this the sums over facts are refused: they would take more time and memory than anybody wants."""


class DomainError(VCapError, ValueError):
    """An argument lies outside the model; the message names it and its limits."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Partial derivatives by the paper's variables, each with the other two (and N) held fixed.

    c: correct facts. n: all facts of the caption. m: facts of the reference.
    """

    c: float
    n: float
    m: float


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One of the two pass probabilities at a point of the model.

    log_p: natural logarithm, -inf where the test cannot be passed.
    log_gradient: derivatives of ``log_p``; None where it is -inf.
    """

    log_p: float
    log_gradient: Gradient | None

    @property
    def p(self) -> float:
        """The probability."""
        return math.exp(self.log_p)

    @property
    def gradient(self) -> Gradient:
        """Derivatives of the probability: 0 on the plateau where it is 0."""
        by, p = self.log_gradient, self.p
        return Gradient(c=0.0, n=0.0, m=0.0) if by is None else Gradient(c=p * by.c, n=p * by.n, m=p * by.m)


def recall_exact(c: int, *, m: int, N: int) -> Fraction:
    """P_recall as a rational number in lowest terms. Raises DomainError."""
    _check(N=N, m=m, c=c)
    return _avoid_exact(N - c, m, N)


def collision_free_exact(n: int, c: int, *, m: int, N: int) -> Fraction:
    """P_coll as a rational number in lowest terms. Raises DomainError."""
    _check(N=N, m=m, c=c, n=n)
    return _avoid_exact(n - c, m, N)


def recall(c: int, *, m: int, N: int) -> Factor:
    """P_recall in float64 with its derivatives, in O(min(m, N - c)) time. Raises DomainError.

    The logarithm is a sum of ``log1p`` of its factors, all of one sign, so its relative error stays near float64's
    resolution for N up to ``LARGEST_N``, however small the probability.
    """
    _check(N=N, m=m, c=c)
    missing = N - c
    if m > c:
        return Factor(log_p=-math.inf, log_gradient=None)
    gradient = Gradient(c=_harmonic(N - missing, m), n=0.0, m=-_harmonic(N - m, missing))
    return Factor(log_p=_log_avoid(missing, m, N), log_gradient=gradient)


def collision_free(n: int, c: int, *, m: int, N: int) -> Factor:
    """P_coll in float64 with its derivatives; as ``recall``."""
    _check(N=N, m=m, c=c, n=n)
    errors = n - c
    if m + errors > N:
        return Factor(log_p=-math.inf, log_gradient=None)
    slope = _harmonic(N - errors, m)
    gradient = Gradient(c=slope, n=-slope, m=-_harmonic(N - m, errors))
    return Factor(log_p=_log_avoid(errors, m, N), log_gradient=gradient)


def log_avoid(k: ArrayLike, m: ArrayLike, N: ArrayLike) -> np.ndarray:
    """The continuous extension: log avoid(k, m, N) for real arguments, arrays of any broadcastable shapes.

    Returns float64, -inf where k + m >= N + 1 (at whole numbers: where k + m > N). It interpolates the exact values;
    as a difference of large ``gammaln`` its absolute error grows to about 1e-8 at N = 10^6.
    Raises DomainError for k, m or N - k, N - m below 0, and for NaN.
    """
    k, m, N = (np.asarray(x, np.float64) for x in (k, m, N))
    for name, value in (("k", k), ("m", m)):
        outside = ~((value >= 0) & (value <= N))
        if outside.any():
            first = np.broadcast_to(value, outside.shape)[outside].flat[0]
            raise DomainError(f"{name} is {first:g}: it must lie between 0 and N")
    room = N - k - m + 1
    possible = room > 0
    ends = gammaln(N - k + 1) + gammaln(N - m + 1) - gammaln(N + 1)
    return np.where(possible, ends - gammaln(np.where(possible, room, 1.0)), -np.inf)


@dataclass(frozen=True, kw_only=True)
class PassRates:
    """Shares of random draws in which each test was passed."""

    recall: float
    collision_free: float
    draws: int


def simulate(n: int, c: int, *, m: int, N: int, draws: int, seed: int) -> PassRates:
    """Plays the model: draws R, C and E as sets of slots, each uniformly and independently of the others, and
    applies both tests to the sets themselves. Raises DomainError; ``draws`` must be at least 1.
    """
    _check(N=N, m=m, c=c, n=n)
    if draws < 1:
        raise DomainError(f"draws is {draws}: it must be at least 1")
    rng = np.random.default_rng(seed)
    covered = avoided = 0
    block = max(1, 2_000_000 // N)
    for first in range(0, draws, block):
        size = min(block, draws - first)
        reference, correct, wrong = (_subsets(rng, size, count, N) for count in (m, c, n - c))
        covered += int((correct | ~reference).all(axis=1).sum())
        avoided += int((~(wrong & reference)).all(axis=1).sum())
    return PassRates(recall=covered / draws, collision_free=avoided / draws, draws=draws)


def _subsets(rng: np.random.Generator, rows: int, count: int, N: int) -> np.ndarray:
    """bool [rows, N], each row with ``count`` places chosen uniformly."""
    return rng.permuted(np.tile(np.arange(N) < count, (rows, 1)), axis=1)


def _avoid_exact(k: int, m: int, N: int) -> Fraction:
    # binom(N - k, m) / binom(N, m), by the smaller of the two that the symmetry allows.
    small, large = sorted((k, m))
    return Fraction(math.comb(N - large, small), math.comb(N, small))


def _log_avoid(k: int, m: int, N: int) -> float:
    """Sum over the smaller of k and m of log(1 - larger / (N - i)); k + m <= N."""
    small, large = sorted((k, m))
    return float(np.log1p(-large / np.arange(N, N - small, -1, dtype=np.float64)).sum()) if small else 0.0


def _harmonic(top: int, terms: int) -> float:
    """sum_{i < terms} 1 / (top - i), the difference digamma(top + 1) - digamma(top + 1 - terms)."""
    return float((1.0 / np.arange(top, top - terms, -1, dtype=np.float64)).sum()) if terms else 0.0


def _check(*, N: int, m: int, c: int, n: int | None = None) -> None:
    named = {"N": N, "m": m, "c": c} | ({} if n is None else {"n": n})
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise DomainError(f"{name} is {value!r}: it counts facts and must be a whole number")
    if not 1 <= N <= LARGEST_N:
        raise DomainError(f"N is {N}: a picture has between 1 and {LARGEST_N} facts")
    if not 0 <= m <= N:
        raise DomainError(f"m is {m}: a reference has between 0 and N = {N} facts")
    if not 0 <= c <= N:
        raise DomainError(f"c is {c}: between 0 and N = {N} facts can be correct")
    if n is not None and not c <= n <= c + N:
        raise DomainError(
            f"n is {n}: a caption with c = {c} correct facts has between {c} and c + N = {c + N}"
        )
