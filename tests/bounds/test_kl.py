"""Binary relative entropy and its inverse against high-precision arithmetic, and coverage."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from surestep.base.errors import ConfigurationError
from surestep.bounds.kl import (
    binary_kl,
    binomial_lower,
    binomial_tail,
    binomial_upper,
    divergence,
    kl_lower,
    kl_upper,
    log_kl_moment,
    mean_upper,
    pac_bayes_kl,
)

mpmath.mp.dps = 60
probabilities = st.floats(0, 1) | st.floats(0, 1e-6) | st.floats(1 - 1e-9, 1)
radii = st.floats(0, 5) | st.floats(1e-12, 1e-4)


def exact_kl(q, p):
    q, p = mpmath.mpf(q), mpmath.mpf(p)
    total = mpmath.mpf(0)
    if q > 0:
        total += q * mpmath.log(q / p) if p > 0 else mpmath.inf
    if q < 1:
        total += (1 - q) * mpmath.log((1 - q) / (1 - p)) if p < 1 else mpmath.inf
    return total


@settings(max_examples=300, deadline=None)
@given(probabilities, radii)
def test_the_inverse_is_sure_and_tight(mean, radius):
    bound = float(kl_upper(mean, radius))
    assert mean <= bound <= 1
    # Sure: the exact relative entropy at the bound is at least the radius.
    assert bound == 1 or exact_kl(mean, bound) >= mpmath.mpf(radius)
    # Tight: a little below, it no longer is.
    below = bound - max(1e-7, 1e-4 * (bound - mean))
    assert below <= mean or exact_kl(mean, below) <= radius + 1e-9


@settings(max_examples=100, deadline=None)
@given(probabilities, radii)
def test_the_lower_inverse_mirrors_the_upper(mean, radius):
    bound = float(kl_lower(mean, radius))
    assert 0 <= bound <= mean + 1e-15
    assert bound <= 0 or exact_kl(mean, bound) >= mpmath.mpf(radius) * (1 - mpmath.mpf(1e-9))


def test_closed_forms():
    assert float(kl_upper(0.0, 0.1)) == pytest.approx(1 - np.exp(-0.1), rel=1e-12)
    assert float(kl_upper(1.0, 0.1)) == 1.0
    assert float(binary_kl(0.3, 0.3)) == 0.0
    assert float(binary_kl(0.0, 0.25)) == pytest.approx(-np.log(0.75))
    assert np.isinf(binary_kl(0.5, 1.0))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 400), st.data(), st.floats(1e-8, 0.5))
def test_binomial_bounds_are_exact_and_sure(trials, data, level):
    k = data.draw(st.integers(0, trials))
    bound = mpmath.mpf(float(binomial_upper(k, trials, level)))
    if k == trials:
        assert bound == 1
        return

    def tail(p):
        return mpmath.betainc(trials - k, k + 1, 0, 1 - p, regularized=True)

    assert tail(bound) <= level
    assert tail(bound * (1 - mpmath.mpf(1e-9))) >= level
    lower = float(binomial_lower(trials - k, trials, level))
    assert lower == pytest.approx(1 - float(bound), abs=1e-15)


def test_binomial_bounds_are_sure_at_levels_where_the_librarys_inverse_fails():
    for trials, k, level in [(250, 25, 1e-299), (1559, 38, 2e-250), (40, 3, 1e-120)]:
        bound = mpmath.mpf(float(binomial_upper(k, trials, level)))
        assert mpmath.betainc(trials - k, k + 1, 0, 1 - bound, regularized=True) <= level


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.data(), st.floats(0, 1))
def test_binomial_tails_are_rounded_up(trials, data, p):
    k = data.draw(st.integers(0, trials))
    found = float(binomial_tail(k, trials, p))
    if k == trials:
        assert found == 1
        return
    exact = mpmath.betainc(trials - k, k + 1, 0, 1 - mpmath.mpf(p), regularized=True)
    assert exact <= found <= max(exact * (1 + mpmath.mpf(1e-8)), mpmath.mpf(1e-289))


@pytest.mark.parametrize("size", [1, 2, 8, 50, 250, 10_000])
def test_the_moment_is_the_exact_sum(size):
    exact = mpmath.mpf(0)
    for k in range(size + 1):
        q = mpmath.mpf(k) / size
        term = mpmath.binomial(size, k)
        term *= q**k if k else 1
        term *= (1 - q) ** (size - k) if k < size else 1
        exact += term
    assert mpmath.log(exact) <= log_kl_moment(size) <= mpmath.log(exact) + 1e-6
    assert 0.5 * np.log(size) <= log_kl_moment(size) <= np.log(2 * np.sqrt(size)) + 1e-9


def test_pac_bayes_kl_by_hand():
    size, level, kl = 250, 0.05, 1.5
    value = float(pac_bayes_kl(0.1, kl, size, level))
    radius = (kl + log_kl_moment(size) + np.log(1 / level)) / size
    assert float(exact_kl(0.1, value)) == pytest.approx(radius, rel=1e-9)


def test_divergence():
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.5, 0.0])
    with np.errstate(divide="ignore"):
        found = divergence(np.log(q), np.log(p))
    assert found == pytest.approx(stats.entropy(q, p))
    assert divergence(np.log(p), np.log(p)) == 0.0


@pytest.mark.parametrize(("p", "size"), [(0.02, 50), (0.3, 20), (0.9, 10)])
def test_coverage_of_the_mean_bound(p, size):
    """Coin flips, the hardest case: false at most as often as the level says."""
    random = np.random.default_rng(0)
    level, repeats = 0.2, 4000
    k = random.binomial(size, p, repeats)
    false = np.mean(mean_upper(k / size, size, level) < p)
    exact = np.mean(binomial_upper(k, size, level) < p)
    assert exact <= level + 4 * np.sqrt(level / repeats)
    assert false <= exact


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.integers(1, 1000), st.floats(0.001, 0.5))
def test_bounds_fall_with_size_and_rise_with_confidence(mean, size, level):
    assert mean_upper(mean, 2 * size, level) <= mean_upper(mean, size, level) + 1e-12
    assert mean_upper(mean, size, level / 2) >= mean_upper(mean, size, level) - 1e-12
    assert mean_upper(mean, size, level) >= mean
    larger = float(pac_bayes_kl(mean, 1.0, size, level))
    assert larger >= float(mean_upper(mean, size, level)) - 1e-12


@pytest.mark.parametrize(
    "call",
    [
        lambda: kl_upper(1.2, 0.1),
        lambda: kl_upper(np.nan, 0.1),
        lambda: kl_upper(0.5, -1.0),
        lambda: kl_upper(0.5, np.nan),
        lambda: mean_upper(0.1, 0, 0.05),
        lambda: mean_upper(0.1, 10, 0.0),
        lambda: mean_upper(0.1, 10, 1.0),
        lambda: binomial_upper(11, 10, 0.05),
        lambda: binomial_tail(11, 10, 0.05),
        lambda: binomial_tail(1, 10, 1.5),
        lambda: pac_bayes_kl(0.1, -1.0, 10, 0.05),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(ConfigurationError):
        call()
